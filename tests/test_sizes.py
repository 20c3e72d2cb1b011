"""Nothing stays in the recorder when nothing is going on, whatever order things end in."""

from tests.desk import Desk, ns


def test_a_key_given_up_before_its_request_ended():
    desk = Desk()
    desk.wait(0, "sum", "x")
    fetch = desk.fetch(0, "a", "x")
    desk.move(1, sum="released")
    desk.move(1, x="released")
    assert desk.recorder.sizes()["peers"] == 1
    desk.end(2, fetch, "success", x="released")
    assert not any(desk.recorder.sizes().values())


def test_a_key_given_up_while_its_peer_was_busy():
    desk = Desk()
    desk.wait(0, "sum", "x")
    fetch = desk.fetch(0, "a", "x")
    desk.end(1, fetch, "busy", x="fetch")
    desk.move(1, sum="released", x="released")
    desk.recorder.busy_ended("a", ns(1.15))
    assert not any(desk.recorder.sizes().values())
