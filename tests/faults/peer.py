"""A worker in a process of its own, with us: one that can be stopped or killed, and whose event loop is not the test's.

`python -m tests.faults.peer SCHEDULER NAME FILE` runs it until its standard input ends; then its spans are in FILE.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from otel_worker.otlp_json import traces_to_json
from otel_worker.testing import Switch
from tests.faults.tools import SPILLS, noting, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.live import Live

ROOT = Path(__file__).parents[2]


class Peer:
    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.address = ""

    async def stopped(self, seconds: float, name: str) -> None:
        """Stop the whole process for a while."""
        self._popen.send_signal(signal.SIGSTOP)
        with noting(name):
            await asyncio.sleep(seconds)
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._popen.kill()

    async def end(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.stdin = None
        await until(lambda: self._popen.poll() is not None)


@asynccontextmanager
async def peer_process(scheduler: Any, live: Live, folder: Path, name: str = "far") -> AsyncIterator[Peer]:
    path = folder / f"{name}.jsonl"
    popen = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [sys.executable, "-m", "tests.faults.peer", scheduler.address, name, str(path)],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    peer = Peer(popen)
    try:
        await until(lambda: name in scheduler.aliases or popen.poll() is not None)
        assert popen.poll() is None, "the peer did not start"
        peer.address = scheduler.aliases[name]
        yield peer
        await peer.end()
    finally:
        popen.kill()
        popen.communicate()
    if path.exists():
        live.others.append(path)


async def main(scheduler: str, name: str) -> str:
    import dask
    from distributed import Worker

    switch = Switch()
    switch.on()
    with dask.config.set(SPILLS):
        async with Worker(scheduler, name=name, nthreads=1, host="127.0.0.1"):
            await asyncio.to_thread(sys.stdin.read)
    switch.off()
    return json.dumps(traces_to_json(encode_spans(switch.exported.finished)))


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(asyncio.run(main(*sys.argv[1:3])) + "\n")
