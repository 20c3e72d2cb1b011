"""How the exit of a process is bounded, with providers that hang at will."""

import asyncio
import atexit
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from otel_worker import endings
from otel_worker.endings import Endings


class Provider:
    """As the SDK's: it registers its own shutdown."""

    def __init__(self, hangs: threading.Event | None = None) -> None:
        self.calls: list[str] = []
        self._hangs = hangs
        self._atexit_handler: Callable[[], None] | None = atexit.register(self.shutdown)

    def shutdown(self) -> None:
        self._did("shutdown")
        self._atexit_handler = None

    def force_flush(self, timeout_millis: int) -> None:
        self._did(f"flush {timeout_millis}")

    def _did(self, what: str) -> None:
        if self._hangs is not None:
            self._hangs.wait(60)
        self.calls.append(what)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What `atexit` would call, first to last registered."""
    held: list[object] = []

    def register(function: object) -> object:
        held.append(function)
        return function

    def unregister(function: object) -> None:
        held[:] = [other for other in held if other != function]

    monkeypatch.setattr(atexit, "register", register)
    monkeypatch.setattr(atexit, "unregister", unregister)
    return held


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_it_takes_the_place_of_the_providers_own_exit_and_gives_it_back(registered: list[object]):
    provider, ended = Provider(), []
    end = Endings(lambda: ended.append("ended"))
    end.bound([provider])
    end.bound([provider])
    assert registered == [end._exit]
    end._exit()
    assert (ended, provider.calls) == (["ended"], ["shutdown"])

    other = Provider()
    end.bound([other])
    end.release()
    assert registered == [other.shutdown]


def test_what_the_user_shut_down_or_keeps_for_himself_is_left_alone(registered: list[object]):
    shut, own = Provider(), Provider()
    own._atexit_handler = None
    end = Endings(lambda: None)
    end.bound([shut, own, object()])
    shut.shutdown()
    end._exit()
    assert (shut.calls, own.calls) == (["shutdown"], [])


@pytest.mark.usefixtures("registered")
def test_a_provider_that_hangs_does_not_keep_the_others(hangs: threading.Event, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endings, "LIMIT", 0.3)
    stuck, fine = Provider(hangs), Provider()
    end = Endings(lambda: None)
    end.bound([stuck, fine])
    began = time.monotonic()
    end._exit()
    assert 0.3 <= time.monotonic() - began < 2
    assert (stuck.calls, fine.calls) == ([], ["shutdown"])


@pytest.mark.usefixtures("registered")
def test_flush_and_exit_share_their_time(hangs: threading.Event):
    end = Endings(lambda: None)
    assert end._left() == endings.LIMIT
    fine = Provider()
    asyncio.run(end.flush([fine], 2.0))
    assert fine.calls == ["flush 2000"]
    assert end._left() > endings.LIMIT - 1
    began = time.monotonic()
    asyncio.run(end.flush([Provider(hangs)], 0.3))
    assert time.monotonic() - began < 2
    assert endings.AT_EXIT <= end._left() <= endings.LIMIT - 0.3
    end._flushed = (0.0, 2.0)  # long ago
    assert end._left() == endings.LIMIT


@pytest.mark.usefixtures("registered")
def test_during_the_exit_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch):
    """Python 3.12 refuses; `force_flush` is left to the exit, for which threads wait already."""
    provider = Provider()
    end = Endings(lambda: None)
    end.bound([provider])

    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    asyncio.run(end.flush([provider], 2.0))
    end._exit()
    assert provider.calls == ["shutdown"]


@pytest.mark.parametrize("kind", [TracerProvider, MeterProvider, LoggerProvider])
def test_the_sdk_says_what_it_registered(kind: type):
    provider = kind()
    assert endings._own_handler(provider) == provider.shutdown
    provider.shutdown()
    assert endings._own_handler(provider) is None
    assert endings._own_handler(kind(shutdown_on_exit=False)) is None


FORK = """
import os, sys
from opentelemetry.sdk.trace import TracerProvider
from otel_worker.endings import Endings
provider = TracerProvider()
shutdown = provider.shutdown
provider.shutdown = lambda: print("shut down", os.getpid() == parent, flush=True) or shutdown()
end = Endings(lambda: print("ended", os.getpid() == parent, flush=True))
end.bound([provider])
parent = os.getpid()
if os.fork() == 0:
    sys.exit()
os.wait()
"""


def test_a_fork_flushes_its_own_spans_and_ends_none_of_its_parents():
    answer = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.stdout.splitlines(), answer.stderr) == (["shut down False", "ended True", "shut down True"], "")
