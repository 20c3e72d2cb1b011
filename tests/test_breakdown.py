"""Where the time went, from drawn cases: one character is 0.1 s where nothing else is said."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from otel_worker import names
from otel_worker.breakdown import (
    Node,
    critical_parts,
    grouped,
    missing,
    overtaking,
    self_check,
    tasks,
    what_if,
    why,
    worker_names,
)
from otel_worker.breakdown.apportion import apportion
from otel_worker.breakdown.critical import fetches
from otel_worker.breakdown.ours import Ours
from otel_worker.breakdown.timeline import timeline
from otel_worker.checks import check
from otel_worker.traces import Resource, Span, children
from tests.drawing import draw


def shares(drawing: str) -> dict[str, float]:
    """The parts of the one task, in seconds."""
    (task,) = tasks(Ours(draw(drawing)))
    return seconds(task.parts)


def seconds(parts: object) -> dict[str, float]:
    assert isinstance(parts, dict)
    return {path: part / 1e9 for path, part in parts.items() if part > 10_000}


def critical(drawing: str, key: str = "x") -> dict[str, float]:
    """What the wait of task `key` was for; checked to keep its sum."""
    spans = draw(drawing)
    assert check(spans) == []
    ours = Ours(spans)
    found = tasks(ours)
    (task,) = [t for t in found if t.key == key]
    parts = critical_parts(task, fetches(ours, found))
    assert sum(parts.values()) == task.total
    return {p.removeprefix("waiting."): s for p, s in seconds(dict(parts)).items() if p.startswith("waiting.")}


def near(expected: dict[str, float]) -> object:
    """Exported phases end 1 us before the next begins: nothing else is given away."""
    return pytest.approx(expected, abs=1e-5)


# --- shares: what the worker says ---------------------------------------------------------------------------------


def test_the_parts_of_a_task():
    assert shares(
        """
        task sum    |==========| key=x
          waiting   |====      | wait.network=0.3 wait.connect.dial=0.1 wait.other=0.0
          ready     |    ==    | ready.thread_slot=0.15 ready.paused=0.05
          execute   |       ===| execute.run.cpu=0.25 execute.store.spill=0.05
        """
    ) == near(
        {
            "waiting.network": 0.3,
            "waiting.connect.dial": 0.1,
            "ready.thread_slot": 0.15,
            "ready.paused": 0.05,
            "execute.run.cpu": 0.25,
            "execute.store.spill": 0.05,
            "other": 0.1,
        }
    )


def test_the_arrival_comes_before_the_span():
    assert shares("task sum |==| task.arrival=0.7\n  execute |==| execute.run.cpu=0.2") == near(
        {"arrival": 0.7, "execute.run.cpu": 0.2}
    )


def test_a_phase_that_tells_nothing_is_unexplained():
    assert shares("task sum |=====|\n  waiting |===  |") == near({"waiting.other": 0.3, "other": 0.2})


def test_phases_that_tell_more_than_the_task_took_are_not_cut():
    assert shares("task sum |=|\n  waiting |=| wait.network=0.5") == near({"waiting.network": 0.5})


def test_a_coalesced_span_stands_for_many():
    (task,) = tasks(Ours(draw("tasks inc |=====| count=40 wait.network=8.0 execute.run.cpu=12.0")))
    assert (task.count, task.prefix, task.total) == (40, "inc", 20 * 10**9)


def test_what_is_not_ours_is_no_task():
    assert tasks(Ours(draw("task sum |=|", scope="another library"))) == []


def test_the_task_knows_whose_it_is():
    (task,) = tasks(Ours(draw("task sum |=| key=x group=g worker=a computation=00c0")))
    assert (task.key, task.prefix, task.group, task.worker, task.computation) == ("x", "sum", "g", "a", "00c0")


# --- critical_path: which fetch in which phase ------------------------------------------------------------------------


def test_two_fetches_from_one_peer_one_after_the_other():
    drawing = """
        task sum             |==========| key=x
          waiting            |==========|
            fetch sum        |=====     | peer=b
              request        |=====     | request.network=0.5
            fetch sum        |==========| peer=b
              fetch.queued   |=====     | fetch.time.queued.in_flight=0.5
              request        |     =====| request.network=0.5
        """
    assert critical(drawing) == near({"queued.in_flight": 0.5, "network": 0.5})


def test_two_fetches_at_once():
    drawing = """
        task sum             |=====| key=x
          waiting            |=====|
            fetch sum        |==== | peer=b
              request        |==== | request.network=0.4
            fetch sum        |=====| peer=c
              request        |=====| request.network=0.2 request.peer_unspill=0.3
        """
    assert critical(drawing) == near({"network": 0.2, "peer.unspill": 0.3})


def test_a_fetch_that_a_task_joins_late():
    drawing = """
        task sum             |=====| key=first
          waiting            |=====|
            fetch sum        |=====| peer=b -> x
              connect        |==   |
              request        |  ===| request.network=0.3
        task sum             |   ==| key=x
          waiting            |   ==|
        """
    assert critical(drawing) == near({"network": 0.2})
    assert critical(drawing, "first") == near({"connect": 0.2, "network": 0.3})


def test_three_deserialisations_behind_one_offload_thread():
    drawing = """
        task sum                 |===============| key=x
          waiting                |============   |
            fetch sum            |====           | peer=b
              fetch.deserialize  |====           | offload.queue=0.0
            fetch sum            |========       | peer=c
              fetch.deserialize  |========       | offload.queue=0.4
            fetch sum            |============   | peer=d
              fetch.deserialize  |============   | offload.queue=0.8
          execute                |             ==|
        """
    assert critical(drawing) == near({"deserialize.queue": 0.8, "deserialize": 0.4})


def test_a_fetch_that_failed_and_the_one_from_another_peer():
    drawing = """
        task sum             |==========| key=x
          waiting            |==========|
            fetch sum        |====      | peer=b outcome=network_failure !
              connect        |====      |
                connect.dial |====      |
            fetch sum        |      ====| peer=c
              request        |      ====| request.network=0.4
        """
    assert critical(drawing) == near({"connect.dial": 0.4, "other": 0.2, "network": 0.4})


def test_the_spans_of_the_connection():
    drawing = """
        task sum                  |==========| key=x
          waiting                 |==========|
            fetch sum             |==========| peer=b
              connect             |======    |
                connect.pool      |=         |
                connect.dial      | ==       |
                connect.handshake |   ==     |
              request             |      ====| request.network=0.4
        """
    assert critical(drawing) == near(
        {"connect.pool": 0.1, "connect.dial": 0.2, "connect.handshake": 0.2, "connect": 0.1, "network": 0.4}
    )


def test_phases_too_short_for_spans_are_taken_from_the_sums():
    drawing = """
        task sum        |==========| key=x
          waiting       |==========|
            fetch sum   |==========| peer=b fetch.time.network=0.6 fetch.time.loop=0.1 fetch.time.store=0.3
              request   |  ======  | request.network=0.6
        """
    assert critical(drawing) == near({"network": 0.6, "loop": 0.1, "store": 0.3})


def test_what_the_peers_own_spans_tell_where_the_request_does_not():
    drawing = """
        task sum                     |==========| key=x worker=a
          waiting                    |==========|
            fetch sum                |==========| peer=b
              request                |==========|
                get_data             | ======== | worker=b
                  unspill            | ===      |
                  get_data.serialize |    ==    |
        """
    assert critical(drawing) == near({"peer.unspill": 0.3, "peer.serialize": 0.2, "network": 0.5})


def test_a_fetch_that_outlives_the_wait_is_cut():
    drawing = """
        task sum        |====      | key=x outcome=cancelled
          waiting       |====      |
            fetch sum   |==========| peer=b
              connect   |===       |
              request   |   ====   | request.network=0.4
        """
    assert critical(drawing) == near({"connect": 0.3, "network": 0.1})


def test_a_wait_without_a_fetch_is_unexplained():
    assert critical("task sum |===| key=x\n  waiting |===| wait.network=0.3") == near({"other": 0.3})


def test_a_task_that_links_to_the_fetch_that_served_it():
    drawing = """
        task inc        |=====| key=y
          waiting       |=====|
            fetch inc   |=====| key=f peer=b
              request   |=====| request.network=0.5
        task sum        | ====| key=x -> f
          waiting       | ====|
        """
    assert critical(drawing) == near({"network": 0.4})


def random_fetches(numbers: random.Random) -> str:
    def bar(start: int, length: int) -> str:
        return f"{' ' * start}{'=' * length}".ljust(20)

    lines = [f"task sum |{'=' * 20}| key=x", f"  waiting |{'=' * 20}|"]
    for _ in range(numbers.randrange(5)):
        start = numbers.randrange(19)
        length = numbers.randrange(1, 20 - start + 1)
        lines.append(f"    fetch sum |{bar(start, length)}| peer=b fetch.time.network=0.{numbers.randrange(10)}")
        at = start
        for name in ("fetch.queued", "connect", "request", "fetch.deserialize"):
            part = numbers.randrange(start + length - at + 1)
            if part:
                lines.append(f"      {name} |{bar(at, part)}| offload.queue=0.{numbers.randrange(9)}")
            at += part
    return "\n".join(lines)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_whatever_is_drawn_the_parts_add_up(numbers):
    spans = draw(random_fetches(numbers))
    ours = Ours(spans)
    found = tasks(ours)
    held = fetches(ours, found)
    (group,), _ = grouped([replace(t, parts=critical_parts(t, held)) for t in found])
    assert self_check(group.tree) == []
    assert group.tree.seconds == pytest.approx(2.0)
    below = children(spans)
    for fetch in ours[names.FETCH]:
        stretches = timeline(fetch, below)
        assert stretches[0].start == fetch.start
        assert stretches[-1].end == fetch.end
        assert all(one.end == other.start for one, other in pairwise(stretches))


@given(st.integers(0, 10**18), st.dictionaries(st.text(max_size=2), st.floats(0, 1e9), min_size=1))
def test_no_nanosecond_is_lost_in_sharing(length, weights):
    parts = apportion(length, weights)
    assert sum(parts.values()) == length
    assert all(part > 0 for part in parts.values())


# --- trees ----------------------------------------------------------------------------------------------------------

TWO = """
task sum    |==========| key=x worker=a
  waiting   |====      | wait.network=0.3 wait.deserialize=0.05 wait.deserialize.queue=0.05
  execute   |     =====| execute.run.cpu=0.5
