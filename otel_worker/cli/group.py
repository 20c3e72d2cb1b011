"""The group of commands; a command's module is imported when it is called."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Final

import click
from click.shell_completion import CompletionItem

from otel_worker.version import __version__


@dataclass(frozen=True, slots=True)
class _Late:
    """Where a command is, and what the list of commands says of it."""

    module: str
    attribute: str
    help: str


COMMANDS: Final = {
    "demo": _Late(
        "otel_worker.cli.demo", "demo", "Run a small cluster of real processes and show where its time went."
    ),
    "lab": _Late("otel_worker.lab.command", "lab", "Try policies for fetching data on Dask's own state machine."),
    "open": _Late("otel_worker.cli.open", "open_", "Show what is open right now on every worker."),
    "report": _Late("otel_worker.cli.report", "report", "Say where the time of tasks went."),
    "run": _Late("otel_worker.cli.run", "run", "Run a Dask program and say where its time went."),
    "tree": _Late("otel_worker.cli.tree", "tree", "Print traces as trees."),
}


class LateGroup(click.Group):
    """Knows its commands by name; those whose modules are not installed are left out."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(name for name, late in COMMANDS.items() if _is_there(late))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        late = COMMANDS.get(cmd_name)
        if late is None or not _is_there(late):
            return super().get_command(ctx, cmd_name)
        try:
            command: click.Command = getattr(importlib.import_module(late.module), late.attribute)
        except ImportError as error:
            raise click.ClickException(_needs(cmd_name, error)) from None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list from the table above: help imports no command."""
        rows = [(name, COMMANDS[name].help) for name in self.list_commands(ctx) if name in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and their help from the table: the Tab key imports no command."""
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [*(CompletionItem(name, help=COMMANDS[name].help) for name in names), *options]


def _needs(command: str, error: ImportError) -> str:
    extra = "lab" if command == "lab" else "report"
    return f"{command} needs {error.name or error}: pip install 'otel-worker[{extra}]'."


def _is_there(late: _Late) -> bool:
    try:
        return importlib.util.find_spec(late.module) is not None
    except ImportError:
        return False


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=LateGroup, context_settings=_SETTINGS)
@click.version_option(__version__)
def otel_worker() -> None:
    """Where did the time go while Dask's tasks were not computing?

    \b
    otel-worker run program.py                    # a program, and then where its time went
    otel-worker open tcp://127.0.0.1:8786         # what is open right now on a cluster
    otel-worker report traces.jsonl               # what a Collector's file exporter wrote
    otel-worker report localhost:16686 --since 1h # what a Jaeger holds
    otel-worker tree traces.jsonl --key "('sum', 0)"
    """  # noqa: D301  click reads \b as a character


@click.group("otel", cls=LateGroup, context_settings=_SETTINGS)
@click.version_option(__version__, package_name="otel-worker")
def dask_otel() -> None:
    """Where did the time go while tasks were not computing? The commands of otel-worker.

    \b
    dask otel run program.py
    dask otel open tcp://127.0.0.1:8786
    dask otel report traces.jsonl
    """  # noqa: D301  click reads \b as a character
