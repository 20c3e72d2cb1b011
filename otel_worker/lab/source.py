"""Finds out what a source is: a workload's name, a drawing, YAML, a recording, a folder of recordings, a cluster dump."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from otel_worker.lab import case_file, drawing, replay
from otel_worker.lab.demand import Case, LabError
from otel_worker.lab.recorded import Recorded, read_dump, read_recording
from otel_worker.lab.workloads import WORKLOADS, generate

if TYPE_CHECKING:
    from otel_worker.lab.workloads import Size


def load(source: str, size: Size) -> tuple[Case, list[Recorded]]:
    """The case, and what was recorded where it is a recording; raises LabError for what can't be read."""
    if source in WORKLOADS:
        return generate(source, size), []
    path = Path(source)
    if not path.exists():
        raise LabError(f"{source!r} is no file and no workload; workloads are {', '.join(WORKLOADS)}.")
    try:
        recordings = recorded(path)
        if recordings is not None:
            return replay.case_of(recordings, path.name), recordings
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LabError(f"{path} says something that makes no sense: {error!r}.") from None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise LabError(f"{path} can't be read as text.") from None
    reader = case_file.read if path.suffix in (".yaml", ".yml") else drawing.read
    return reader(text, path.name), []


def recorded(path: Path) -> list[Recorded] | None:
    """What was recorded, or None if the path is no recording."""
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise LabError(f"{path} contains no recording (*.jsonl).")
        return [each for file in files for each in read_text(file)]
    if path.suffix == ".jsonl":
        return read_text(path)
    if path.name.endswith(".msgpack.gz") or is_yaml_dump(path):
        return read_dump(path)
    return None


def read_text(path: Path) -> list[Recorded]:
    try:
        return read_recording(path)
    except (OSError, UnicodeDecodeError):
        raise LabError(f"{path} can't be read as text.") from None


def is_yaml_dump(path: Path) -> bool:
    """A dump's keys at the top are its scheduler, its versions and its workers; a case has none of them."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    with path.open(encoding="utf-8", errors="replace") as stream:
        return any(line.startswith(("scheduler:", "workers:", "versions:")) for line in stream)
