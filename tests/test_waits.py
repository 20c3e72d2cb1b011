"""Where a task's waiting went: the shares of each instant, exact to the nanosecond."""

import pytest

from otel_worker import names, waits
from tests.desk import SECOND, Desk, ns


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_two_fetches_from_one_peer_one_after_the_other(desk: Desk):
    desk.held("x", "a")
    desk.held("y", "a")
    desk.wait(0, "sum", "x y", x="fetch", y="fetch")
    first = desk.fetch(0, "a", "x")
    desk.move(5, x="flight")
    desk.end(5, first, x="memory")
    second = desk.fetch(5, "a", "y")
    desk.end(10, second, y="memory", sum="ready")
    assert desk.waited("sum") == {"network": 10}


def test_two_fetches_from_two_peers_at_once(desk: Desk):
    desk.wait(0, "sum", "x y", x="flight", y="flight")
    one, other = desk.begin(0, "a", "x"), desk.begin(0, "b", "y")
    one.peer_unspill = ns(5) - ns(0)
    desk.end(5, one, x="memory")
    desk.end(5, other, y="memory", sum="ready")
    assert desk.waited("sum") == {"network": 2.5, "peer.unspill": 2.5}


def test_a_fetch_that_a_task_joins_late_explains_its_wait_and_no_more(desk: Desk):
    desk.wait(0, "early", "x", x="flight")
    fetch = desk.begin(0, "a", "x")
    desk.wait(3, "late", "x")
    desk.end(5, fetch, x="memory", early="ready", late="ready")
    assert desk.waited("late") == {"network": 2}
    assert desk.waited("early") == {"network": 5}


def test_a_key_shared_by_three_tells_each_its_own_whole_wait(desk: Desk):
    desk.wait(0, "one", "x", x="flight")
    fetch = desk.begin(0, "a", "x")
    desk.wait(1, "two", "x")
    desk.wait(2, "three", "x")
    desk.end(4, fetch, x="memory", one="ready", two="ready", three="ready")
    assert [desk.waited(key) for key in ("one", "two", "three")] == [{"network": 4}, {"network": 3}, {"network": 2}]


def test_a_shared_key_bears_less_than_one_that_only_this_task_wants(desk: Desk):
    desk.wait(0, "sum", "own shared", own="flight", shared="flight")
    desk.wait(0, "other", "shared")
    desk.wait(0, "third", "shared")
    one, other = desk.begin(0, "a", "own"), desk.begin(0, "b", "shared")
    other.peer_unspill = ns(4) - ns(0)
    desk.end(4, other, shared="memory", other="ready", third="ready")
    desk.end(4, one, own="memory", sum="ready")
    assert desk.waited("sum") == {"network": 3, "peer.unspill": 1}  # 1 : 1/3
    assert desk.waited("other") == {"peer.unspill": 4}


def test_three_deserialisations_behind_one_offload_thread(desk: Desk):
    desk.wait(0, "sum", "x y z", x="flight", y="flight", z="flight")
    fetches = [desk.begin(0, peer, key) for peer, key in (("a", "x"), ("b", "y"), ("c", "z"))]
    for i, fetch in enumerate(fetches):
        fetch.received = ns(0)
        fetch.offloaded = ns(0.4 * i)
        fetch.deserialized = ns(0.4 * (i + 1))
        desk.end(0.4 * (i + 1), fetch, **{str(fetch.keys[0]): "memory"}, **({"sum": "ready"} if i == 2 else {}))  # type: ignore[index]
    assert desk.waited("sum") == {"deserialize": 1.2}


def test_a_dependency_that_is_in_memory_already_bears_nothing(desk: Desk):
    desk.move(0, here="memory")
    desk.wait(1, "sum", "x", x="flight")
    fetch = desk.begin(1, "a", "x")
    desk.end(3, fetch, x="memory", sum="ready")
    assert desk.waited("sum") == {"network": 2}


def test_a_bundle_of_forty_keys_of_which_this_task_needs_three(desk: Desk):
    keys = [f"k{i}" for i in range(40)]
    desk.wait(0, "sum", "k0 k1 k2", **dict.fromkeys(keys, "flight"))
    fetch = desk.begin(0, "a", " ".join(keys))
    desk.end(8, fetch, **dict.fromkeys(keys, "memory"), sum="ready")
    assert desk.waited("sum") == {"network": 8}


