"""A TCP proxy on the loopback interface, before a worker, that delays, cuts, refuses or ignores when told to."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.faults.tools import NOTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from typing_extensions import Self

CHUNK = 1 << 16
HOST = "127.0.0.1"


@dataclass
class Fault:
    """Acts once, on one reply: `after` bytes of it have gone through, then nothing for `seconds`, or for ever if `cut`."""

    name: str
    seconds: float = 0.0
    after: int = 0
    reply: bool = True  # False: the handshake that opens a connection
    cut: bool = False


@dataclass
class _Link:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket
    asked: bool = False  # the client sent something since the server last did
    replies: int = -1  # 0 is the handshake
    sent: int = 0  # bytes of the present reply
    threads: list[threading.Thread] = field(default_factory=list)

    def close(self, *, reset: bool = False) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class Proxy:
    """Passes on to `target` whatever reaches its own address."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.faults: list[Fault] = []
        self.dials: list[int] = []  # when each connection was accepted, in ns since the epoch
        self._links: list[_Link] = []
        self._threads: list[threading.Thread] = []
        self._fillers: list[socket.socket] = []
        self._listener: socket.socket | None = self._bound(0)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"tcp://{HOST}:{self.port}"
        self._accept(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        self.refuse()
        for link in self._links:
            link.close()
        for thread in [*self._threads, *(t for link in self._links for t in link.threads)]:
            thread.join(5)

    # --- dials -------------------------------------------------------------------------------------------------------

    def _bound(self, port: int, backlog: int = 128) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(backlog)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(listener,), daemon=True, name="proxy")
        self._threads.append(thread)
        thread.start()

    def refuse(self) -> None:
        """From now on nobody listens: dials are refused by the kernel."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def ignore(self) -> None:
        """From now on dials hang: the queue of a listener that accepts nobody is full."""
        self.refuse()
        self._listener = self._bound(self.port, 0)
        filler = socket.create_connection((HOST, self.port))
        self._fillers.append(filler)

    def listen(self) -> None:
        """Dials succeed again."""
        self.refuse()
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        self._listener = self._bound(self.port)
        self._accept(self._listener)

    # --- connections ---------------------------------------------------------------------------------------------------

    def arm(self, fault: Fault) -> None:
        self.faults.append(fault)

    def hang_up(self) -> None:
        """Close what is open, as a restart of the network would."""
        for link in self._links:
            link.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.dials.append(time.time_ns())
            try:
                server = socket.create_connection(self.target or (HOST, 0))
            except OSError:  # the worker is gone
                client.close()
                continue
            link = _Link(client, server)
            for one in (link.client, link.server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links.append(link)
            for pump in (self._forth, self._back):
                thread = threading.Thread(target=pump, args=(link,), daemon=True, name="proxy")
                link.threads.append(thread)
                thread.start()

    def _forth(self, link: _Link) -> None:
        with suppress(OSError):
            while data := link.client.recv(CHUNK):
                link.asked = True
                link.server.sendall(data)
        link.close()

    def _back(self, link: _Link) -> None:
        with suppress(OSError):
            while data := link.server.recv(CHUNK):
                if link.asked or link.replies < 0:
                    link.asked = False
                    link.replies += 1
                    link.sent = 0
                self._reply(link, data)
        link.close()

    def _reply(self, link: _Link, data: bytes) -> None:
        fault = self._due(link, len(data))
        if fault is None:
            link.client.sendall(data)
            link.sent += len(data)
            return
        split = fault.after - link.sent
        if split:
            link.client.sendall(data[:split])
        self._act(fault, link)
        link.client.sendall(data[split:])
        link.sent += len(data)

    def _due(self, link: _Link, size: int) -> Fault | None:
        for fault in self.faults:
            if fault.reply is (link.replies > 0) and link.sent <= fault.after < link.sent + size:
                self.faults.remove(fault)
                return fault
        return None

    @staticmethod
    def _act(fault: Fault, link: _Link) -> None:
        begun = time.time_ns()
        time.sleep(fault.seconds)
        NOTES[fault.name].append((begun, time.time_ns()))
        if fault.cut:
            link.close(reset=True)


@asynccontextmanager
async def behind_a_proxy(scheduler: Any, **options: Any) -> AsyncIterator[tuple[Any, Proxy]]:
    """A worker that others reach through a proxy only."""
    from distributed import Worker

    with Proxy() as proxy:
        async with Worker(scheduler.address, contact_address=proxy.address, host=HOST, **options) as worker:
            proxy.target = worker.listener.bound_address[:2]
            yield worker, proxy