task sum    |====================| key=y worker=b
  waiting   |============        | wait.network=1.2
  execute   |            ========| execute.run.cpu=0.8
task inc    |==| key=i worker=a
  execute   |==| execute.run.cpu=0.2
"""


def outline(node: Node, depth: int = 0) -> list[str]:
    line = f"{'  ' * depth}{node.name or 'all'} {node.seconds:.2f} of {node.tasks}"
    return [line, *(text for child in node.children for text in outline(child, depth + 1))]


def test_a_tree_adds_up():
    (group,), left = grouped(tasks(Ours(draw(TWO))))
    assert self_check(group.tree) == []
    assert left.groups == 0
    assert outline(group.tree) == [
        "all 3.20 of 3",
        "  waiting 1.60 of 2",
        "    network 1.50 of 2",
        "    deserialize 0.10 of 1",
        "      queue 0.05 of 1",
        "  execute 1.50 of 3",
        "    run 1.50 of 3",
        "      cpu 1.50 of 3",
        "  other 0.10 of 1",
    ]
    (deserialize,) = [n for n in group.tree.children[0].children if n.name == "deserialize"]
    assert deserialize.own == pytest.approx(0.05)
    run = group.tree.children[1]
    assert (run.mean, run.p50, run.p95, run.max) == pytest.approx((0.5, 0.5, 0.8, 0.8))
    assert run.share == pytest.approx(1.5 / 3.2)


def test_trees_by_prefix_and_worker_most_seconds_first():
    groups, left = grouped(tasks(Ours(draw(TWO))), ("prefix", "worker"), most=2)
    assert [(g.by, round(g.tree.seconds, 3)) for g in groups] == [
        ({"prefix": "sum", "worker": "b"}, 2.0),
        ({"prefix": "sum", "worker": "a"}, 1.0),
    ]
    assert (left.groups, left.tasks) == (1, 1)
    assert left.seconds == pytest.approx(0.2)


def test_coalesced_tasks_count_in_sums_and_means():
    drawing = "tasks inc |==| count=9 execute.run.cpu=0.9\ntask inc |=| key=i\n  execute |=| execute.run.cpu=0.1"
    (group,), _ = grouped(tasks(Ours(draw(drawing))))
    assert self_check(group.tree) == []
    assert group.tree.tasks == 10
    assert [group.tree.seconds, group.tree.mean, group.tree.max] == pytest.approx([1.0, 0.1, 0.1])


def test_a_tree_of_nothing():
    assert grouped([]) == ([], grouped([])[1])


def test_an_instantaneous_task():
    (group,), _ = grouped(tasks(Ours(draw("task sum || key=x"))))
    assert (group.tree.tasks, group.tree.seconds) == (1, 0)


def test_self_check_finds_what_does_not_add_up():
    (group,), _ = grouped(tasks(Ours(draw(TWO))))
    assert len(self_check(replace(group.tree, seconds=9.0))) == 1
    assert len(self_check(replace(group.tree, seconds=1.0, own=-2.2))) == 1


# --- why ------------------------------------------------------------------------------------------------------------

DISK = """
task sum             |===================================| key=x worker=a
  waiting            |===============================    | wait.peer.unspill=2.4 wait.network=0.7
    fetch sum        |====                               | peer=tcp://quick
      request        |====                               | request.network=0.4
    fetch sum        |===============================    | peer=tcp://slow
      request        |===============================    | request.network=0.7 request.peer_unspill=2.4
  execute            |                                ===| execute.run.cpu=0.3
