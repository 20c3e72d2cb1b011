"""The figures of the discussion: what each policy asks for in its first round, exactly."""

import gc
import math

import pytest
from distributed.worker_state_machine import (
    AcquireReplicasEvent,
    FreeKeysEvent,
    GatherDep,
    GatherDepBusyEvent,
    GatherDepSuccessEvent,
    RefreshWhoHasEvent,
    RetryBusyWorkerEvent,
    WorkerState,
)

from otel_worker.lab.demand import Case, Limits, Need, acquire, address, arrivals, backlog, compute, label
from otel_worker.lab.late import StartGatherEvent
from otel_worker.lab.policies import ALL_POLICIES, POLICIES, VARIANTS, overrides, summary
from otel_worker.lab.simulation import Run, first_round

#: policies that send the first key of a worker alone
ONE_KEY_FIRST = {"legacy-eager", "legacy-eager-breadth-first"}


def asked(case, policy, **options):
    """First round as {peer: keys}, in the order of asking."""
    return {label(peer): keys for peer, keys, _ in first_round(case, policy, validate=True, **options)}


def queue(*columns, **limits):
    """Keys that are all queued before the first decision, most urgent first: 'A' is a byte on A, ('C', 1000) more on C."""
    pairs = [column if isinstance(column, tuple) else (column, 1) for column in columns]
    events = [
        compute(f"task{i}", [Need(f"key{i}", nbytes, (peer,))], priority=(i,)) for i, (peer, nbytes) in enumerate(pairs)
    ]
    return Case("queue", tuple(arrivals(backlog(events))), limits=Limits(**limits))


@pytest.fixture
def no_gc():
    """A hundred thousand tasks a test: the cyclic garbage collector would be half of its time."""
    gc.disable()
    yield
    gc.enable()


def state_of(policy, **options):
    state = ALL_POLICIES[policy](address=address("me"), **options)
    if hasattr(state, "WALK"):
        state.WALK = 50
    return state


def gathers(state, *events):
    return [instruction for instruction in state.handle_stimulus(*events) if isinstance(instruction, GatherDep)]


def requests_of(state, *events):
    """What is asked, with the keys of late-binding's requests chosen at once."""
    for instruction in gathers(state, *events):
        if instruction.to_gather:
            yield label(instruction.worker), sorted(instruction.to_gather)
        else:
            start = StartGatherEvent(worker=instruction.worker, stimulus_id="start")
            yield from ((label(each.worker), sorted(each.to_gather)) for each in gathers(state, start))


def in_turn(keys):
    """Replicas of one byte on a, b, c in turn: all of one priority."""
    who_has = {f"x-{i:05}": [address("abc"[i % 3])] for i in range(keys)}
    return AcquireReplicasEvent(who_has=who_has, nbytes=dict.fromkeys(who_has, 1), stimulus_id="acquire")


IN_TURN = {
    "current": {"a": 50, "b": 40},
    "legacy-deferred": {"a": 50, "b": 40},
    "legacy-eager": {"a": 1, "b": 1, "c": 1},
    "global-priority": {"a": 30, "b": 30, "c": 30},
}


@pytest.mark.parametrize("policy", IN_TURN)
def test_99999_keys_on_three_workers_in_turn(policy, no_gc):
    state = state_of(policy, validate=False, transfer_incoming_bytes_limit=90, transfer_message_bytes_limit=50)
    asked = {worker: len(keys) for worker, keys in requests_of(state, in_turn(99_999))}
    assert asked == IN_TURN[policy]


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_999_keys_on_three_workers_in_turn_validated(policy):
    state = state_of(policy, validate=True, transfer_incoming_bytes_limit=90, transfer_message_bytes_limit=50)
    asked = {worker: len(keys) for worker, keys in requests_of(state, in_turn(999))}
    state.validate_state()
    expected = {
        **{policy: {"a": 50, "b": 40} for policy in ALL_POLICIES},
        **IN_TURN,
        "breadth-first": {"c": 50, "b": 40},  # other ties between workers, nothing else
        "legacy-eager-breadth-first": {"a": 1, "b": 1, "c": 1},
        "merged": {"a": 30, "b": 30, "c": 30},
        "global-priority-connections": {"a": 30, "b": 30, "c": 30},
    }
    assert asked == expected[policy]


