"""How fast a report reads and works: a million spans on one core, and why msgspec reads them.

    python benchmarks/report_speed.py [SPANS] [--parsers]

Measured here (2 shared cores, CPython 3.11): see docs/report.md. The parsers were compared on the same lines: json,
orjson and msgspec into dicts, msgspec into typed structs, msgspec into structs with the attributes left raw.
"""

import argparse
import gc
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from otel_worker.reports import Options, build, to_json
from otel_worker.traces import Limits, read
from otel_worker.traces.collected import Collected
from otel_worker.traces.otlp import add_document

BATCH = 512  # what an SDK's batch processor sends


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = {str: "stringValue", int: "intValue", float: "doubleValue", bool: "boolValue"}[type(value)]
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


class Maker:
    """Spans as a worker exports them: nine a task, one fetch each with its peer's half, keys of 60 characters."""

    def __init__(self, count: int) -> None:
        self.random = random.Random(1)
        self.count = count
        self.at = 1_700_000_000_000_000_000

    def span(self, trace: str, parent: str, name: str, start: int, end: int, more: dict[str, Any]) -> dict[str, Any]:
        common = {"dask.worker.address": "tcp://10.0.0.1:40331", "dask.worker.name": "w1", "dask.task.prefix": "sum"}
        return {
            "traceId": trace,
            "spanId": f"{self.random.getrandbits(64):016x}",
            "parentSpanId": parent,
            "flags": 256,
            "name": name,
            "kind": 1,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(end),
            "attributes": [attribute(k, v) for k, v in (common | more).items()],
            "status": {},
        }

    def task(self, trace: str, number: int) -> Iterator[dict[str, Any]]:
        at, r = self.at + number * 1_000_000, self.random.random
        key = f"('sum-aggregate-{self.random.getrandbits(128):032x}', {number}, 0)"
        waits = {"network": 0.1, "peer.unspill": 0.02 + r() / 50, "connect.dial": 0.01, "queued.in_flight": r() / 9}
        end = at + round(sum(waits.values()) * 1e9)
        about = {"dask.task.key": key, "dask.task.group": "sum-aggregate", "dask.task.dependencies": 2}
        about |= {"dask.outcome": "memory", "dask.task.nbytes": 8_000_000, "dask.computation": trace[:16]}
        task = self.span(trace, "0" * 15 + "1", "task sum", at, end + 300_000_000, about)
        yield task
        waiting = self.span(trace, task["spanId"], "waiting", at, end, {f"dask.wait.{k}": v for k, v in waits.items()})
        yield waiting
        yield self.span(trace, task["spanId"], "ready", end + 1, end + 10**8, {"dask.ready.thread_slot": 0.1})
        times = {"dask.execute.run.cpu": 0.15, "dask.execute.run.noncpu": 0.05}
        execute = self.span(trace, task["spanId"], "execute", end + 10**8, end + 3 * 10**8, times)
        yield execute
        yield self.span(trace, execute["spanId"], "run", end + 10**8, end + 3 * 10**8, {"thread.name": "Dask-Default"})
        fetched = {
            "dask.peer.address": "tcp://10.0.0.2:40331",
            "dask.fetch.nbytes": 8_000_000,
            "dask.outcome": "success",
        }
        fetch = self.span(trace, waiting["spanId"], "fetch sum", at, end, fetched)
        yield fetch
        request = self.span(trace, fetch["spanId"], "request", at + 10**7, end, {"dask.request.network": 0.1})
        yield request
        served = self.span(trace, request["spanId"], "get_data", at + 2 * 10**7, end, {"dask.peer.kind": "worker"})
        yield served
        yield self.span(trace, served["spanId"], "get_data.send", at + 3 * 10**7, end, {})

    def spans(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count // 9):
            trace = f"{number // 1000 + 1:032x}"
            yield from self.task(trace, number)

    def lines(self) -> Iterator[bytes]:
        batch: list[dict[str, Any]] = []
        for span in self.spans():
            batch.append(span)
            if len(batch) == BATCH:
                yield self.line(batch)
                batch = []
        yield self.line(batch)

    @staticmethod
    def line(spans: list[dict[str, Any]]) -> bytes:
        about = {"attributes": [attribute("service.name", "dask-worker"), attribute("host.name", "h1")]}
        scoped = [{"scope": {"name": "otel_worker", "version": "1"}, "spans": spans}]
        return msgspec.json.encode({"resourceSpans": [{"resource": about, "scopeSpans": scoped}]}) + b"\n"


def timed(what: str, count: int, work: Callable[[], Any]) -> Any:
    start = time.process_time()
    found = work()
    seconds = time.process_time() - start
    print(f"{what:34} {seconds:7.2f} s CPU  {seconds / count * 1e6:6.2f} us a span  {count / seconds:10,.0f} spans/s")
    return found


def report(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.jsonl"
        with path.open("wb") as file:
            file.writelines(Maker(count).lines())
        size = path.stat().st_size
        print(f"{count:,} spans, {size / 1e6:,.0f} MB, {size / count:,.0f} bytes a span")
        begun = time.process_time()
        gc.disable()  # as the command line does
        traces = timed("read", count, lambda: read(path))
        found = timed("build", count, lambda: build(traces, "x", Options()))
        timed("by prefix and worker", count, lambda: build(traces, "x", Options(by=("prefix", "worker"))))
        timed("JSON", count, lambda: to_json(found))
        seconds = time.process_time() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
        print(f"all of these: {count / seconds:,.0f} spans/s, peak {peak:.2f} GiB, {found.extent.tasks:,} tasks")


def parsers(count: int) -> None:
    lines = list(Maker(count).lines())
    gc.collect()
    gc.disable()
    timed("json into dicts", count, lambda: [json.loads(line) and None for line in lines])
    try:
        import orjson
    except ImportError:
        print("orjson is not installed")
    else:
        timed("orjson into dicts", count, lambda: [orjson.loads(line) and None for line in lines])
    timed("msgspec into dicts", count, lambda: [msgspec.json.decode(line) and None for line in lines])
    into = Collected(Limits())
    timed("msgspec, typed, as frozen spans", count, lambda: [add_document(line, into) for line in lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spans", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--parsers", action="store_true", help="compare parsers instead")
    chosen = parser.parse_args()
    (parsers if chosen.parsers else report)(chosen.spans)


if __name__ == "__main__":
    main()
