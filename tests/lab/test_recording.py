"""A real run is recorded, and replayed under `current`: how near it comes is stated."""

import io
import json
from collections import deque
from pathlib import Path

import pytest
from distributed import Client, LocalCluster, wait
from distributed.worker_state_machine import GatherDepSuccessEvent

from otel_worker.lab import replay
from otel_worker.lab.demand import LabError, Need, compute
from otel_worker.lab.policies import POLICIES, Current
from otel_worker.lab.recorded import recorded_in
from otel_worker.lab.recording import FORMAT, Recorder, RecordFetches
from otel_worker.lab.results import evaluate
from otel_worker.lab.simulation import Run
from otel_worker.lab.source import load
from otel_worker.lab.workloads import Size


def piece(_, nbytes):
    return bytes(nbytes)


def join(*pieces):
    return sum(map(len, pieces))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A small shuffle on three workers: a folder of recordings, and a dump of the same run in both formats."""
    folder = tmp_path_factory.mktemp("recorded")
    options = {
        "n_workers": 3,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
        "protocol": "tcp",
    }
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.register_plugin(RecordFetches(str(folder / "recordings")))
        workers = sorted(client.scheduler_info()["workers"])
        pieces = [
            client.submit(piece, i, 200_000, key=("piece", i), workers=[workers[i % 3]], pure=False) for i in range(30)
        ]
        wait(pieces)
        joined = [
            client.submit(join, *pieces[i % 4 :: 4], key=f"join-{i}", workers=[workers[i % 3]], pure=False)
            for i in range(12)
        ]
        assert client.gather(joined) == [1_600_000, 1_600_000, 1_400_000, 1_400_000] * 3
        client.dump_cluster_state(str(folder / "dump"))
        client.dump_cluster_state(str(folder / "dump"), format="yaml")
    return folder


def test_a_recording_says_what_it_is_and_keeps_holders_and_priorities(recorded):
    files = sorted((recorded / "recordings").glob("*.jsonl"))
    assert len(files) == 3
    for file in files:
        header, *lines = map(json.loads, file.read_text().splitlines())
        assert (header["format"], header["version"], header["nthreads"]) == (FORMAT, 1, 1)
        assert header["limits"]["transfer_message_bytes_limit"] == 50_000_000
        events = [line["event"] for line in lines if "event" in line]
        tasks = [event for event in events if event["cls"] == "ComputeTaskEvent" and event["who_has"]]
        assert len(tasks) == 4
        assert all(event["priority"] and all(event["who_has"].values()) for event in tasks)
        assert {line["request"]["worker"] for line in lines if "request" in line}
        assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)


def test_given_the_recorded_events_dasks_state_machine_decides_as_recorded(recorded):
    """All that may differ are ties, which Dask settles by the order of a set."""
    for recording in recorded_in(recorded / "recordings"):
        alike, every = replay.decisions(recording)
        assert every >= 4
        assert alike >= every / 2
        made = replay.decided(recording)
        assert sum(len(keys) for _, keys in made) == sum(len(keys) for _, _, keys in recording.requests)
        assert len(made) == every


@pytest.mark.parametrize("source", ["recordings", "dump.msgpack.gz", "dump.yaml"])
def test_a_replay_under_current_comes_near_to_what_happened(recorded, source):
    """Measured on two cores: the number of requests within 15 %, the last task ready within 10 %. Bounds for a busy machine."""
    case, recordings = load(str(recorded / source), Size())
    assert len(recordings) == 3
    result = evaluate("current", Run(case, "current", validate=True).run().facts)
    near = {each.figure: each.ratio for each in replay.nearness(case, result)}
    assert near["keys"] == near["nbytes"] == 1
    assert 0.6 <= near["requests"] <= 1.6
    assert 0.7 <= near["last_ready"] <= 1.4
    assert result.unready == 0


def test_every_policy_replays_a_recording(recorded):
    case, _ = load(str(recorded / "recordings"), Size())
    keys = {policy: evaluate(policy, Run(case, policy).run().facts).keys for policy in POLICIES}
    assert set(keys.values()) == {keys["current"]}


# --- the recorder -------------------------------------------------------------------------------------------------------


def worker_state():
    return Current(address="tcp://127.0.0.1:1")


def test_the_recorder_leaves_no_mark():
    state, stream = worker_state(), io.StringIO()
    recorder = Recorder(state, stream, started=0)
    state.handle_stimulus(compute("t", [Need("x", 5, ("A",))]))
    recorder.stop()
    assert type(state.stimulus_log) is type(state.log) is deque
    assert state.stimulus_log.maxlen == worker_state().stimulus_log.maxlen
    assert len(state.stimulus_log) == 1
    before = stream.getvalue()
    state.handle_stimulus(GatherDepSuccessEvent(worker="A:1", total_nbytes=5, data={"x": None}, stimulus_id="done"))
    assert stream.getvalue() == before
    _, event, request = map(json.loads, before.splitlines())
    assert event["event"]["who_has"] == {"x": ["A:1"]}
    assert request["request"] == {"worker": "A:1", "keys": ["x"]}


def test_a_recorder_that_fails_stops_and_does_no_harm(caplog):
    class Full(io.StringIO):
        def write(self, text):
            if self.tell():
                raise OSError("No space left on device")
            return super().write(text)

    state = worker_state()
    recorder = Recorder(state, Full())
    assert len(state.handle_stimulus(compute("t", [Need("x", 5, ("A",))]))) == 1
    assert not recorder.on
    assert caplog.text.count("The recording of fetches stops") == 1


# --- what is no recording -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "Line 1 .* is not JSON"),
        ("{}", "is no recording"),
        ('{"format": "otel_worker.recording", "version": 9, "worker": "w"}', "version 9; this lab reads version 1"),
        ('{"format": "otel_worker.recording", "version": 1}', "does not name its worker"),
        ('{"format": "otel_worker.recording", "version": 1, "worker": "w"}', "contains no events"),
        ('{"format": "otel_worker.recording", "version": 1, "worker": "w", "nthreads": "x"}', "makes no sense"),
        ('{"format": "otel_worker.recording", "version": 1, "worker": "w"}\n{"at": 1, "ev', "Line 2 .* cut off"),
        (
            '{"format": "otel_worker.recording", "version": 1, "worker": "w"}\n{"at": 1}',
            "neither an event nor a request",
        ),
        (
            '{"format": "otel_worker.recording", "version": 1, "worker": "w"}\n{"at": 1, "event": {"cls": "FreeKeysEvent"}}',
            "lacks something|neither an event",
        ),
    ],
)
def test_a_recording_that_is_none_says_why(tmp_path, text, sentence):
    file = tmp_path / "recording.jsonl"
    file.write_text(text)
    with pytest.raises(LabError, match=sentence):
        load(str(file), Size())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("dump.msgpack.gz", b"no gzip", "can't be read as a cluster dump"),
        ("dump.yaml", b"scheduler: 1\nversions: 2\n", "has no `workers`"),
        ("dump.yaml", b"workers: {w: {stimulus_log: []}}\n", "contains no events"),
        ("dump.yaml", b"workers: {w: {stimulus_log: [5]}}\n", "makes no sense"),
        ("case.txt", b"\xff\xfe\x00", "can't be read as text"),
    ],
)
def test_a_file_that_is_neither_says_why(tmp_path, name, content, sentence):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(LabError, match=sentence):
        load(str(file), Size())


def test_an_empty_folder_says_why(tmp_path):
    with pytest.raises(LabError, match="contains no recording"):
        load(str(Path(tmp_path)), Size())