def test_a_small_key_on_a_then_a_big_one_on_c_then_five_on_a():
    case = queue("A", ("C", 1000), *"AAAAA", incoming_bytes=100)
    assert asked(case, "global-priority") == {"A": 1, "C": 1}
    assert asked(case, "current") == {"A": 6}

    (facts,) = Run(case, "current", validate=True).run().facts.values()
    assert [(label(request.peer), request.nbytes) for request in facts.requests] == [("A", 6), ("C", 1000)]
    assert facts.requests[1].issued == facts.requests[0].finished


def test_a_b_c_then_five_on_a_with_three_connections():
    case = queue(*"ABCAAAAA", incoming_count=3, throttle_threshold=0, message_bytes=math.inf)
    assert asked(case, "current") == {"A": 6, "B": 1, "C": 1}
    assert asked(case, "global-priority-connections") == {"A": 1, "B": 1, "C": 1}  # A's five are left behind
    assert asked(case, "global-priority") == {"A": 6, "B": 1, "C": 1}


def test_a_fourth_worker_waits_for_one_of_three_connections():
    case = queue(*"ABCDA", incoming_count=3, throttle_threshold=0)
    assert asked(case, "global-priority") == {"A": 2, "B": 1, "C": 1}
    (facts,) = Run(case, "global-priority", validate=True).run().facts.values()
    assert [label(request.peer) for request in facts.requests] == ["A", "B", "C", "D"]


@pytest.mark.parametrize("policy", ALL_POLICIES)
@pytest.mark.parametrize("event", ["compute-task", "acquire-replicas"])
def test_two_dependencies_on_one_worker_are_one_request(policy, event):
    needs = [Need("f2", 1, ("B",)), Need("f3", 1, ("B",))]
    stimulus = compute("f1", needs) if event == "compute-task" else acquire(needs)
    ((peer, keys),) = requests_of(state_of(policy), stimulus)
    assert peer == "B"
    if policy in ONE_KEY_FIRST:
        assert len(keys) == 1  # the first to reach `fetch` goes alone, the other waits for the answer
    else:
        assert keys == ["f2", "f3"]


def test_merged_decides_a_key_at_a_time_and_merges():
    state = state_of("merged")
    (request,) = state.handle_stimulus(compute("f1", [Need("f2", 1, ("B",)), Need("f3", 2, ("B",))]))
    assert state.decisions == 2
    assert (request.to_gather, request.total_nbytes) == ({"f2", "f3"}, 3)
    assert state.transfer_incoming_bytes == 3


def test_keys_set_aside_come_back_when_a_holder_leaves_busy_or_flight_or_a_new_one_appears():
    state = state_of("global-priority")
    assert list(requests_of(state, acquire([Need("x1", 1, ("a",))], stimulus="1"))) == [("a", ["x1"])]
    assert list(requests_of(state, acquire([Need("x2", 1, ("a",))], stimulus="2"))) == []
    assert len(state.queue) == 0  # set aside: `a` is in flight
    done = GatherDepSuccessEvent(worker=address("a"), total_nbytes=1, data={"x1": 1}, stimulus_id="3")
    assert list(requests_of(state, done)) == [("a", ["x2"])]

    busy = GatherDepBusyEvent(worker=address("a"), total_nbytes=1, stimulus_id="4")
    assert gathers(state, busy) == []
    assert len(state.queue) == 0
    (again,) = gathers(state, RetryBusyWorkerEvent(worker=address("a"), stimulus_id="5"))
    assert again.to_gather == {"x2"}

    gathers(state, acquire([Need("x3", 1, ("a",))], stimulus="6"))
    (elsewhere,) = gathers(state, RefreshWhoHasEvent(who_has={"x3": [address("a"), address("b")]}, stimulus_id="7"))
    assert (label(elsewhere.worker), elsewhere.to_gather) == ("b", {"x3"})
    state.validate_state()


# --- 3A: replay ---------------------------------------------------------------------------------------------------------


def three_messages():
    """x, y and z on B for three tasks; x and y are known before the request is sent, z comes after."""
    tasks = [compute(f"task-{key}", [Need(key, 1, ("B",))], priority=(i,)) for i, key in enumerate("xyz")]
    case = arrivals(tasks[:2]) + arrivals(tasks[2:], at=0.004)
    return Case("three messages", tuple(case))


def happened(policy):
    """The keys of each request, and the log of events that a cluster dump would contain."""
    run = Run(three_messages(), policy, operations=False, cpu=False).run()
    (facts,) = run.facts.values()
    (state,) = run.states.values()
    return [request.keys for request in facts.requests], list(state.stimulus_log)


