"""Reads a case from YAML, where a drawing does not say enough: `after`, durations, new holders, keys that are freed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from distributed.worker_state_machine import FreeKeysEvent, PauseEvent, RefreshWhoHasEvent, UnpauseEvent

from otel_worker.lab import settings
from otel_worker.lab.demand import ME, Arrival, Case, LabError, Need, acquire, address, compute

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed.worker_state_machine import StateMachineEvent

TOP = ("name", "limits", "peers", "peer", "threads", "events")
COMMON = ("at", "after", "worker")
DETAILS = {"task": ("needs", "priority", "takes", "result")}


def read(text: str, name: str) -> Case:
    """The case; raises LabError for what is no YAML, or says what no case can say."""
    yaml = importlib.import_module("yaml")  # by name: its types are not at hand everywhere
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise LabError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    content = mapping(content, name)
    known(content, TOP, name)
    case = Case(str(content.get("name", name)), ())
    for group in ("limits", "peers"):
        for key, value in mapping(content.get(group) or {}, f"`{group}`").items():
            case = settings.apply(case, str(key), value)
    for peer, values in mapping(content.get("peer") or {}, "`peer`").items():
        for key, value in mapping(values, f"peer {peer}").items():
            case = settings.apply(case, f"{peer}.{key}", value)
    if "threads" in content:
        case = settings.apply(case, "threads", content["threads"])
    return with_events(case, content.get("events"))


def with_events(case: Case, events: object) -> Case:
    if not isinstance(events, list) or not events:
        raise LabError(f"{case.name} has no list of `events`.")
    given: list[Arrival] = []
    durations: dict[object, float] = {}
    results: dict[object, int] = {}
    tasks = {each["task"] for each in events if isinstance(each, dict) and "task" in each}
    for index, each in enumerate(events):
        where = f"event {index + 1}"
        entry = mapping(each, where)
        kinds = [kind for kind in KINDS if kind in entry]
        if len(kinds) != 1:
            raise LabError(f"{where} is one of {', '.join(KINDS)}.")
        (kind,) = kinds
        known(entry, (kind, *COMMON, *DETAILS.get(kind, ())), where)
        after = tuple(entry.get("after") or ())
        unknown = [key for key in after if key not in tasks]
        if unknown:
            raise LabError(f"{where} comes after {unknown[0]!r}, which is no task of this case.")
        given.append(
            Arrival(
                at=settings.seconds(entry.get("at", 0)),
                worker=address(str(entry.get("worker", ME))),
                event=KINDS[kind](entry, index),
                after=after,
            )
        )
        if kind == "task":
            durations[entry["task"]] = settings.seconds(entry.get("takes", 0))
            results[entry["task"]] = settings.size(entry.get("result", 1))
    return Case(
        case.name,
        tuple(given),
        case.limits,
        case.peer,
        case.peers,
        durations=durations,
        results=results,
        nthreads=case.nthreads,
    )


def needs(values: object, where: str) -> list[Need]:
    found = []
    for key, value in mapping(values, where).items():
        details = mapping(value, f"key {key} of {where}")
        known(details, ("size", "holders"), f"key {key} of {where}")
        holders = holders_of(details.get("holders"), f"key {key} of {where}")
        if not holders:
            raise LabError(f"key {key} of {where} has no holder: say `holders: [A]`.")
        found.append(Need(key, settings.size(details.get("size", 1)), holders))
    return found


def holders_of(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise LabError(f"the workers of {where} are a list.")
    return tuple(dict.fromkeys(str(holder) for holder in value))


def task(entry: dict[str, Any], index: int) -> StateMachineEvent:
    priority = entry.get("priority", index)
    try:
        whole = tuple(int(part) for part in (priority if isinstance(priority, list) else [priority]))
    except (TypeError, ValueError):
        raise LabError(f"the priority of {entry['task']} is a whole number or a list of them.") from None
    return compute(entry["task"], needs(entry.get("needs") or {}, f"task {entry['task']}"), priority=whole)


def replicas(entry: dict[str, Any], index: int) -> StateMachineEvent:
    return acquire(needs(entry["replicas"], "`replicas`"), stimulus=f"acquire-replicas-{index}")


def holders(entry: dict[str, Any], index: int) -> StateMachineEvent:
    who_has = {
        key: [address(holder) for holder in holders_of(on, f"key {key}")]
        for key, on in mapping(entry["holders"], "`holders`").items()
    }
    return RefreshWhoHasEvent(who_has=who_has, stimulus_id=f"refresh-who-has-{index}")


def free(entry: dict[str, Any], index: int) -> StateMachineEvent:
    return FreeKeysEvent(keys=list(entry["free"] or ()), stimulus_id=f"free-keys-{index}")


KINDS: dict[str, Callable[[dict[str, Any], int], StateMachineEvent]] = {
    "task": task,
    "replicas": replicas,
    "holders": holders,
    "free": free,
    "pause": lambda _, index: PauseEvent(stimulus_id=f"pause-{index}"),
    "unpause": lambda _, index: UnpauseEvent(stimulus_id=f"unpause-{index}"),
}


def mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LabError(f"{where} is no mapping of names to values.")
    return value


def known(entry: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in entry:
        if name not in names:
            raise LabError(f"{where} has {name!r}, which is none of {', '.join(names)}.")
