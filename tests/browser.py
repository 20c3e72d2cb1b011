"""A real headless Chromium for tests marked `browser`, and a page of ours opened in it.

Where Chromium or its driver is missing a test is skipped, or fails with OTEL_WORKER_REQUIRE=1.
"""

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
READY = 60.0  # seconds that a page may take on a machine that does other things


def _cannot(reason: str) -> None:
    required = os.environ.get("OTEL_WORKER_REQUIRE", "") not in ("", "0")
    (pytest.fail if required else pytest.skip)(reason)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Shared by all tests: each opens its own page in it."""
    found, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if found is None or driver is None:
        _cannot("chromium or chromedriver is missing: scripts/install-chromium")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(found)
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(str(driver)))
    browser.set_script_timeout(READY)
    yield browser
    browser.quit()


@dataclass
class Page:
    """A page of ours that is open, and what its scripts complained of."""

    browser: Any

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that `script` returns."""
        return self.browser.execute_script(script, *arguments)

    def until(self, script: str) -> Any:
        deadline = time.monotonic() + READY
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.02)
        return found

    def zoom(self, start: float, end: float) -> None:
        """Returns when it is drawn. Seconds, without the room that a click leaves on both sides."""
        self.run(
            "otelWorker.plot().x_range.setv({start: arguments[0], end: arguments[1]}); otelWorker.draw()", start, end
        )

    def search(self, text: str) -> list[str]:
        """As typed; the lines of what was found."""
        self.run(
            "document.getElementById('results').replaceChildren(); const input = document.getElementById('search');"
            "input.value = arguments[0]; input.dispatchEvent(new Event('input'))",
            text,
        )
        self.until("return document.querySelector('#results li') !== null")
        return list(self.run("return [...document.querySelectorAll('#results li')].map((line) => line.innerText)"))

    def place(self, seconds: float, lane: float) -> tuple[float, float]:
        """Where in the window a point of the waterfall is, in pixels; scrolls so that it is in the window."""
        self.run("otelWorker.plot(); document.getElementById('waterfall').scrollIntoView({block: 'start'})")
        x, y = self.run(_PLACE, seconds, lane)
        return float(x), float(y)

    def pixels(self, lane: float) -> list[tuple[int, int, int]]:
        """The colours that a person sees along a lane, from left to right over the whole window."""
        _, y = self.place(0, lane)
        time.sleep(0.3)  # two frames and more, on a machine that does other things
        picture = Image.open(io.BytesIO(self.browser.get_screenshot_as_png())).convert("RGB")
        return [picture.getpixel((x, round(y))) for x in range(picture.width)]  # type: ignore[misc]

    def point(self, seconds: float, lane: float) -> None:
        """Moves the mouse there."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        x, y = self.place(seconds, lane)
        moves = ActionBuilder(self.browser)
        for nearer in (3, 0):
            moves.pointer_action.move_to_location(round(x) - nearer, round(y))
        moves.perform()

    def drag(self, start: float, end: float, lane: float) -> None:
        """With the mouse, from one time to the other."""
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        (x, y), (until, _) = self.place(start, lane), self.place(end, lane)
        moves = ActionBuilder(self.browser)
        moves.pointer_action.move_to_location(round(x), round(y)).pointer_down()
        for at in (x + 10, (x + until) / 2, until):
            moves.pointer_action.move_to_location(round(at), round(y))
        moves.pointer_action.pointer_up()
        moves.perform()

    def drawn(self) -> list[dict[str, Any]]:
        """The bars that are drawn now."""
        columns = self.run("return otelWorker.plot().document.get_model_by_name('bars').data")
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def texts(self) -> str:
        return str(self.run("return document.body.innerText"))

    def complaints(self) -> list[str]:
        """What a person would see in red in the console."""
        return [str(e["message"]) for e in self.browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


_PLACE = """
const view = [...Bokeh.index.roots].find((found) => found.model.name === 'waterfall');
const canvas = view.canvas_view.el.getBoundingClientRect();
return [canvas.left + view.frame.x_scale.compute(arguments[0]), canvas.top + view.frame.y_scale.compute(arguments[1])];
"""


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens HTML in a window of that width; at the end the console must be without errors."""
    opened: list[Page] = []

    def open_(html: str, width: int = 1400, ready: str = "return document.documentElement.dataset.ready") -> Page:
        file = tmp_path / f"page-{len(opened)}.html"
        file.write_text(html, encoding="utf-8")
        chromium.get("about:blank")  # a page that lost its server complains as long as it is open
        chromium.get_log("browser")  # of the test before
        chromium.set_window_size(width, 1000)
        chromium.get(file.as_uri())
        page = Page(chromium)
        opened.append(page)
        page.until(ready)
        return page

    yield open_
    assert [complaint for page in opened for complaint in page.complaints()] == []
