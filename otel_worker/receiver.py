"""An OTLP receiver on free loopback ports, and the folder where it stores what came, as OTLP JSON lines."""

import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, final

import grpc
import msgspec
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from otel_worker import names
from otel_worker.otlp_http import BadRequest, HttpServer, Reply
from otel_worker.otlp_json import Json, generic_to_json, traces_to_json

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_GRACE = 5.0  # seconds for calls in flight at the end


class Signal(msgspec.Struct, frozen=True):
    """One of OTLP's three: how it comes in, how it is written."""

    service: str  # gRPC's name of it
    request: type[Message]
    response: type[Message]
    to_json: Callable[[Any], Json]
    path: tuple[str, str, str]  # the fields on the way to the single records
    file: str | None  # None: accepted and forgotten


_PREFIX = "opentelemetry.proto.collector."
SIGNALS = {
    "/v1/traces": Signal(
        f"{_PREFIX}trace.v1.TraceService",
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
        traces_to_json,
        ("resourceSpans", "scopeSpans", "spans"),
        "traces.jsonl",
    ),
    "/v1/metrics": Signal(
        f"{_PREFIX}metrics.v1.MetricsService",
        ExportMetricsServiceRequest,
        ExportMetricsServiceResponse,
        generic_to_json,
        ("resourceMetrics", "scopeMetrics", "metrics"),
        "metrics.jsonl",
    ),
    "/v1/logs": Signal(
        f"{_PREFIX}logs.v1.LogsService",
        ExportLogsServiceRequest,
        ExportLogsServiceResponse,
        generic_to_json,
        ("resourceLogs", "scopeLogs", "logRecords"),
        None,
    ),
}


class LinesFile:
    """Append-only JSON lines: whole lines or nothing, also when the disk is full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o644)
        self._end_last_line()

    def append(self, line: bytes) -> None:
        """Raise OSError with the file as it was before."""
        with self._lock:
            before = os.fstat(self._fd).st_size
            try:
                self._write(line + b"\n")
            except OSError:
                os.ftruncate(self._fd, before)
                raise

    def close(self) -> None:
        with self._lock:
            os.close(self._fd)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _end_last_line(self) -> None:
        """A process that was killed may have left half a line."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")


