"""Pictures: a page for the browser, a file for Perfetto, and what a notebook shows. Bokeh and pandas are loaded when they are needed."""

from otel_worker.pages.bokeh import PageError
from otel_worker.pages.found import Found
from otel_worker.pages.notebook import TimeReport, report
from otel_worker.pages.page import page
from otel_worker.pages.perfetto import to_perfetto

__all__ = ["Found", "PageError", "TimeReport", "page", "report", "to_perfetto"]
