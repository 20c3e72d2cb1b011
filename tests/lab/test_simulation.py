"""The simulation: exact times, valid states at every step, every key fetched, the waits add up."""

import math
from dataclasses import replace

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_worker import names
from otel_worker.lab.demand import (
    Arrival,
    Case,
    Limits,
    Need,
    Peer,
    acquire,
    address,
    arrivals,
    backlog,
    compute,
    label,
)
from otel_worker.lab.network import Wire
from otel_worker.lab.policies import ALL_POLICIES
from otel_worker.lab.results import evaluate, parallel
from otel_worker.lab.simulation import Run
from otel_worker.lab.waits import Waits
from otel_worker.lab.workloads import WORKLOADS, Size, generate

#: round numbers: 1 ms each way, 2 ms to connect, 1 MB/s, 3 ms a request and 1 ms a key on either event loop
ROUND = Peer(latency=0.001, connect=0.002, bandwidth=1e6, request_seconds=0.003, key_seconds=0.001)


def ran(case, policy="current", **options):
    return Run(case, policy, validate=True, cpu=False, **options).run()


def facts_of(case, policy="current", **options):
    (facts,) = ran(case, policy, **options).facts.values()
    return facts


def single(*needs, **options):
    return Case("single", tuple(arrivals([compute("t", needs)])), peer=ROUND, **options)


def test_a_request_takes_the_sum_of_its_parts():
    facts = facts_of(single(Need("x", 10_000, ("A",)), Need("y", 10_000, ("A",))))
    (request,) = facts.requests
    assert request.connected == pytest.approx(0.002)
    assert request.served == pytest.approx(0.002 + 0.001 + 0.003 + 2 * 0.001)
    assert request.received == pytest.approx(0.008 + 0.02 + 0.001)
    assert request.finished == pytest.approx(0.029 + 0.003 + 2 * 0.001)
    wait = Waits(facts).of(facts.dependents["t"])
    assert {reason: round(seconds, 9) for reason, seconds in wait.items() if seconds} == {
        names.FETCH_CONNECT_DIAL: 0.002,
        names.PEER_LOOP: 0.006,
        names.NETWORK: 0.021,
        names.LOOP: 0.005,
    }


def test_a_second_request_finds_the_connection_open():
    tasks = [compute("t1", [Need("x", 10_000, ("A",))]), compute("t2", [Need("y", 10_000, ("A",))], priority=(1,))]
    first, second = facts_of(Case("two", tuple(arrivals(tasks)), peer=ROUND)).requests
    assert second.issued == first.finished
    assert second.connected == second.issued


def test_waiting_behind_a_request_in_flight_is_told():
    tasks = [compute("t1", [Need("x", 10_000, ("A",))]), compute("t2", [Need("y", 10_000, ("A",))], priority=(1,))]
    facts = facts_of(Case("two", tuple(arrivals(tasks)), peer=ROUND))
    wait = Waits(facts).of(facts.dependents["t2"])
    assert wait[names.QUEUED_IN_FLIGHT] == pytest.approx(facts.requests[0].finished)
    assert sum(wait.values()) == pytest.approx(facts.dependents["t2"].ready)


def test_a_busy_peer_is_asked_again_after_dasks_pause():
    busy = replace(ROUND, busy_for=0.1, busy_every=1.0)
    facts = facts_of(single(Need("x", 10_000, ("A",)), peers={address("A"): busy}))
    refused, served = facts.requests
    assert (refused.outcome, served.outcome) == ("busy", "success")
    assert served.issued == pytest.approx(refused.finished + 0.15)
    wait = Waits(facts).of(facts.dependents["t"])
    assert wait[names.QUEUED_BUSY] == pytest.approx(0.15)
    assert sum(wait.values()) == pytest.approx(facts.dependents["t"].ready)


def test_a_replica_is_fetched_elsewhere_at_once_when_the_first_holder_is_busy():
    busy = replace(ROUND, busy_for=0.1, busy_every=1.0)
    case = single(Need("x", 10_000, ("A", "B")), peers={address("A"): busy, address("B"): busy})
    facts = facts_of(case)
    assert [request.outcome for request in facts.requests] == ["busy", "busy", "success"]
    assert facts.requests[1].issued == facts.requests[0].finished
    assert {label(request.peer) for request in facts.requests[:2]} == {"A", "B"}


def two_askers(**peer):
    events = [Arrival(0.0, address(me), compute(f"t-{me}", [Need("x", 60_000, ("A",))])) for me in ("me1", "me2")]
    return Case("two askers", tuple(events), peer=ROUND, peers={address("A"): replace(ROUND, **peer)})


@pytest.mark.parametrize("limit", [{"outgoing_count": 1}, {"outgoing_bytes": 100_000}])
def test_a_peer_limits_what_it_sends_by_count_or_by_bytes(limit):
    facts = ran(two_askers(**limit)).facts
    assert [request.outcome for request in facts[address("me1")].requests] == ["success"]
    assert [request.outcome for request in facts[address("me2")].requests] == ["busy", "success"]


def test_below_its_limits_a_peer_serves_both_and_they_share_its_link():
    facts = ran(two_askers(outgoing_bytes=120_000)).facts
    assert [request.outcome for worker in facts.values() for request in worker.requests] == ["success", "success"]
    last = facts[address("me2")].requests[0]
    assert last.received - last.served > 0.1


