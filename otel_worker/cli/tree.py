"""`otel-worker tree`: traces as text."""

from collections.abc import Sequence

import click

from otel_worker import names
from otel_worker.cli.source import read_or_exit, source_options
from otel_worker.traces import Span
from otel_worker.trees import clean, subtree
from otel_worker.trees import tree as tree_lines


@click.command()
@source_options
@click.option("--key", default="", help="Only the tasks of this key, and what is below them.")
@click.option("--links/--no-links", default=True, help="Show what spans link to.", show_default=True)
@click.option("--names", "only_names", is_flag=True, help="Names only, without seconds and details.")
def tree(
    source: str, trace_id: str, service: str, since: float, limit: int, key: str, links: bool, only_names: bool
) -> None:
    """Print the traces of SOURCE as trees.

    SOURCE is a file of OTLP JSON lines (also gzip or zstd), a directory of them, or the address of a Jaeger.

    \b
    otel-worker tree traces.jsonl --key "('sum', 0)"
    otel-worker tree localhost:16686 --trace-id 0af7651916cd43dd8448eb211c80319c
    """  # noqa: D301  click reads \b as a character
    traces = read_or_exit(source, service=service, since=since, trace_id=trace_id, limit=limit)
    spans = _of_key(traces.spans, key) if key else traces.spans
    if not spans:
        click.echo(f"otel-worker: No task of {source} has the key {key}.", err=True)
        raise SystemExit(1)
    for line in tree_lines(spans, links=links, seconds=not only_names, details=not only_names, among=traces.spans):
        click.echo(clean(line))
    for problem in traces.problems:
        click.echo(f"otel-worker: {clean(problem)}", err=True)


def _of_key(spans: Sequence[Span], key: str) -> list[Span]:
    tops = [s for s in spans if s.operation == names.TASK and s.attributes.get(names.TASK_KEY) == key]
    return [span for top in tops for span in subtree(spans, top)]
