"""Keeps what a worker was told and what it asked for, so that the lab can replay it: one JSON line each.

The first line says `{"format": "otel_worker.recording", "version": 1, "worker": …, "nthreads": …, "started": …,
"limits": {…}, "distributed": …}`. Then come, in the order in which the worker handled them,
`{"at": …, "event": {"cls": "ComputeTaskEvent", "key": …, "priority": […], "who_has": {…}, "nbytes": {…}, …}}`: an event
of Dask's worker state machine, without its payload, as in a cluster dump; and `{"at": …, "request": {"worker": …,
"keys": […]}}`: a decision to fetch. `at` is in seconds since `started`, which is seconds since 1970.

Nothing is patched: the worker's two bounded logs are replaced by ones that also write, and put back by `stop()`.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import distributed
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.utils import recursive_to_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from distributed import Worker
    from distributed.worker_state_machine import StateMachineEvent, WorkerState

logger = logging.getLogger(__name__)

FORMAT = "otel_worker.recording"
VERSION = 1
#: the limits of a WorkerState
LIMITS = (
    "transfer_incoming_count_limit",
    "transfer_incoming_bytes_throttle_threshold",
    "transfer_incoming_bytes_limit",
    "transfer_message_bytes_limit",
)


class Tap(deque[Any]):
    """A bounded log that shows each entry to somebody else."""

    def __init__(self, entries: Iterable[Any], maxlen: int | None, see: Callable[[Any], None]) -> None:
        super().__init__(entries, maxlen)
        self.see = see

    def append(self, entry: Any) -> None:
        super().append(entry)
        self.see(entry)


class Recorder:
    """Writes a worker's events and requests to a text stream until `stop()`; the stream stays the caller's."""

    def __init__(self, state: WorkerState, stream: IO[str], *, started: float | None = None, address: str = "") -> None:
        self.state = state
        self.stream = stream
        self.started = time.time() if started is None else started
        self.on = True
        limits = {name: getattr(state, name) for name in LIMITS}
        self._write(
            format=FORMAT,
            version=VERSION,
            worker=address or state.address,  # a preload comes before the state has it
            nthreads=state.nthreads,
            started=self.started,
            limits={name: None if limit == float("inf") else limit for name, limit in limits.items()},
            distributed=distributed.__version__,
        )
        state.stimulus_log = Tap(state.stimulus_log, state.stimulus_log.maxlen, self._guarded(self._event))
        state.log = Tap(state.log, state.log.maxlen, self._guarded(self._log_entry))

    def stop(self) -> None:
        """Puts plain logs back, with all that they have now."""
        self.on = False
        for name in ("stimulus_log", "log"):
            log = getattr(self.state, name)
            setattr(self.state, name, deque(log, log.maxlen))

    def _guarded(self, see: Callable[[Any], None]) -> Callable[[Any], None]:
        """An error inside a stimulus would close the worker: it ends the recording instead."""

        def guarded(entry: Any) -> None:
            if self.on:
                try:
                    see(entry)
                except Exception:
                    self.on = False
                    logger.exception("The recording of fetches stops")

        return guarded

    def _event(self, event: StateMachineEvent) -> None:
        self._write(at=(event.handled or time.time()) - self.started, event=event._to_dict())

    def _log_entry(self, entry: tuple[Any, ...]) -> None:
        if entry[0] == "gather-dependencies":  # from WorkerState._ensure_communicating
            _, worker, keys, _, at = entry
            request = {"worker": worker, "keys": recursive_to_dict(sorted(keys, key=str))}
            self._write(at=at - self.started, request=request)

    def _write(self, **line: Any) -> None:
        self.stream.write(json.dumps(line, default=str) + "\n")


class RecordFetches(WorkerPlugin):  # type: ignore[misc]
    """A plugin that records every worker that it is registered on: a file a worker, in `directory` on its machine."""

    name = "otel-worker-record-fetches"

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.recorder: Recorder | None = None

    def setup(self, worker: Worker) -> None:
        directory = Path(self.directory)
        directory.mkdir(parents=True, exist_ok=True)
        stream = (directory / (re.sub(r"[^\w.-]+", "-", worker.address) + ".jsonl")).open("w", encoding="utf-8")
        self.recorder = Recorder(worker.state, stream, address=worker.address)

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002
        if self.recorder is not None:
            self.recorder.stop()
            self.recorder.stream.close()
            self.recorder = None
