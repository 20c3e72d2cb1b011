"""The command `otel-worker`. Nothing is imported before it is needed: not even click, which is an extra."""

import sys


def main() -> None:
    try:
        import click  # noqa: F401
        import msgspec  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        sys.exit(f"otel-worker needs {error.name}: pip install 'otel-worker[report]'.")
    from otel_worker.cli.group import otel_worker

    otel_worker(prog_name="otel-worker")
