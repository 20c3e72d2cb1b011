"""Collectors that are not there, do not answer, refuse, are slow, or come back: each as a context that gives an endpoint."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import grpc

from otel_worker.receiver import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "127.0.0.1"


@contextmanager
def closed() -> Iterator[str]:
    """Nobody listens."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    yield f"http://{HOST}:{port}"


@contextmanager
def silent() -> Iterator[str]:
    """Accepts connections and says nothing."""
    with socket.create_server((HOST, 0), backlog=128) as server:
        yield f"http://{HOST}:{server.getsockname()[1]}"


@contextmanager
def mute() -> Iterator[str]:
    """Speaks gRPC, takes each call, and answers none."""
    done = threading.Event()

    def answer(_context: grpc.ServicerContext) -> None:
        done.wait(120)

    with served_by_grpc(answer) as endpoint:
        try:
            yield endpoint
        finally:
            done.set()


@contextmanager
def exhausted() -> Iterator[str]:
    """Refuses each call of gRPC with RESOURCE_EXHAUSTED."""

    def answer(context: grpc.ServicerContext) -> None:
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details("no room")

    with served_by_grpc(answer) as endpoint:
        yield endpoint


@contextmanager
def unavailable() -> Iterator[str]:
    """Refuses each request of HTTP with 503."""
    with served_by_http(lambda: 503) as endpoint:
        yield endpoint


@contextmanager
def slow_grpc() -> Iterator[str]:
    with served_by_grpc(lambda _context: time.sleep(0.5)) as endpoint:
        yield endpoint


@contextmanager
def slow_http() -> Iterator[str]:
    with served_by_http(lambda: time.sleep(0.5) or 200) as endpoint:  # type: ignore[func-returns-value]
        yield endpoint


@contextmanager
def served_by_grpc(answer: Callable[[grpc.ServicerContext], None], port: int = 0) -> Iterator[str]:
    """Each export is taken, and answered when and as `answer` says."""

    def export(_body: bytes, context: grpc.ServicerContext) -> bytes:
        answer(context)
        return b""

    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
    handler = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    handlers = [grpc.method_handlers_generic_handler(signal.service, handler) for signal in SIGNALS.values()]
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port(f"{HOST}:{port}")
    server.start()
    try:
        yield f"http://{HOST}:{port}"
    finally:
        server.stop(None).wait()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """Who waited for too long has gone."""


@contextmanager
def served_by_http(answer: Callable[[], int], port: int = 0) -> Iterator[str]:
    """Each export is taken, and answered with the status that `answer` gives when it gives it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(answer())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = _Server((HOST, port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def unresolved_grpc() -> Iterator[str]:
    """A name that a server of names was asked for, which never answers: gRPC's own form of a target names that server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        names.bind((HOST, 0))
        yield f"dns://{HOST}:{names.getsockname()[1]}/collector.example:4317"


@contextmanager
def unresolved_http() -> Iterator[str]:
    """A name that the system's resolver does not come back with; other names are resolved as ever."""
    resolve = socket.getaddrinfo
    done = threading.Event()

    def hang(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "collector.example":
            done.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return resolve(host, *args, **kwargs)

    socket.getaddrinfo = hang
    try:
        yield "http://collector.example:4318"
    finally:
        done.set()
        socket.getaddrinfo = resolve
