"""The command line: what it prints where, with which status, and what it does not import."""

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import requests
from click.testing import CliRunner, Result

from otel_worker.cli.group import otel_worker
from otel_worker.traces import Resource
from tests.drawing import START, TRACE, draw
from tests.lines import otlp_lines
from tests.test_report import CASE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(otlp_lines(draw(CASE)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(otel_worker, [str(a) for a in arguments], prog_name="otel-worker")


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_report(file):
    found = run("report", file)
    assert found.exit_code == 0, found.output
    assert "waited 3.1 s, 2.4 s of it for tcp://slow to read from disk." in found.stdout
    assert found.stderr == ""


def test_report_as_json(file):
    found = run(
        "report", file, "--json", "--by", "prefix,worker", "--by", "key", "--top", 1, "--method", "critical_path"
    )
    report = json.loads(found.stdout)
    assert report["schema"] == "otel-worker/report/1"
    assert report["by"] == ["prefix", "worker", "key"]
    assert len(report["slowest"]) == 1
    assert report["method"] == "critical_path"


def test_report_of_one_key(file):
    report = json.loads(run("report", file, "--json", "--key", "x", "--only", "worker=tcp://a").stdout)
    assert (report["extent"]["tasks"], report["only"]) == (1, {"worker": "tcp://a", "key": "x"})


def test_problems_stand_in_the_report_and_the_rest_is_reported(file):
    file.write_bytes(file.read_bytes() + b'{"resourceSp')
    found = run("report", file)
    assert found.exit_code == 0
    assert "The last line of traces.jsonl is cut off or not OTLP JSON (line 9" in found.stdout


def test_tree(file):
    found = run("tree", file, "--names")
    assert found.stdout.splitlines()[3:8] == ["task sum", "  waiting", "    fetch sum", "      request", "  execute"]


def test_tree_of_a_key_with_seconds(file):
    found = run("tree", file, "--key", "l")
    assert found.stdout.splitlines()[0].split() == [
        "task",
        "load",
        "1.00",
        "s",
        "dask-worker-tcp://a",
        "l",
        "8.0",
        "MB",
    ]
    assert len(found.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["report", "missing.jsonl"], 1, "missing.jsonl: No such file or directory."),
        (["tree", "missing.jsonl"], 1, "missing.jsonl: No such file or directory."),
        (["report", "127.0.0.1:1"], 1, "No Jaeger answers at http://127.0.0.1:1"),
        (["report", "FILE", "--only", "prefix=nobody"], 1, "No task to report in"),
        (["report", "FILE", "--trace-id", "77"], 1, "No span in"),
        (["tree", "FILE", "--key", "nobody"], 1, "has the key nobody"),
        (["report", "FILE", "--by", "colour"], 2, "'colour' is not one of key, prefix"),
        (["report", "FILE", "--only", "colour=red"], 2, "is not one of key=…"),
        (["report", "FILE", "--since", "yesterday"], 2, "'yesterday' is no duration such as"),
        (["report", "FILE", "--method", "x"], 2, "critical_path"),
        (["report"], 2, "SOURCE"),
        (["no-such-command"], 2, "No such command"),
    ],
)
def test_bad_input_is_a_sentence_on_stderr(file, arguments, status, words):
    found = run(*[file if a == "FILE" else a for a in arguments])
    assert found.exit_code == status
    assert words in found.stderr
    assert found.stdout == ""
    assert "Traceback" not in found.stderr


def test_foreign_spans_are_named(tmp_path):
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(otlp_lines(draw("GET / |==|", scope="requests")))
    found = run("report", path)
    assert found.exit_code == 1
    assert "None of the 1 span is from otel_worker; they are from dask-worker-client." in found.stderr


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400), ("2d", 172_800), ("7", 7)])
def test_durations(text, seconds):
    from otel_worker.cli.source import Since

    assert Since().convert(text, None, None) == seconds


def test_help_lists_the_commands_and_imports_none():
    code = (
        "import sys\nsys.argv[1:] = ['--help']\nfrom otel_worker.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('distributed', 'dask', 'grpc', 'otel_worker.traces', 'rich.console') if m in sys.modules])"
    )
    found = python(code)
    assert "report" in found.stdout
    assert "tree" in found.stdout
    assert found.stdout.splitlines()[-1] == "[]", found.stderr


def test_a_report_imports_no_dask(file):
    code = (
        f"import sys\nsys.argv[1:] = ['report', {str(file)!r}]\nfrom otel_worker.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('distributed', 'dask', 'grpc') if m in sys.modules])"
    )
    assert python(code).stdout.splitlines()[-1] == "[]"


def test_without_click_one_sentence_says_what_to_install():
    found = python("import sys\nsys.modules['click'] = None\nfrom otel_worker.cli import main\nmain()")
    assert found.returncode == 1
    assert found.stderr == "otel-worker needs click: pip install 'otel-worker[report]'.\n"


def test_version_and_help():
    assert "version" in run("--version").stdout
    for command in ("report", "tree"):
        assert "SOURCE" in run(command, "--help").stdout


@pytest.mark.services
def test_a_report_from_a_real_jaeger(jaeger, collector):
    spans = [msgspec.structs.replace(s, resource=Resource({"service.name": "dask-worker-cli"})) for s in draw(CASE)]
    now = time.time_ns()
    moved = [msgspec.structs.replace(s, start=s.start - START + now, end=s.end - START + now) for s in spans]
    for line in otlp_lines(moved).splitlines():
        answer = requests.post(
            f"{collector.http}/v1/traces", line, headers={"Content-Type": "application/json"}, timeout=20
        )
        answer.raise_for_status()
    jaeger.trace(TRACE, until=lambda found: len(found) == len(spans))
    for arguments in (["--trace-id", TRACE], ["--service", "dask-worker-cli", "--since", "5m"]):
        found = run("report", jaeger.query_url, *arguments)
        assert found.exit_code == 0, found.output
        assert "waited 3.1 s, 2.4 s of it for tcp://slow to read from disk." in found.stdout
        assert "Problems of the source" not in found.stdout
