"""What all commands share: help with examples, `dask otel`, completion, and one sentence where an extra is missing."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from otel_worker.cli.group import COMMANDS, dask_otel, otel_worker
from tests.processes import BIN, environment
from tests.services import ends_with_us

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str):
    done = CliRunner().invoke(otel_worker, [name, "--help"], prog_name="otel-worker")
    assert done.exit_code == 0
    usage, *rest = done.output.splitlines()
    assert usage.startswith(f"Usage: otel-worker {name} ")
    assert any(line.strip().startswith(f"otel-worker {name}") for line in rest)


def test_the_group_says_what_there_is():
    for group in (otel_worker, dask_otel):
        done = CliRunner().invoke(group, ["--help"])
        assert done.exit_code == 0
        for name, late in COMMANDS.items():
            assert name in done.output
            assert late.help.split(".")[0][:30] in done.output


def dask(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [*ends_with_us(), str(BIN / "dask"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), timeout=60)


def test_the_same_commands_are_dasks():
    done = dask("otel", "tree", "nowhere.jsonl")
    assert done.returncode == 1
    assert done.stderr.startswith("otel-worker: ")
    assert done.stderr.count("\n") == 1
    assert "Where did the time go" in dask("--help").stdout


def complete(line: str, word: int, shell: str = "bash") -> list[str]:
    """What the shell is told when a person presses Tab."""
    done = subprocess.run(
        [*ends_with_us(), str(BIN / "otel-worker")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment(_OTEL_WORKER_COMPLETE=f"{shell}_complete", COMP_WORDS=line, COMP_CWORD=str(word)),
    )
    return done.stdout.split()


def test_bash_completes_commands_and_options():
    assert complete("otel-worker o", 1) == ["plain,open"]
    assert set(complete("otel-worker open --t", 2)) == {
        *("plain,--top", "plain,--timeout", "plain,--tls-ca-file", "plain,--tls-cert", "plain,--tls-key")
    }


def test_bash_itself_completes(tmp_path: Path):
    """As the docs say: source what the command prints, then press Tab."""
    script = f"""
    PATH={BIN}:$PATH
    eval "$(_OTEL_WORKER_COMPLETE=bash_source otel-worker)"
    COMP_WORDS=(otel-worker re) COMP_CWORD=1
    _otel_worker_completion otel-worker
    echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=environment(), timeout=60
    )
    assert done.stdout.split() == ["report"]


def test_completion_imports_no_command():
    code = (
        "import sys; from otel_worker.cli.group import otel_worker; import click;"
        "print([i.value for i in otel_worker.shell_complete(click.Context(otel_worker), '')]);"
        "print(sorted(m for m in sys.modules if m.startswith('otel_worker.cli.') or m == 'distributed'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == [str(sorted(COMMANDS)), "['otel_worker.cli.group']"]


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "otel_worker.cli.tree", raising=False)
    monkeypatch.setitem(sys.modules, "otel_worker.cli.source", None)  # as if what it needs were not installed
    with pytest.raises(click.ClickException, match=r"tree needs .*: pip install 'otel-worker\[report\]'"):
        otel_worker.get_command(click.Context(otel_worker), "tree")
