"""Breakdown -> what a person or a program reads: text, JSON."""

from otel_worker.reports.model import METHODS, SCHEMA, Method, Options, Report, build
from otel_worker.reports.text import render, to_json

__all__ = ["METHODS", "SCHEMA", "Method", "Options", "Report", "build", "render", "to_json"]
