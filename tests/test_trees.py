"""Trees of spans as text, and the rules that sound spans keep."""

import msgspec
import pytest

from otel_worker import names
from otel_worker.checks import check
from otel_worker.traces import Link, Resource, Span
from otel_worker.trees import format_bytes, format_seconds, subtree, tree
from tests.drawing import draw

SOUND = """
compute sum                    |====================|
  submit                       |=                   |
  task inc                     | ===                | key=i worker=b
    execute                    | ===                |
      run                      | ===                |
  task sum                     |    ============    | key=x worker=a outcome=memory
    waiting                    |    ========        | wait.network=0.6 wait.connect.dial=0.1 wait.other=0.1
      fetch sum                |    ========        | key=i peer=b -> i
        connect                |    =               | 
        request                |     =====          | 
          get_data             |      ==            | worker=b
        fetch.deserialize      |          ==        | 
    execute                    |            ====    | 
      run                      |             ==     | 
"""  # noqa: W291  blank after the bar


def test_children_stand_below_their_parents_by_start():
    assert tree(reversed(draw(SOUND))) == [
        "compute sum",
        "  submit",
        "  task inc",
        "    execute",
        "      run",
        "  task sum",
        "    waiting",
        "      fetch sum",
        "        connect",
        "        request",
        "          get_data",
        "        fetch.deserialize",
        "    execute",
        "      run",
    ]


def test_links_name_their_target_and_its_key():
    assert "      fetch sum" in tree(draw(SOUND), links=True)
    assert "        -> task inc (i)" in tree(draw(SOUND), links=True)


def test_a_link_to_nowhere_says_so():
    assert tree(draw("a |=| -> nothing"), links=True) == ["a", "  -> 000000000000dead (not in the data)"]


def test_a_part_of_a_trace_knows_the_rest():
    drawn = draw(SOUND)
    (fetch,) = [s for s in drawn if s.name == "fetch sum"]
    assert tree([fetch], links=True, among=drawn) == ["fetch sum", "  -> task inc (i)"]


def test_seconds_and_details():
    drawn = draw("fetch sum |===| key=x worker=a peer=b outcome=busy fetched=1500000 !")
    assert tree(drawn, seconds=True, details=True) == [
        "fetch sum  300.0 ms  dask-worker-a  x  busy  <- b  1.5 MB  ERROR"
    ]


def test_an_orphan_is_a_root_that_says_so():
    assert tree([Span("t", "1", "9", "run", 0, 1)]) == ["run (parent not in the data)"]


def test_a_cycle_is_shown_once():
    assert tree([Span("t", "1", "2", "a", 0, 5), Span("t", "2", "1", "b", 1, 2)]) == ["a", "  b"]


def test_a_trace_deeper_than_pythons_stack():
    deep = [Span("t", str(i + 1), str(i) if i else "", "s", i, 10**6) for i in range(5_000)]
    assert len(tree(deep)) == 5_000
    assert check(deep) == []


def test_subtree():
    drawn = draw(SOUND)
    (fetch,) = [s for s in drawn if s.name == "fetch sum"]
    assert [s.name for s in subtree(drawn, fetch)] == [
        "fetch sum",
        "connect",
        "request",
        "get_data",
        "fetch.deserialize",
    ]


@pytest.mark.parametrize(
    ("nanoseconds", "text"), [(1_500_000_000, "1.50 s"), (2_000_000, "2.0 ms"), (7_000, "7 us"), (0, "0 us")]
)
def test_seconds_in_words(nanoseconds, text):
    assert format_seconds(nanoseconds) == text


def test_bytes_in_words():
    assert [format_bytes(n) for n in (0, 999, 1_000, 2.5e9, 7e15)] == ["0 B", "999 B", "1.0 kB", "2.5 GB", "7000.0 TB"]


def test_sound_spans_break_no_rule():
    assert check(draw(SOUND)) == []


@pytest.mark.parametrize(
    ("drawing", "words"),
    [
        ("task a |==  |\n  execute | ===|", "execute (0000000000000002) ends 1"),
        ("task a | == |\n  execute |===|", "starts 100000000 ns before its parent task a"),
        ("task a |====|\n  waiting |==|\n  ready | ==|", "waiting (0000000000000002) overlaps ready"),
        ("task a |=| -> nothing", "a link to 000000000000dead, which is not there"),
        ("task a |=|\n  waiting |=| -> 'task a'", "a link to its own parent"),
        ("waiting |==| wait.network=0.1", "sum to -0.100000 s more"),
        ("waiting |==| wait.network=0.3 wait.other=-0.1", "a negative dask.wait.other"),
        ("ready |==| ready.thread_slot=0.5", "sum to +0.300000 s more"),
    ],
)
def test_a_broken_rule_is_one_sentence(drawing, words):
    (sentence,) = check(draw(drawing))
    assert words in sentence


def test_a_missing_parent():
    (sentence,) = check([Span("t", "1", "9", "run", 0, 1)])
    assert "the parent 9, which is not there" in sentence


def test_a_negative_duration():
    (sentence,) = check([Span("t", "1", "", "run", 5, 1)])
    assert "ends 4 ns before it starts" in sentence


def test_phases_may_not_touch():
    task = Span("t", "1", "", "task a", 0, 9_000, scope=names.SCOPE)
    waiting = Span("t", "2", "1", "waiting", 0, 5_000, scope=names.SCOPE)
    ready = Span("t", "3", "1", "ready", 5_000, 9_000, scope=names.SCOPE)
    (sentence,) = check([task, waiting, ready])
    assert "touches" in sentence


def test_too_many_links():
    targets = [Span("t", str(i), "", "task a", 0, 1) for i in range(21)]
    links = tuple(Link("t", s.span_id) for s in targets)
    (sentence,) = check([*targets, Span("t", "x", "", "fetch a", 0, 1, links=links, scope=names.SCOPE)])
    assert "21 links" in sentence


OUTLIVING = "task a |===  | outcome={}\n  waiting |===  |\n    fetch a | ====|"


def test_a_fetch_may_outlive_a_dependent_that_is_gone_only():
    assert check(draw(OUTLIVING.format("cancelled"))) == []
    assert check(draw(OUTLIVING.format("released"))) == []
    assert len(check(draw(OUTLIVING.format("memory")))) == 1


def test_clocks_of_two_processes_are_not_compared():
    apart = "request |=  | worker=a\n  get_data | ==| worker=b"
    assert check(draw(apart)) == []
    same_resource = [msgspec.structs.replace(s, resource=Resource()) for s in draw(apart)]
    assert check(same_resource) == []


def test_the_users_own_spans_are_the_users():
    assert check(draw("run |=  |\n  mine | ==|", scope="mine")) == []
