"""`otel-worker lab` as a person or a program runs it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from otel_worker.lab.command import lab
from otel_worker.lab.policies import ALL_POLICIES, POLICIES
from otel_worker.lab.workloads import WORKLOADS

SMALL = ("--workers", "6", "--keys", "30", "--size", "100 kB")
DOCUMENT = Path(__file__).parents[2] / "docs" / "lab.md"


def run(*arguments):
    return CliRunner().invoke(lab, arguments, env={"COLUMNS": "250"}, catch_exceptions=False)


def json_of(*arguments):
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_the_text_compares_all_policies_and_says_where_the_waiting_went():
    result = run("all-to-all", *SMALL)
    assert result.exit_code == 0
    for policy in POLICIES:
        assert len(re.findall(rf"^│ {policy} ", result.output, re.MULTILINE)) == 2
    for word in ("requests", "keys each", "last ready ms", "decision µs", "heap ops", "network", "connect.dial"):
        assert word in result.output


def test_the_list_says_what_overrides_what():
    result = run("--list")
    assert result.exit_code == 0
    for name in (*ALL_POLICIES, *WORKLOADS):
        assert name in result.output
    assert "_select_workers_for_gather" in result.output


def test_json_is_what_the_document_says():
    report = json_of("replicas", *SMALL)
    assert (report["schema"], report["version"]) == ("otel_worker.lab", 1)
    assert [result["policy"] for result in report["results"]] == list(POLICIES)
    documented = set(re.findall(r"^\| `([a-z_]+)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))
    (transfer, *_) = report["results"][0]["transfers"]
    assert {*report, *report["case"], *report["results"][0], *transfer} <= documented


def test_a_setting_is_varied():
    report = json_of("all-to-all", *SMALL, "--policy", "current", "--vary", "message limit=100 kB,none")
    settings = [(result["setting"], result["keys_a_request_max"]) for result in report["results"]]
    assert settings == [("message limit 100 kB", 1), ("message limit none", 5)]


@pytest.mark.parametrize("workload", ["replicas", "skewed-sizes"])
def test_output_depends_on_the_seed_alone(workload, tmp_path):
    """In two processes with other hashes of strings, too: Dask leaves some order to them."""
    outputs = []
    for number in "12":
        file = tmp_path / number
        command = [
            sys.executable,
            "-m",
            "otel_worker.lab",
            workload,
            *SMALL,
            "--seed",
            "3",
            "--no-cpu",
            "--json",
            str(file),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": number}
        subprocess.run(command, check=True, capture_output=True, env=environment, cwd=Path(__file__).parents[2])
        outputs.append(file.read_text())
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["results"][0]["decision_cpu_a_stimulus"] is None


def test_the_page_needs_no_network(tmp_path):
    pytest.importorskip("bokeh")
    file = tmp_path / "page.html"
    result = run("one-slow-peer", *SMALL, "--policy", "current", "--policy", "global-priority", "--html", str(file))
    assert result.exit_code == 0
    page = file.read_text(encoding="utf-8")
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", page)
    assert "Bokeh" in page
    assert "global-priority: " in page
    assert "Fetch policies: one-slow-peer" in page


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((), 2, "Give a SOURCE"),
        (("nowhere",), 1, "'nowhere' is no file and no workload"),
        (("all-to-all", "--policy", "best"), 1, "There is no policy 'best'"),
        (("all-to-all", "--size", "big"), 1, "'big' is no size"),
        (("all-to-all", "--workers", "5000"), 1, "2 to 1000 workers, not 5000"),
        (("all-to-all", "--workers", "many"), 2, "'many' is not a valid integer"),
        (("all-to-all", "--set", "speed=1"), 1, "'speed' is no setting"),
        (("all-to-all", "--set", "latency"), 1, "is no NAME=VALUE"),
        (("all-to-all", "--vary", "latency=soon"), 1, "'soon' is no time"),
        (("all-to-all", *SMALL, "--policy", "current", "--json", "/no/such/folder/x"), 1, "can't be written"),
    ],
)
def test_bad_input_is_one_sentence(arguments, code, sentence):
    result = run(*arguments)
    assert result.exit_code == code
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_a_recording_says_how_near_the_replay_comes(tmp_path):
    lines = [
        {"format": "otel_worker.recording", "version": 1, "worker": "tcp://10.0.0.1:1", "started": 0, "limits": {}},
        {"at": 0.0, "event": event("ComputeTaskEvent", key="t", who_has={"x": ["tcp://10.0.0.2:1"]}, nbytes={"x": 5})},
        {"at": 0.0, "request": {"worker": "tcp://10.0.0.2:1", "keys": ["x"]}},
        {
            "at": 0.1,
            "event": event("GatherDepSuccessEvent", worker="tcp://10.0.0.2:1", total_nbytes=5, data={"x": None}),
        },
    ]
    file = tmp_path / "one.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    result = run(str(file), "--policy", "current")
    assert result.exit_code == 0, result.output
    assert "decides 1 of 1 requests as recorded" in result.output
    report = json_of(str(file), "--policy", "current")
    assert report["decisions"] == {"alike": 1, "recorded": 1}
    ratios = {each["figure"]: each["ratio"] for each in report["nearness"]}
    assert ratios["requests"] == ratios["keys"] == 1
    assert ratios["last_ready"] == pytest.approx(1, abs=0.05)


def event(cls, **fields):
    common = {"cls": cls, "handled": 0.0, "stimulus_id": "s"}
    if cls == "ComputeTaskEvent":
        common |= {"priority": [0], "run_id": 1, "run_spec": None, "resource_restrictions": {}, "actor": False}
        common |= {"annotations": {}, "span_id": None}
    return {**common, **fields}
