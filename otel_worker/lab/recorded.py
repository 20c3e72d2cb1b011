"""Reads recordings and cluster dumps: what each worker was told, and what it asked for."""

from __future__ import annotations

import gzip
import importlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distributed.worker_state_machine import ComputeTaskEvent, StateMachineEvent

from otel_worker.lab.demand import LabError
from otel_worker.lab.recording import FORMAT, VERSION

if TYPE_CHECKING:
    from pathlib import Path

#: fields that some versions of Dask have and others lack
NOT_EVERYWHERE = {"duration": 1.0, "run_spec": None, "span_id": None}


@dataclass
class Recorded:
    """One worker's part of a recording. Times in seconds since its first event."""

    worker: str
    nthreads: int = 1
    limits: dict[str, float | None] = field(default_factory=dict)
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    requests: list[tuple[float, str, list[str]]] = field(default_factory=list)

    def shift(self, origin: float) -> None:
        self.events = [(at - origin, event) for at, event in self.events]
        self.requests = [(at - origin, worker, keys) for at, worker, keys in self.requests]


def read_recording(path: Path) -> list[Recorded]:
    """A file that `recording.py` wrote; raises LabError for anything else."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header = parse_line(lines[0] if lines else "", 1, path)
    if header.get("format") != FORMAT:
        raise LabError(f"{path} is no recording: its first line does not say so.")
    if header.get("version") != VERSION:
        raise LabError(f"{path} is a recording of version {header.get('version')!r}; this lab reads version {VERSION}.")
    if not isinstance(header.get("worker"), str):
        raise LabError(f"{path} does not name its worker.")
    recorded = Recorded(header["worker"], int(header.get("nthreads", 1)), header.get("limits") or {})
    for number, line in enumerate(lines[1:], start=2):
        entry = parse_line(line, number, path)
        try:
            add_entry(recorded, entry)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise LabError(f"Line {number} of {path} is neither an event nor a request.") from None
    return [recorded]


def recorded_in(folder: Path) -> list[Recorded]:
    """All recordings of a folder, a worker each."""
    return [recorded for file in sorted(folder.glob("*.jsonl")) for recorded in read_recording(file)]


def parse_line(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise LabError(f"Line {number} of {path} is not JSON: the recording was cut off, or is none.") from None
    if not isinstance(entry, dict):
        raise LabError(f"Line {number} of {path} is no JSON object.")
    return entry


def add_entry(recorded: Recorded, entry: dict[str, Any]) -> None:
    if "event" in entry:
        event = plain(entry["event"])
        event_of(event)  # raises where it is none
        recorded.events.append((float(entry["at"]), event))
    else:
        request = entry["request"]
        recorded.requests.append((float(entry["at"]), request["worker"], [key_text(key) for key in request["keys"]]))


def read_dump(path: Path) -> list[Recorded]:
    """A cluster dump (`Client.dump_cluster_state`), msgpack or YAML; raises LabError for anything else."""
    try:
        if path.name.endswith(".msgpack.gz"):
            with gzip.open(path) as stream:
                dump = importlib.import_module("msgpack").unpack(stream)
        else:
            yaml = importlib.import_module("yaml")
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            dump = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except Exception as error:
        raise LabError(f"{path} can't be read as a cluster dump: {' '.join(str(error).split())[:200]}") from None
    workers = dump.get("workers") if isinstance(dump, dict) else None
    if not isinstance(workers, dict):
        raise LabError(f"{path} is no cluster dump: it has no `workers`.")
    found = [worker_of_dump(address, info) for address, info in sorted(workers.items()) if isinstance(info, dict)]
    return [recorded for recorded in found if recorded.events]


def worker_of_dump(address: str, info: dict[str, Any]) -> Recorded:
    config = info.get("config") or {}
    worker_config = ((config.get("distributed") or {}).get("worker")) or {}
    limits = {
        "transfer_incoming_count_limit": (worker_config.get("connections") or {}).get("incoming"),
        "transfer_message_bytes_limit": dump_bytes((worker_config.get("transfer") or {}).get("message-bytes-limit")),
    }
    fraction = (worker_config.get("memory") or {}).get("transfer")
    if fraction and info.get("memory_limit"):
        limits["transfer_incoming_bytes_limit"] = int(info["memory_limit"] * fraction)
    recorded = Recorded(address, int(info.get("nthreads") or 1), limits)
    for event in info.get("stimulus_log") or ():
        recorded.events.append((float(event["handled"]), plain(event)))
    for entry in info.get("log") or ():
        if entry and entry[0] == "gather-dependencies":
            recorded.requests.append((float(entry[4]), entry[1], [key_text(key) for key in entry[2]]))
    return recorded


def dump_bytes(value: object) -> float | None:
    from dask.utils import parse_bytes

    return None if not isinstance(value, (str, int)) else float(parse_bytes(value))


def plain(event: dict[str, Any]) -> dict[str, Any]:
    """Keys that are tuples arrive as lists here and as their text there: always as text."""
    event = dict(event)
    if "key" in event:
        event["key"] = key_text(event["key"])
    if isinstance(event.get("keys"), list):
        event["keys"] = [key_text(key) for key in event["keys"]]
    return event


def key_text(key: object) -> str:
    return key if isinstance(key, str) else str(key)


def event_of(event: dict[str, Any]) -> StateMachineEvent:
    """Dask's event from its dict; whatever a newer or older Dask has in it and ours does not know is left out."""
    known = StateMachineEvent._classes.get(event.get("cls", ""))
    if known is None:
        raise LabError(f"{event.get('cls')!r} is no event that this version of Dask knows.")
    fields = {*known.__dataclass_fields__, "cls", "handled"}
    missing = {name: value for name, value in NOT_EVERYWHERE.items() if name in fields}
    given = {**missing, **{name: value for name, value in event.items() if name in fields}}
    try:
        made = StateMachineEvent.from_dict({"handled": None, **given})
    except (AttributeError, TypeError, KeyError) as error:
        raise LabError(f"An event {event.get('cls')} of the recording lacks something: {error}.") from None
    if isinstance(made, ComputeTaskEvent):
        made.run_spec = ComputeTaskEvent.dummy_runspec(made.key)
        made.resource_restrictions = {}
        made.annotations = {}
    return made