"""


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        (DISK, "waited 3.1 s, 2.4 s of it for tcp://slow to read from disk"),
        (
            "task a |=========|\n  ready |========| ready.thread_slot=0.7 ready.paused=0.1",
            "was ready but did not run for 800 ms, 700 ms of it for a free thread",
        ),
        (
            "task a |=========|\n  execute |========| execute.run.cpu=0.2 execute.store.spill=0.6",
            "was executing for 800 ms, 600 ms of it to spill other values to make room for its result",
        ),
        ("task a |===|\n  waiting |===| wait.peer.serialize=0.3", "waited 300 ms, all of it for a peer to serialize"),
        ("task a |===|\n  waiting |===| wait.something.new=0.3", "all of it in waiting.something.new"),
        ("task a |===|", "spent 300 ms between its phases"),
        (
            "task a |===| task.arrival=1.0\n  execute |===| execute.run.cpu=0.3",
            "took 1.0 s, all of it to decode what the scheduler sent, imports included",
        ),
    ],
)
def test_one_sentence_explains(drawing, sentence):
    ours = Ours(draw(drawing))
    (reason,) = why(tasks(ours), ours, 5, {})
    assert sentence in reason.sentence


def test_the_slowest_come_first():
    ours = Ours(draw(TWO))
    assert [r.key for r in why(tasks(ours), ours, 2, {})] == ["y", "x"]
    assert why(tasks(ours), ours, 0, {}) == []


# --- producers overtaking --------------------------------------------------------------------------------------------


def test_producers_that_ran_while_others_waited():
    drawing = """
        task sum    |==========| key=x worker=a task.dependencies=2
          waiting   |========  |
        task load   |===       | key=l1 worker=a task.dependencies=0 nbytes=100
          execute   | ==       |
        task load   |=======   | key=l2 worker=a task.dependencies=0 nbytes=50
          execute   |  ====    |
        task load   |          ==| key=l3 worker=a task.dependencies=0 nbytes=1000
          execute   |          ==|
        task load   |=======   | key=l4 worker=b task.dependencies=0 nbytes=1000
          execute   |=======   |
        task inc    |=======   | key=i worker=a task.dependencies=1 nbytes=1000
          execute   |=======   |
        """
    (pair,) = overtaking(tasks(Ours(draw(drawing))))
    assert (pair.waiting, pair.producer) == ("sum", "load")
    assert pair.seconds == pytest.approx(0.5, abs=1e-5)
    assert pair.share == pytest.approx(0.5 / 0.8, abs=1e-4)
    assert (pair.waited_tasks, pair.produced_tasks, pair.produced_bytes) == (1, 2, 150)


def test_nobody_waited():
    assert overtaking(tasks(Ours(draw("task load |==| task.dependencies=0\n  execute |==|")))) == []


# --- what if --------------------------------------------------------------------------------------------------------


def test_the_critical_path_without_its_connections():
    drawing = """
        compute sum        |                    ====================| computation=c
        task inc           |                    =====               | key=i
          execute          |                    =====               | execute.run.cpu=0.5
        task inc           |                    ===                 | key=j
          execute          |                    ===                 | execute.run.cpu=0.3
        task sum           |                          ==============| key=x
          waiting          |                          ==========    | wait.connect.dial=0.7 wait.network=0.3
            fetch sum      |                          ==========    | peer=b
              connect      |                          =======       |
                connect.dial |                        =======       |
              request      |                                 ===    | request.network=0.3
          execute          |                                    ====| execute.run.cpu=0.4
        """
    spans = draw(drawing)
    compute = spans[0]
    mine = [
        replace(s, attributes={**s.attributes, names.COMPUTATION: compute.span_id}) if s.operation == "task" else s
        for s in spans
    ]
    ours = Ours(mine)
    connections, network = what_if(tasks(ours), ours)
    assert (connections.part, network.part) == ("connections", "network")
    assert connections.name == "compute sum"
    assert connections.seconds == pytest.approx(2.0, abs=1e-4)
    assert connections.saved == pytest.approx(0.7, abs=1e-4)
    assert network.saved == pytest.approx(0.3, abs=1e-4)


# --- what is missing ------------------------------------------------------------------------------------------------


def told(spans: list[Span]) -> str:
    ours = Ours(spans)
    return " ".join(missing(ours, tasks(ours), {}))


def test_sound_spans_miss_nothing():
    assert told(draw(TWO)) == ""


@pytest.mark.parametrize(
    ("drawing", "words"),
    [
        ("tasks inc |=| count=7", "Sums only of 7 tasks"),
        ("task a |=|\n  waiting |==|", "1 time a span breaks a rule"),
        ("spill |===|", "0.3 s of spilling by memory monitors (1 span) stand under no task"),
        ("fetch replica |==| fetch.reason=replica", "0.2 s of fetching replicas that no task asked for (1 span)"),
    ],
)
def test_what_is_missing_is_said(drawing, words):
    assert words in told(draw(drawing))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "request",
            "1 of 2 requests went to peers without otel_worker (tcp://x): what happened there counts as network.",
        ),
        ("shuffle.send", "1 of 2 shuffle sends went to peers without otel_worker (tcp://x): what happened there"),
    ],
)
def test_peers_without_us(name: str, words: str):
    spans = draw(f"{name} |==| peer=tcp://x\n{name} |==| peer=tcp://y")
    for span, known in zip(spans, (False, True), strict=True):
        attributes: Any = span.attributes
        attributes["dask.peer.instrumented"] = known
    assert words in told(spans)


def test_spans_that_the_workers_did_not_record():
    ours = Ours(draw(TWO))
    (sentence,) = missing(ours, tasks(ours), {"recorded": 8, "dropped": 1200, "coalesced": 0, "unsampled": 3})
    assert sentence == "By the workers' own count 8 spans were recorded, others not: 1,200 dropped, 3 unsampled."


def test_workers_are_called_by_their_names():
    ours = Ours(draw(DISK.replace("worker=a", "worker=tcp://a worker.name=ann", 1)))
    found = tasks(ours)
    assert worker_names(found) == {"tcp://a": "ann"}
    (reason,) = why(found, ours, 1, {"tcp://slow": "bob"})
    assert (reason.worker, reason.peer) == ("tcp://a", "tcp://slow")
    assert "for bob (tcp://slow) to read from disk" in reason.sentence


def test_remote_halves_that_were_not_seen():
    (request,) = draw("request |=| peer=tcp://plain")
    unseen = replace(request, attributes={**request.attributes, names.PEER_INSTRUMENTED: False})
    assert "1 of 1 request went to peers without otel_worker (tcp://plain)" in told([unseen])


def test_tasks_of_which_only_phases_came():
    orphans = [replace(s, parent_id="00000000000000ff") for s in draw("waiting |=|\nexecute |=|")]
    assert "Of 1 task only some phases came" in told(orphans)


def test_foreign_spans():
    assert "None of the 1 span is from otel_worker" in told(draw("GET / |=|", scope="requests"))


def test_a_peer_that_notes_late_that_its_reply_is_out_has_no_other_clock():
    request, served = draw("request |  ==   |\n  get_data |   ====|")
    other = replace(served, resource=Resource({"service.name": "w", "host.name": "h2"}))
    assert "clocks" not in told([request, other])


def test_clocks_that_differ_between_hosts():
    request, served = draw("request |  ==  |\n  get_data |==  |")
    other = replace(served, resource=Resource({"service.name": "w", "host.name": "h2"}))
    assert "The clocks of dask-worker-client and h2 differ by 200.0 ms or more" in told([request, other])


def test_a_phase_too_short_for_a_span_is_told_by_the_task():
    drawn = draw(
        "task x |==| key=k worker=a dask.wait.network=0.0004 dask.ready.thread_slot=0.0002\n  execute | =| dask.execute.run.cpu=0.1"
    )
    [task] = tasks(Ours(drawn))
    assert task.parts["waiting.network"] == 400_000
    assert task.parts["ready.thread_slot"] == 200_000
    assert sum(task.parts.values()) == task.span.duration


def test_the_sentence_names_the_key_that_blocked_the_loop():
    drawn = draw("task x |=====| key=k worker=a\n  waiting |=====| wait.loop=0.5 dask.event_loop.blocked_by=culprit")
    [reason] = why(tasks(Ours(drawn)), Ours(drawn), 1, {})
    assert reason.sentence.endswith("because the worker's own event loop was busy, blocked by culprit")