def test_a_fetch_that_failed_twice_and_came_from_another_peer(desk: Desk):
    desk.held("x", "a", "b")
    desk.wait(0, "sum", "x", x="fetch")
    fetch = desk.fetch(1, "a", "x")
    desk.end(2, fetch, "network_failure", x="fetch")
    fetch = desk.fetch(3, "a", "x")
    desk.end(4, fetch, "network_failure", x="fetch")
    fetch = desk.fetch(4, "b", "x")
    desk.end(7, fetch, x="memory", sum="ready")
    assert desk.waited("sum") == {"network": 5, "queued.head_of_line": 2}
    assert [f.outcome for f in desk.fetches] == ["network_failure", "network_failure", "success"]


@pytest.mark.parametrize("busy_first", [True, False])
def test_two_holders_one_busy_and_one_in_flight(desk: Desk, busy_first: bool):
    desk.held("x", "a", "b")
    desk.wait(0, "other", "p q", p="flight", q="flight")
    at_a, at_b = desk.begin(0, "a", "p"), desk.begin(0, "b", "q")
    if busy_first:
        desk.end(0, at_a, "busy", p="fetch")
        desk.wait(0, "sum", "x", x="fetch")
    else:
        desk.wait(0, "sum", "x", x="fetch")
        desk.end(0, at_a, "busy", p="fetch")
    desk.recorder.busy_ended("a", ns(4))
    fetch = desk.fetch(4, "a", "x p")
    desk.end(6, fetch, x="memory", p="memory", sum="ready")
    assert desk.waited("sum") == {"network": 2, "queued.busy": 2, "queued.in_flight": 2}
    desk.end(6, at_b, q="memory", other="ready")


def test_reasons_that_change_several_times(desk: Desk):
    desk.held("x", "a")
    desk.wait(0, "sum", "x", x="fetch")
    desk.state.running = False
    desk.move(1)
    desk.state.running, desk.state.throttled = True, True
    desk.move(3)
    desk.state.transfer_incoming_bytes = 200
    desk.move(4)
    desk.state.throttled = False
    desk.move(8)
    fetch = desk.fetch(9, "a", "x")
    desk.end(9, fetch, x="memory", sum="ready")
    # A reason is looked at when something moves; what held until then is billed for the time before.
    assert desk.waited("sum") == {
        "queued.bytes": 4,
        "queued.count": 1,
        "queued.head_of_line": 2,
        "queued.paused": 2,
    }


def test_a_holder_that_is_added_later_shares_only_from_then_on(desk: Desk):
    desk.held("x", "a")
    desk.wait(0, "other", "p", p="flight")
    at_a = desk.begin(0, "a", "p")
    desk.wait(0, "sum", "x", x="fetch")
    desk.held("x", "a", "b")
    desk.recorder.holders_changed(["x"], desk.views, ns(4))  # type: ignore[arg-type]
    desk.end(8, at_a, p="memory", other="ready")
    fetch = desk.fetch(8, "a", "x")
    desk.end(8, fetch, x="memory", sum="ready")
    assert desk.waited("sum") == {"queued.head_of_line": 2, "queued.in_flight": 6}  # 4 + 4/2


def test_missing_counts_only_while_nothing_else_is_done(desk: Desk):
    desk.wait(0, "sum", "x y", x="missing", y="flight")
    fetch = desk.begin(0, "a", "y")
    desk.end(1, fetch, y="memory")
    late = desk.fetch(3, "b", "x")
    desk.end(4, late, x="memory", sum="ready")
    assert desk.waited("sum") == {"missing": 2, "network": 2}


def test_a_task_that_waited_for_nothing_has_no_wait(desk: Desk):
    desk.move(0, sum="executing")
    desk.move(1, sum="memory")
    [task] = desk.ended
    assert (task.waiting, task.wait_parts, task.outcome) == (0, None, "memory")