def replayed(policy, log):
    """The keys of each request that a fresh state issues when it is given the log's events, one by one."""
    state = state_of(policy, validate=False)  # the log has no run_spec, which validation wants
    for event in log:
        for instruction in gathers(state, event):
            if instruction.to_gather:
                yield tuple(sorted(instruction.to_gather))


@pytest.mark.parametrize(
    ("policy", "requests"),
    [
        ("current", [("x",), ("y", "z")]),
        ("late-binding", [("x", "y"), ("z",)]),
        ("global-priority", [("x",), ("y", "z")]),
    ],
)
def test_a_replay_of_the_events_gives_the_same_requests(policy, requests):
    keys, log = happened(policy)
    assert keys == requests
    assert list(replayed(policy, log)) == requests


def test_a_replay_of_mutating_is_another_history():
    keys, log = happened("mutating")
    assert keys == [("x", "y"), ("z",)]
    issued = []
    with pytest.raises(KeyError, match="B:1"):  # the answer to a request that was never issued in the replay
        issued.extend(replayed("mutating", log))
    # As issued, before y was added. No event says when the first request was sent, so z joined it, too, and counts as
    # missing at B when the first answer comes.
    state = state_of("mutating", validate=False)
    x_and_y, z, answer = log[:2], log[2], log[3]
    (request,) = gathers(state, *x_and_y)
    assert request.to_gather == {"x", "y"}
    assert gathers(state, z) == []
    assert request.to_gather == {"x", "y", "z"}
    assert gathers(state, answer) == []
    assert state.tasks["z"].state == "missing"
    assert state.transfer_incoming_bytes == 1  # for ever


# --- 3C -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits", [{}, {"incoming_count": 2, "throttle_threshold": 0}, {"incoming_bytes": 40, "message_bytes": 20}]
)
def test_breadth_first_asks_for_the_same(limits):
    """Every key has its own priority: what Dask decides, it decides after all transitions in either order."""
    columns = [("ABCDE"[i * 7 % 5], 1 + i % 9) for i in range(60)]
    histories = []
    for policy in ("current", "breadth-first"):
        (facts,) = Run(queue(*columns, **limits), policy, validate=True).run().facts.values()
        histories.append([(request.peer, request.keys, request.issued) for request in facts.requests])
    assert histories[0] == histories[1]
    assert len(histories[0]) >= 5


# --- what a policy is ---------------------------------------------------------------------------------------------------


def test_every_policy_is_dasks_worker_state():
    assert all(issubclass(policy, WorkerState) for policy in ALL_POLICIES.values())
    assert len(POLICIES) == 9
    assert not set(POLICIES) & set(VARIANTS)


def test_overrides_are_told():
    assert overrides(ALL_POLICIES["current"]) == []
    assert overrides(ALL_POLICIES["breadth-first"]) == ["_ensure_communicating", "_transitions"]
    assert overrides(ALL_POLICIES["legacy-deferred"]) == ["__init__", "_select_workers_for_gather", "_transition"]
    assert overrides(ALL_POLICIES["late-binding"]) == ["_ensure_communicating", "_handle_event"]
    assert all(summary(policy) for policy in ALL_POLICIES.values())


@pytest.mark.parametrize("policy", ALL_POLICIES)
def test_what_was_freed_or_lost_is_not_asked_for(policy):
    """Keys leave `fetch` by other doors than flight, too."""
    state = state_of(policy, validate=True)
    assert len(list(requests_of(state, compute("t1", [Need("x", 1, ("a",))])))) == 1
    if policy == "mutating":
        state.acted_on(address("a"))
    held_up = [compute(f"t{key}", [Need(key, 1, ("a",))]) for key in ("freed", "lost", "kept")]
    assert list(requests_of(state, *held_up)) == []  # a is in flight
    assert list(requests_of(state, FreeKeysEvent(keys=["tfreed", "freed"], stimulus_id="free"))) == []
    holders = {"lost": [], "kept": [address("a"), address("b")]}
    assert list(requests_of(state, RefreshWhoHasEvent(who_has=holders, stimulus_id="refresh"))) == [("b", ["kept"])]
    state.validate_state()
    done = GatherDepSuccessEvent(worker=address("a"), total_nbytes=1, data={"x": None}, stimulus_id="done")
    assert list(requests_of(state, done)) == []
    assert state.tasks["lost"].state == "missing"
    assert "freed" not in state.tasks
    state.validate_state()