@final
class Receiver:
    """Receive OTLP over gRPC and HTTP while the `with` block runs; nothing is written outside `folder`.

    It listens on loopback. Another `host` is an address of this machine that others reach; whoever does can send to it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        host: str = "127.0.0.1",
    ) -> None:
        self.folder = Path(folder)
        self.host = host
        self.token = secrets.token_hex(16)  # whoever is answered 200 at /v1/<token> talks to this receiver
        self.max_message_bytes = max_message_bytes
        self.grpc_endpoint = ""
        self.http_endpoint = ""
        self._files: dict[str, LinesFile] = {}
        self._received = dict.fromkeys(SIGNALS, 0)
        self.tasks_received = 0  # that ended, those that one span stands for among them
        self._lock = threading.Lock()
        self._grpc: grpc.Server | None = None
        self._http: HttpServer | None = None

    @property
    def path(self) -> Path:
        """The file of the spans."""
        return self.folder / "traces.jsonl"

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def spans_received(self) -> int:
        return self._received["/v1/traces"]

    @property
    def metrics_received(self) -> int:
        return self._received["/v1/metrics"]

    def __enter__(self) -> "Receiver":
        self.folder.mkdir(parents=True, exist_ok=True)
        for signal in SIGNALS.values():
            if signal.file is not None:
                self._files[signal.file] = LinesFile(self.folder / signal.file)
        try:
            self._http = HttpServer(self._receive_http, self.max_message_bytes, self.host)
            self.http_endpoint = f"http://{self.host}:{self._http.port}"
            self._grpc, port = _grpc_server(self._receive_grpc, self.max_message_bytes, self.host)
        except (OSError, RuntimeError):
            self.close()
            raise
        self.grpc_endpoint = f"http://{self.host}:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """What was accepted is in the files; what is not yet wholly read is refused."""
        if self._grpc is not None:
            self._grpc.stop(_GRACE).wait()
            self._grpc = None
        if self._http is not None:
            self._http.close()
            self._http = None
        for file in self._files.values():
            file.close()
        self._files = {}

    def _receive_grpc(self, signal: Signal, path: str, body: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            self._store(path, signal, _from_protobuf(signal, body))
        except BadRequest as bad:
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(str(bad))
        except OSError as error:  # exporters keep the batch and try again
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details(f"cannot store: {error.strerror}")
        return b""  # the empty response: everything was accepted

    def _receive_http(self, path: str, body: bytes, *, as_json: bool) -> Reply:
        if path == f"/v1/{self.token}":
            return Reply(200, "")
        signal = SIGNALS.get(path)
        if signal is None:
            return Reply(404, f"no such path; there are {', '.join(SIGNALS)}")
        try:
            self._store(path, signal, _from_json(signal, body) if as_json else _from_protobuf(signal, body))
        except BadRequest as bad:
            return Reply(400, str(bad))
        except OSError as error:
            return Reply(503, f"cannot store: {error.strerror}")
        return Reply(200, "")

    def _store(self, path: str, signal: Signal, request: Json) -> None:
        count = _count(request, signal.path)
        if count and signal.file is not None:
            self._files[signal.file].append(msgspec.json.encode(request))
        tasks = _tasks(request) if signal.path[-1] == "spans" else 0
        with self._lock:
            self._received[path] += count
            self.tasks_received += tasks


def _from_protobuf(signal: Signal, body: bytes) -> Json:
    try:
        return signal.to_json(signal.request.FromString(body))
    except DecodeError:
        raise BadRequest(f"not a {signal.request.DESCRIPTOR.name}") from None


def _from_json(signal: Signal, body: bytes) -> Json:
    try:
        found = msgspec.json.decode(body)
        _count(found, signal.path)
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError):
        raise BadRequest(f"not the OTLP/JSON of a {signal.request.DESCRIPTOR.name}") from None
    assert isinstance(found, dict)
    return found


def _count(found: Any, path: tuple[str, ...]) -> int:
    """How many records are in it; raise AttributeError or TypeError where its shape is not OTLP's."""
    children = found.get(path[0]) or []
    if not isinstance(children, list):
        raise TypeError(path[0])
    return sum(_count(child, path[1:]) for child in children) if len(path) > 1 else len(children)


def _tasks(request: Json) -> int:
    """How many tasks the spans tell of: each of its own, or many with one."""
    found = 0
    for resource in request.get("resourceSpans") or ():
        for scope in resource.get("scopeSpans") or ():
            for span in scope.get("spans") or ():
                operation = str(span.get("name", "")).partition(" ")[0]
                if operation == names.TASK:
                    found += 1
                elif operation == names.TASKS:
                    found += _count_of(span)
    return found


def _count_of(span: Json) -> int:
    for attribute in span.get("attributes") or ():
        value = attribute.get("value") or {}
        if attribute.get("key") == names.TASKS_COUNT and str(value.get("intValue", "")).isdecimal():
            return int(value["intValue"])
    return 0


def _grpc_server(
    receive: Callable[[Signal, str, bytes, grpc.ServicerContext], bytes], max_message_bytes: int, host: str
) -> tuple[grpc.Server, int]:
    options = [("grpc.max_receive_message_length", max_message_bytes), ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(4, thread_name_prefix="otlp-grpc"), options=options)
    server.add_generic_rpc_handlers([_grpc_handler(receive, path, signal) for path, signal in SIGNALS.items()])
    port: int = server.add_insecure_port(f"{host}:0")
    server.start()
    return server, port


def _grpc_handler(
    receive: Callable[[Signal, str, bytes, grpc.ServicerContext], bytes], path: str, signal: Signal
) -> grpc.GenericRpcHandler:
    def export(body: bytes, context: grpc.ServicerContext) -> bytes:
        return receive(signal, path, body, context)

    return grpc.method_handlers_generic_handler(signal.service, {"Export": grpc.unary_unary_rpc_method_handler(export)})
