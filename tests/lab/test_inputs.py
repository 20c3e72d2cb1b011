"""Drawings, YAML, settings: what they mean, and one clear sentence where they mean nothing."""

import math

import pytest
from distributed.worker_state_machine import AcquireReplicasEvent, ComputeTaskEvent, PauseEvent, UnpauseEvent

from otel_worker.lab import case_file, drawing, settings
from otel_worker.lab.demand import Case, LabError, address, label
from otel_worker.lab.simulation import first_round
from otel_worker.lab.workloads import Size, generate

DRAWN = """
# the second figure of the discussion
byte limit = 100
backlog = yes

task: f1 | f2   | f3
A:    1  |  .   | 1*5
C:    .  | 1000 | .
"""


def test_a_drawing_is_the_input():
    case = drawing.read(DRAWN, "drawn")
    assert [(label(peer), keys, nbytes) for peer, keys, nbytes in first_round(case, "global-priority")] == [
        ("A", 1, 1),
        ("C", 1, 1000),
    ]
    assert [(label(peer), keys) for peer, keys, _ in first_round(case, "current")] == [("A", 6)]


def test_what_a_drawing_says():
    text = """
    latency = 2 ms
    C.bandwidth = 10 MB/s
    A: 1 2kB | 3
    B: 1 .   | .
    at 5 ms
    replicas
    worker other
    A: 7
    """
    case = drawing.read(text, "drawn")
    first, second, third = case.arrivals
    assert isinstance(first.event, ComputeTaskEvent)
    assert first.event.nbytes == {"task-1.1": 1, "task-1.2": 2000}
    assert first.event.who_has == {"task-1.1": [address("A"), address("B")], "task-1.2": [address("A")]}
    assert second.event.nbytes == {"task-2.1": 3}
    assert (third.at, label(third.worker)) == (0.005, "other")
    assert isinstance(third.event, ComputeTaskEvent)  # `worker` began a new block, of tasks again
    assert case.peer.latency == 0.002
    assert case.of(address("C")).bandwidth == 10e6
    assert case.of(address("C")).latency == 0.002


def test_replicas_are_drawn_without_tasks():
    (arrival,) = drawing.read("replicas\nA: 1*3\nB: . 1 .\n", "drawn").arrivals
    assert isinstance(arrival.event, AcquireReplicasEvent)
    assert [len(holders) for holders in arrival.event.who_has.values()] == [1, 2, 1]


def test_a_backlog_is_decided_at_once():
    events = [arrival.event for arrival in drawing.read(DRAWN, "drawn").arrivals]
    assert isinstance(events[0], PauseEvent)
    assert isinstance(events[-1], UnpauseEvent)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "draws no keys"),
        ("A: .", "draws no keys"),
        ("A: 1 x", "Line 1 of drawn: 'x' is no size"),
        ("A: 1*x", "Line 1 of drawn: 'x' is no whole number"),
        ("A: 1*9999999", "at most 1000000 keys"),
        ("\nhello", "Line 2 of drawn: 'hello' is no row"),
        ("speed = 3", "'speed' is no setting"),
        ("C.speed = 3", "'speed' is no property of peers"),
        ("latency = soon", "'soon' is no time"),
        ("bandwidth = 0", "would never deliver"),
        ("busy for = 2", "free for some part"),
        ("outgoing connections = 0", "refuse everything for ever"),
        ("A: 1\nB: 2", "different size on A and B"),
        ("task: a | a\nA: 1 | 1", "two tasks have one name"),
        ("at never", "'never' is no time"),
    ],
)
def test_a_drawing_that_is_none_says_why(text, sentence):
    with pytest.raises(LabError, match=sentence):
        drawing.read(text, "drawn")


YAML = """
name: two levels
limits: {connections: 3, throttle threshold: 0, byte limit: none}
peers: {latency: 1 ms}
peer: {C: {bandwidth: 10 MB/s}}
threads: 2
events:
  - task: f1
    takes: 10 ms
    result: 1 MB
    needs: {x: {size: 1 kB, holders: [A, B]}}
  - {task: f2, after: [f1], at: 5 ms, priority: [1, 2], needs: {y: {holders: A}}}
  - replicas: {z: {size: 5, holders: [C]}}
  - {holders: {y: [A, B]}, at: 1 ms}
  - {free: [z], at: 2}
  - pause: true
  - {unpause: true, at: 1 ms}
"""


def test_what_yaml_says():
    case = case_file.read(YAML, "case.yaml")
    assert case.name == "two levels"
    assert (case.limits.incoming_count, case.limits.throttle_threshold, case.limits.incoming_bytes) == (3, 0, math.inf)
    assert (case.nthreads, case.durations["f1"], case.results["f1"]) == (2, 0.01, 1_000_000)
    kinds = [type(arrival.event).__name__ for arrival in case.arrivals]
    assert kinds == [
        "ComputeTaskEvent",
        "ComputeTaskEvent",
        "AcquireReplicasEvent",
        "RefreshWhoHasEvent",
        "FreeKeysEvent",
        "PauseEvent",
        "UnpauseEvent",
    ]
    assert case.arrivals[1].after == ("f1",)
    assert case.arrivals[1].event.priority == (1, 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is not valid YAML"),
        ("- 1", "is no mapping"),
        ("events: []", "no list of `events`"),
        ("evens: []", "'evens', which is none of"),
        ("events: [{tusk: f}]", "event 1 is one of task, replicas"),
        ("events: [{task: f, needs: {x: {size: 1}}}]", "key x of task f are a list"),
        ("events: [{task: f, needs: {x: {holders: []}}}]", "key x of task f has no holder"),
        ("events: [{task: f, needs: {x: {size: big, holders: A}}}]", "'big' is no size"),
        ("events: [{task: f, after: [g]}]", "comes after 'g', which is no task"),
        ("events: [{task: f, priority: high}]", "priority of f is a whole number"),
        ("events: [{task: f, color: red}]", "event 1 has 'color'"),
        ("limits: {speed: 1}\nevents: [{task: f}]", "'speed' is no setting"),
    ],
)
def test_yaml_that_is_no_case_says_why(text, sentence):
    with pytest.raises(LabError, match=sentence):
        case_file.read(text, "case.yaml")


def test_no_limit_has_many_names():
    case = Case("none", ())
    for word in ("none", "inf", "off"):
        assert settings.apply(case, "message limit", word).limits.message_bytes == math.inf
    assert settings.apply(case, "outgoing connections", "none").peer.outgoing_count == math.inf
    assert settings.apply(case, "byte limit", "5 MB").limits.incoming_bytes == 5_000_000


def test_workers_on_one_host_are_written_with_their_port():
    assert address("10.0.0.1:5") == "10.0.0.1:5"
    assert label(address("A")) == "A"
    assert label("tcp://10.0.0.1:5") == "tcp://10.0.0.1:5"


@pytest.mark.parametrize("size", [Size(workers=1), Size(workers=1001), Size(deciding=0), Size(keys=1), Size(nbytes=0)])
def test_a_workload_has_a_size_that_makes_sense(size):
    with pytest.raises(LabError, match=r"workload|decide"):
        generate("all-to-all", size)


def test_workloads_are_drawn_from_the_seed():
    sizes = [generate("skewed-sizes", Size(seed=seed)).arrivals[0].event.nbytes for seed in (1, 1, 2)]
    assert sizes[0] == sizes[1] != sizes[2]