def test_a_task_that_is_cancelled_while_it_waits_is_told_its_wait_so_far(desk: Desk):
    desk.wait(0, "sum", "x", x="flight")
    fetch = desk.begin(0, "a", "x")
    desk.move(3, sum="released")
    assert desk.waited("sum") == {"network": 3}
    assert [task.outcome for task in desk.ended] == ["released"]
    desk.move(3, x="cancelled")
    desk.end(4, fetch, x="released")
    assert set(desk.recorder.sizes().values()) == {0}


def test_what_no_timeline_covers_is_other(desk: Desk):
    desk.wait(0, "sum", "x", x="released")  # computed here, or gone: no fetch
    desk.move(2, sum="ready")
    assert desk.waited("sum") == {"other": 2}


def test_integers_are_apportioned_without_a_rest():
    out: dict[str, int] = {}
    waits.apportion(10, {"a": 1, "b": 1, "c": 1}, out)
    assert sum(out.values()) == 10
    assert sorted(out.values()) == [3, 3, 4]


def test_a_request_is_split_by_what_the_peer_told_bounded_by_what_is_left(desk: Desk):
    desk.move(0, x="flight")
    fetch = desk.begin(0, "a", "x")
    fetch.peer_loop, fetch.peer_unspill, fetch.peer_serialize = 3 * SECOND, SECOND, SECOND
    assert waits.split_request(fetch, 4 * SECOND) == {
        names.PEER_UNSPILL: SECOND,
        names.PEER_SERIALIZE: SECOND,
        names.PEER_LOOP: 2 * SECOND,
    }


def test_ten_thousand_keys_queued_on_two_peers(desk: Desk):
    """Each of them leaves at a second of its own; those still lacking share that second, whatever each waits for."""
    count = 10_000
    desk.move(0, z="flight", y="flight")
    desk.begin(0, "a", "z")
    desk.end(0, desk.begin(0, "b", "y"), "busy", y="fetch")
    keys = [f"k{i}" for i in range(count)]
    for i, key in enumerate(keys):
        desk.held(key, "ab"[i % 2])
    desk.wait(0, "sum", " ".join(keys), **dict.fromkeys(keys, "fetch"))
    for i, key in enumerate(keys):
        desk.move(i + 1, **{key: "memory"}, **({"sum": "ready"} if i == count - 1 else {}))
    behind_a = sum((count - i + 1 - i % 2) // 2 / (count - i) for i in range(count))
    waited = desk.waited("sum")
    assert sum(waited.values()) == count
    assert waited["queued.in_flight"] == pytest.approx(behind_a, abs=count * 1e-9)
    assert waited["queued.busy"] == pytest.approx(count - behind_a, abs=count * 1e-9)


def test_a_task_that_comes_while_a_key_is_queued_is_told_of_the_rest_alone(desk: Desk):
    """The peer has another request until 4 s; then nothing is known to keep the key, until it is requested at 10 s."""
    desk.held("x", "a")
    desk.move(0, z="flight")
    other = desk.begin(0, "a", "z")
    desk.wait(0, "t-0", "x", x="fetch")
    for i in (1, 2, 3):
        desk.wait(i, f"t-{i}", "x")
    desk.end(4, other, z="memory")
    late = [f"t-{4 + i / 1000}" for i in range(3000)]
    for task in late:
        desk.wait(float(task[2:]), task, "x")
    fetch = desk.fetch(10, "a", "x")
    desk.end(11, fetch, x="memory", **dict.fromkeys(["t-0", "t-1", "t-2", "t-3", *late], "ready"))
    for i in range(4):
        assert desk.waited(f"t-{i}") == {"queued.in_flight": 4 - i, "queued.head_of_line": 6, "network": 1}
    for task in late:
        assert desk.waited(task) == {"queued.head_of_line": round(10 - float(task[2:]), 9), "network": 1}


def test_a_task_that_comes_while_nobody_holds_a_key_is_told_of_the_rest_alone(desk: Desk):
    desk.wait(0, "early", "x", x="missing")
    desk.wait(3, "late", "x")
    desk.move(5, x="fetch")
    fetch = desk.fetch(5, "a", "x")
    desk.end(6, fetch, x="memory", early="ready", late="ready")
    assert desk.waited("early") == {"missing": 5, "network": 1}
    assert desk.waited("late") == {"missing": 2, "network": 1}