def test_why_keys_are_held_back():
    tasks = [compute(f"t{i}", [Need(f"x{i}", 60_000, (f"P{i}",))], priority=(i,)) for i in range(3)]

    def reasons(**limits):
        case = Case("held back", tuple(arrivals(backlog(tasks))), limits=Limits(**limits), peer=ROUND)
        wait = evaluate("current", ran(case).facts).wait
        return {reason for reason, seconds in wait.items() if seconds > 1e-9 and reason.startswith("queued.")}

    assert reasons() == set()
    assert reasons(incoming_count=1, throttle_threshold=0) == {names.QUEUED_COUNT}
    assert reasons(incoming_bytes=60_000) == {names.QUEUED_BYTES}
    assert reasons(incoming_bytes=100_000) == {names.QUEUED_HEAD_OF_LINE}


def test_a_task_after_others_waits_for_them_and_the_scheduler():
    first = Arrival(0.0, address("me"), compute("first", []))
    then = Arrival(0.0, address("me"), compute("then", [Need("x", 1, ("A",))]), after=("first",))
    case = Case("after", (first, then), peer=ROUND, durations={"first": 0.5})
    assert facts_of(case).dependents["then"].waiting == pytest.approx(0.502)


# --- the wire -----------------------------------------------------------------------------------------------------------


def test_flows_share_links_equally_and_speed_up_when_one_ends():
    env = simpy.Environment()
    wire = Wire(env, lambda worker: replace(ROUND, bandwidth=100.0 if worker == "slow" else 1000.0))
    ends = {}

    def flow(name, sender, receiver, nbytes, start):
        yield env.timeout(start)
        yield wire.transfer(sender, receiver, nbytes)
        ends[name] = env.now

    env.process(flow("one", "a", "me", 1000, 0))
    env.process(flow("two", "b", "me", 500, 0))  # 500 B/s each: two ends at 1, one has 500 left and all the link
    env.process(flow("three", "slow", "other", 100, 0))
    env.process(flow("nothing", "a", "me", 0, 3))
    env.run()
    assert ends == {"two": pytest.approx(1.0), "one": pytest.approx(1.5), "three": pytest.approx(1.0), "nothing": 3}


def test_a_loaded_sender_gives_a_flow_less():
    env = simpy.Environment()
    wire = Wire(env, lambda worker: replace(ROUND, bandwidth=900.0, load=2 if worker == "a" else 0))
    env.run(wire.transfer("a", "me", 300))
    assert env.now == pytest.approx(1.0)


# --- every policy on everything -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ALL_POLICIES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_policy_ends_every_workload_validated(workload, policy):
    case = generate(workload, Size(workers=5, keys=6 if workload == "many-tiny-keys" else 24, deciding=2))
    case = case.with_limits(
        incoming_count=2, throttle_threshold=1_000_000, message_bytes=4_000_000, incoming_bytes=9_000_000
    )
    run = ran(case, policy)
    result = evaluate(policy, run.facts)
    assert result.unready == 0
    for state in run.states.values():
        assert state.transfer_incoming_bytes == 0
        assert not state.in_flight_workers
        assert state.fetch_count == 0
    for worker in run.facts.values():
        waits = Waits(worker)
        for dependent in worker.dependents.values():
            assert sum(waits.of(dependent).values()) == pytest.approx(dependent.ready - dependent.waiting, abs=1e-9)


cases = st.lists(
    st.tuples(
        st.integers(0, 3),  # priority
        st.integers(1, 200),  # size
        st.sets(st.sampled_from("ABCD"), min_size=1, max_size=3),
        st.integers(0, 3),  # arrives at, ms
        st.booleans(),  # as a replica
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=15, deadline=None)
@given(
    keys=cases,
    count=st.integers(1, 3),
    threshold=st.sampled_from([0, 100]),
    total=st.sampled_from([1, 150, math.inf]),
    message=st.sampled_from([1, 100, math.inf]),
)
def test_every_key_is_fetched_once_whatever_the_demand(keys, count, threshold, total, message):
    given_arrivals = []
    for i, (priority, nbytes, holders, at, replica) in enumerate(keys):
        needs = [Need(f"x{i:02}", nbytes, tuple(sorted(holders)))]
        event = acquire(needs, stimulus=f"r{i}") if replica else compute(f"t{i:02}", needs, priority=(priority,))
        given_arrivals += arrivals([event], at=at / 1000)
    limits = Limits(incoming_count=count, throttle_threshold=threshold, incoming_bytes=total, message_bytes=message)
    case = Case(
        "drawn by chance", tuple(given_arrivals), limits=limits, peers={address("B"): replace(Peer(), busy_for=0.01)}
    )
    for policy in ALL_POLICIES:
        facts = facts_of(case, policy)
        fetched = sorted(key for request in facts.requests if request.outcome == "success" for key in request.keys)
        assert fetched == [f"x{i:02}" for i in range(len(keys))], policy


def test_the_same_seed_gives_the_same_run_and_another_seed_other_choices():
    case = generate("replicas", Size(workers=8, keys=40))
    runs = [facts_of(case, "current", seed=seed).requests for seed in (0, 0, 7)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_parallel_is_weighted_by_time():
    facts = facts_of(
        Case("two", tuple(arrivals([compute("t", [Need("x", 10_000, ("A",)), Need("y", 10_000, ("B",))])])), peer=ROUND)
    )
    most, mean = parallel(facts.requests)
    assert most == 2
    first, second = sorted(request.finished for request in facts.requests)
    assert mean == pytest.approx((2 * first + (second - first)) / second)
