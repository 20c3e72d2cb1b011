"""Imports point one way only: what each file may import, read from its source, and what importing us loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import otel_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(otel_worker.__file__).parent
DASK = {"dask", "distributed"}

# Facts, and the arithmetic on them: the standard library, and each other in this order.
PURE = (
    "names",
    "version",
    "guard",
    "budget",
    "facts",
    "shuffle_facts",
    "actor_facts",
    "waits",
    "reasons",
    "recorder",
    "settings",
    "openings",
)
# What observers may build on: the vocabulary, the facts, and each other, but never Dask's objects.
OBSERVERS = (
    "wire",
    "standin",
    "coalesce",
    "spans",
    "shuffle_steps",
    "task_spans",
    "gather_spans",
    "fetch_spans",
    "shuffle_spans",
    "actor_spans",
    "submissions",
    "metrics",
    "providers",
    "endings",
    "stuck",
    "quiet",
)
# The rest of what runs inside a worker. Only the hooks, and `runtime` for them, know Dask.
HOOKS = (
    "dashboard_hooks",
    "call_hooks",
    "shuffle_hooks",
    "actor_hooks",
    "thread_hooks",
    "hooks",
    "open_records",
    "shuffles",
    "actors",
    "runtime",
)
INSIDE = ("comm_proxy", "answers", "run_notes", "patches", "current", *HOOKS, "instrumentor")
# Ways to switch us on where `opentelemetry-instrument` does not: they may configure the SDK.
SWITCHES = ("tap", "preload", "plugin", "remote", "sdk", "urls")
RUNTIME = {*PURE, *OBSERVERS, *INSIDE} - {"names", "version"}
# Spans that were exported -> what a person reads.
ANALYSIS = ("traces", "trees", "checks", "breakdown", "reports", "pages")

# The arrows of the two chains: a layer may import those named, besides itself.
ARROWS = {
    "names": set(),
    "version": set(),
    "facts": {"names"},
    "reasons": {"names", "facts"},
    "waits": {"names", "facts"},
    "recorder": {"names", "facts", "waits", "reasons"},
    "openings": {"names", "facts", "waits", "reasons", "recorder"},
    "guard": set(),
    "budget": {"names"},
    "settings": {"names"},
    "wire": {"names"},
    "patches": {"guard"},
    "shuffle_facts": {"names", "facts"},
    "current": set(),
    "actor_facts": {"names", "facts"},
    "call_hooks": {"current", "facts", "patches", "shuffle_facts", "actor_facts", "wire"},
    "actor_hooks": {"current", "patches", "wire"},
    "thread_hooks": {"current", "facts", "patches"},
    "shuffle_hooks": {"current", "facts", "names", "patches", "shuffle_facts", "wire"},
    "hooks": {
        "endings",
        "facts",
        "patches",
        "wire",
        "comm_proxy",
        "names",
        "current",
        "call_hooks",
        "shuffle_hooks",
        "actor_hooks",
        "thread_hooks",
        "dashboard_hooks",
    },
    "dashboard_hooks": {"patches", "dashboard"},
    "traces": {"names"},
    "checks": {"names", "traces"},
    "trees": {"names", "traces"},
    "breakdown": {"names", "traces", "checks", "trees"},
    "reports": {"names", "traces", "checks", "trees", "breakdown"},
    "pages": {"names", "traces", "trees", "breakdown", "reports"},
}


class Import(NamedTuple):
    """One import: `ours` is a layer of this package, `other` a top-level package that is neither ours nor standard."""

    file: str
    line: int
    ours: str = ""
    other: str = ""
    submodule: str = ""


def files(layer: str) -> list[Path]:
    """A layer is one file or one folder."""
    one = PACKAGE / f"{layer}.py"
    return [one] if one.exists() else sorted((PACKAGE / layer).rglob("*.py"))


def imports(layer: str) -> Iterator[Import]:
    """What runs when the files are used; what only a type checker reads does not count."""
    for path in files(layer):
        for node in _running(ast.parse(path.read_text())):
            for name in _named(node):
                yield _sorted(name, f"{path.relative_to(PACKAGE)}", node.lineno)


def _running(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from _running(child)


def _named(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"line {node.lineno}: a relative import"
    module = node.module or ""
    if module == "otel_worker":
        return [f"{module}.{alias.name}" for alias in node.names]
    return [module]


def _sorted(name: str, file: str, line: int) -> Import:
    top, _, rest = name.partition(".")
    if top == "otel_worker":
        return Import(file, line, ours=rest.partition(".")[0], submodule=name)
    if top == "__future__" or top in sys.stdlib_module_names:
        return Import(file, line)
    return Import(file, line, other=top, submodule=name)


def test_the_layers_are_those_that_exist():
    """A file that no rule names would escape them all."""
    known = RUNTIME | {*ANALYSIS, *ARROWS, *SWITCHES} | APART
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there - known == set()


# What starts processes, receives, or simulates: each stands alone, and no other layer imports it save its command.
APART = {
    "__init__",
    "__main__",
    "cli",
    "lab",
    "testing",
    "receiver",
    "otlp_http",
    "otlp_json",
    "demo",
    "demo_work",
    "run",
    "watching",
    "survey",
    "dashboard",
    "captures",
    "scheduler",
}


@pytest.mark.parametrize("layer", sorted(ARROWS))
def test_arrows(layer: str):
    found = [i for i in imports(layer) if i.ours and i.ours != layer and i.ours not in ARROWS[layer]]
    assert found == []


@pytest.mark.parametrize("layer", PURE)
def test_facts_and_their_arithmetic_need_the_standard_library_alone(layer: str):
    assert [i for i in imports(layer) if i.other] == []


def test_names_imports_nothing():
    (path,) = files("names")
    assert list(_running(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("layer", [*PURE, *OBSERVERS, "comm_proxy", "patches", "instrumentor", *ANALYSIS, "cli"])
def test_only_the_hooks_and_their_runtime_know_dask(layer: str):
    assert [i for i in imports(layer) if i.other in DASK] == []


@pytest.mark.parametrize("layer", sorted(RUNTIME))
def test_the_runtime_half_needs_the_api_alone(layer: str):
    allowed = {"opentelemetry", "wrapt"} | (DASK if layer in HOOKS else set())
    assert [i for i in imports(layer) if i.other and i.other not in allowed] == []
    not_the_api = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
    assert [i for i in imports(layer) if i.submodule.startswith(not_the_api)] == []


@pytest.mark.parametrize("layer", ANALYSIS)
def test_the_analysis_half_shares_the_vocabulary_alone(layer: str):
    assert [i for i in imports(layer) if i.ours in {*RUNTIME, *SWITCHES}] == []


@pytest.mark.parametrize("layer", sorted(RUNTIME))
def test_the_runtime_half_knows_no_analysis(layer: str):
    assert [i for i in imports(layer) if i.ours in {*ANALYSIS, *SWITCHES, "cli", "lab", "testing"}] == []


@pytest.mark.parametrize("layer", sorted((RUNTIME | set(ANALYSIS)) - {"instrumentor"}))
def test_only_the_instrumentor_reads_the_environment(layer: str):
    for path in files(layer):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")), (
                f"{path.name}:{node.lineno}"
            )
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                assert not {alias.name for alias in node.names} & {"environ", "getenv"}, f"{path.name}:{node.lineno}"


def loaded_by(code: str) -> set[str]:
    """The packages that a fresh Python has loaded after `code`, besides those that it starts with."""
    program = f"import sys; before = set(sys.modules); {code}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_us_is_light():
    loaded = loaded_by("import otel_worker")
    assert {name for name in loaded if name.partition(".")[0] not in {"otel_worker", *sys.stdlib_module_names}} == set()


@pytest.mark.parametrize(
    "code",
    [
        "from otel_worker import DaskInstrumentor",
        "from otel_worker import DaskInstrumentor; DaskInstrumentor().instrument()",
        "from otel_worker import enable, disable",
        "import otel_worker.hooks, otel_worker.runtime",
    ],
)
def test_the_instrumentor_charges_no_program_for_dask_or_the_sdk(code: str):
    loaded = loaded_by(code)
    assert (
        loaded & {*DASK, "opentelemetry.sdk", "opentelemetry.exporter", "msgspec", "click", "rich", "pytest"} == set()
    )


def test_the_public_names_are_those_of_all():
    assert sorted(otel_worker.__all__) == sorted(set(otel_worker.__all__))
    assert all(hasattr(otel_worker, name) for name in otel_worker.__all__)
