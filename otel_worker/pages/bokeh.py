"""The parts of Bokeh that pages need, by name: it is an extra, and its types are not at hand everywhere."""

from __future__ import annotations

import importlib


class PageError(Exception):
    """What is missing for a page, as one sentence."""


class Bokeh:
    """Raises PageError where Bokeh is not installed."""

    def __init__(self) -> None:
        try:
            self.embed = importlib.import_module("bokeh.embed")
        except ImportError:
            raise PageError("--html needs Bokeh: pip install 'otel-worker[html]'.") from None
        self.layouts = importlib.import_module("bokeh.layouts")
        self.models = importlib.import_module("bokeh.models")
        self.plotting = importlib.import_module("bokeh.plotting")
        self.resources = importlib.import_module("bokeh.resources")
