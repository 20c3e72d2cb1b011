"""`otel_worker.report` in a real Jupyter kernel, and what a browser shows of the notebook."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.browser import Page

EVIL = "<img/src=x/onerror=alert(1)>"
SPANS = (
    (
        "1",
        "",
        "task sum",
        0,
        40,
        {"dask.task.key": EVIL, "dask.worker.address": "tcp://a", "dask.worker.name": "alice"},
    ),
    ("2", "1", "waiting", 0, 40, {"dask.worker.address": "tcp://a", "dask.wait.peer.unspill": 4.0}),
    ("3", "2", "fetch sum", 0, 40, {"dask.worker.address": "tcp://a", "dask.peer.address": "tcp://c"}),
    ("4", "3", "request", 0, 40, {"dask.worker.address": "tcp://a", "dask.request.peer_unspill": 4.0}),
)


def otlp() -> bytes:
    """A line as a Collector's file exporter writes it."""
    spans = [
        {
            "traceId": f"{1:032x}",
            "spanId": f"{int(number):016x}",
            "parentSpanId": f"{int(parent):016x}" if parent else "",
            "name": name,
            "startTimeUnixNano": str(1_700_000_000_000_000_000 + start * 100_000_000),
            "endTimeUnixNano": str(1_700_000_000_000_000_000 + end * 100_000_000),
            "attributes": [
                {"key": k, "value": {"doubleValue" if isinstance(v, float) else "stringValue": v}}
                for k, v in attributes.items()
            ],
        }
        for number, parent, name, start, end, attributes in SPANS
    ]
    scoped = [{"scope": {"name": "otel_worker"}, "spans": spans}]
    return msgspec.json.encode({"resourceSpans": [{"resource": {}, "scopeSpans": scoped}]})


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run to its end in a kernel of its own."""
    nbformat = pytest.importorskip("nbformat")
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    (folder / "traces.jsonl").write_bytes(otlp())
    cells = [
        "import otel_worker\nfound = otel_worker.report('traces.jsonl')\nfound",
        "found.to_pandas()[['key', 'waiting']]",
    ]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(made, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    return client.execute()


pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Jupyter's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # its sockets
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def shown(notebook: Any, cell: int) -> dict[str, str]:
    (output,) = [output for output in notebook.cells[cell].outputs if output["output_type"] == "execute_result"]
    return {kind: str(text) for kind, text in output["data"].items()}


def test_a_kernel_shows_chart_and_table(notebook: Any):
    data = shown(notebook, 0)
    assert set(data) == {"text/plain", "text/html"}
    assert "waiting for data" in data["text/plain"]
    assert "1 task waited 4.0 s for values from tcp://c" in data["text/html"]
    assert 'class="breakdown"' in data["text/html"]
    assert EVIL not in data["text/html"]
    assert "4.0" in shown(notebook, 1)["text/plain"]


@pytest.mark.browser
def test_an_exported_notebook_in_a_browser(notebook: Any, open_page: Callable[..., Page], tmp_path: Path):
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(mathjax_url="", require_js_url="")
    html, _ = exporter.from_notebook_node(notebook)
    page = open_page(html.replace('src=""', ""), ready="return document.querySelector('.otel-worker')")
    bars = page.run(
        "return [...document.querySelectorAll('.otel-worker .bar i')].map((e) => e.getBoundingClientRect().width)"
    )
    assert max(bars) > 300
    label = "const th = document.querySelector('.otel-worker .breakdown th'); return [th.innerText, th.clientWidth]"
    prefix, width = page.run(label)
    assert prefix == "sum"
    assert width > 20, "Jupyter's own styles would leave it none"
    assert EVIL in page.texts()
    assert page.run("return document.querySelectorAll('.otel-worker img').length") == 0
    page.browser.save_screenshot(str(tmp_path / "notebook.png"))
