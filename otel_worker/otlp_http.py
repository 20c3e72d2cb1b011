"""OTLP's HTTP side for the receiver: a standard-library server on a free port, with bounded bodies."""

import contextlib
import socket
import sys
import threading
import zlib
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import msgspec
from google.rpc.status_pb2 import Status

_JSON = "application/json"
_PROTOBUF = "application/x-protobuf"
_POLL = 0.05  # seconds until a close is seen


class BadRequest(Exception):  # noqa: N818  it names what came, not what went wrong here
    """The sender's fault: it should not try again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A status of HTTP, and a sentence unless it is 200."""

    status: int
    message: str


class Receive(Protocol):
    def __call__(self, path: str, body: bytes, *, as_json: bool) -> Reply: ...


class HttpServer:
    """Runs until `close`, which lets whole requests finish and cuts idle and half-read connections."""

    def __init__(self, receive: Receive, max_body: int, host: str = "127.0.0.1") -> None:
        self._server = _Server(receive, max_body, host)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL,), name="otlp-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.end_connections()
        self._server.server_close()  # joins the threads of the connections


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # else `server_close` does not wait for them

    def __init__(self, receive: Receive, max_body: int, host: str) -> None:
        self.receive = receive
        self.max_body = max_body
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((host, 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that went away in the middle is no news; anything else is a fault of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def end_connections(self) -> None:
        """Their next read sees the end; a request that is read already is still answered."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        as_json = self.headers.get_content_type() == _JSON
        try:
            self._checked_type()
            body = _decompressed(self._body(), self.headers.get("Content-Encoding", ""), self.server.max_body)
            reply = self.server.receive(self.path.split("?")[0], body, as_json=as_json)
        except _Refused as refused:
            self.close_connection = True  # its body may be unread
            reply = refused.reply
        self._send(reply, as_json=as_json)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the standard library's
        """Quiet: the program that embeds us owns stderr."""

    def _checked_type(self) -> None:
        if self.headers.get_content_type() not in (_JSON, _PROTOBUF):
            raise _Refused(415, f"send {_PROTOBUF} or {_JSON}")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refused(411, "a Content-Length is needed")
        if int(length) > self.server.max_body:
            raise _Refused(413, f"at most {self.server.max_body} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _Refused(400, "the body ended early")
        return body

    def _send(self, reply: Reply, *, as_json: bool) -> None:
        body = _reply_body(reply, as_json=as_json)
        self.send_response(reply.status)
        self.send_header("Content-Type", _JSON if as_json else _PROTOBUF)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class _Refused(Exception):  # noqa: N818
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.reply = Reply(status, message)


def _reply_body(reply: Reply, *, as_json: bool) -> bytes:
    if reply.status == 200:
        return b"{}" if as_json else b""
    if as_json:
        return msgspec.json.encode({"message": reply.message})
    return bytes(Status(message=reply.message).SerializeToString())


def _decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise _Refused(415, "send gzip, deflate or no Content-Encoding")
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS + 32)  # either header
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error:
        raise _Refused(400, f"not {encoding}") from None
    if len(plain) > limit:
        raise _Refused(413, f"at most {limit} bytes after decompression")
    if not inflate.eof:
        raise _Refused(400, f"the {encoding} data ended early")
    return plain
