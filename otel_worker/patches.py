"""Patching as a table: one loop installs, one undoes by putting back the identical object.

A row is installed when its module is imported, by somebody else: nothing here imports Dask.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from otel_worker.guard import Guard

    Hook = Callable[[Any], Any]  # original -> replacement

ABSENT = object()


class Patch(NamedTuple):
    """One place in Dask: `owner` is a class of `module`, or empty for the module itself."""

    module: str
    owner: str
    name: str
    hook: str  # the method of Hooks that makes the replacement
    parameters: tuple[str, ...]  # what the hook reads by name or position (_: of any name); a test compares them

    @property
    def target(self) -> str:
        return ".".join(part for part in (self.module, self.owner, self.name) if part)

    def holder(self, module: ModuleType) -> Any:
        return getattr(module, self.owner) if self.owner else module


class Installed(NamedTuple):
    holder: Any
    name: str
    before: Any  # what stood in the holder itself; ABSENT if it was inherited
    ours: Any


class Patches:
    """Installs rows as their modules appear and undoes what it installed."""

    def __init__(self, rows: Iterable[Patch], hook: Callable[[str, Any], Any], guard: Guard) -> None:
        self._rows = tuple(rows)
        self._hook = hook
        self._guard = guard
        self._installed: list[Installed] = []
        self._on = False

    def install(self) -> None:
        self._on = True
        for module in dict.fromkeys(row.module for row in self._rows):
            if module in sys.modules and not _importing(sys.modules[module]):
                self._module_imported(sys.modules[module])
            else:
                wrapt.register_post_import_hook(self._module_imported, module)

    def _module_imported(self, module: ModuleType) -> None:
        """Install the rows of a module. Idempotent; does nothing after `undo`."""
        if not self._on:
            return
        for row in self._rows:
            if row.module == module.__name__:
                self._guard(f"patch {row.target}", self._install)(row, module)

    def _install(self, row: Patch, module: ModuleType) -> None:
        try:
            holder = row.holder(module)
            original = getattr(holder, row.name)
        except AttributeError as error:
            self._guard.skipped(row.target, f"this version of Dask does not have it ({error})")
            return
        before = vars(holder).get(row.name, ABSENT)
        if any(done.holder is holder and done.name == row.name for done in self._installed):
            return
        if before is ABSENT:
            original = _inherited(holder, row.name, original)
        else:
            # Imported by name from a module that was patched already: it is Dask's own that belongs here.
            before = original = next((done.before for done in self._installed if done.ours is before), original)
        ours = self._hook(row.hook, original)
        setattr(holder, row.name, ours)
        self._installed.append(Installed(holder, row.name, before, ours))

    def undo(self) -> None:
        """Put back the identical objects, in reverse; where another tool wrapped ours meanwhile, its wrapper stays."""
        self._on = False
        while self._installed:
            holder, name, before, ours = self._installed.pop()
            if vars(holder).get(name, ABSENT) is not ours:
                continue
            if before is ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, before)


def _inherited(holder: Any, name: str, original: Any) -> Any:
    """Call what `holder` inherits, looked up at each call: whoever wraps the base class later is still heard."""

    @functools.wraps(original)
    def inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(holder, self), name)(*args, **kwargs)

    return inherited


def _importing(module: ModuleType) -> bool:
    """A module in the middle of its import has no attributes yet; the import system marks it."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
