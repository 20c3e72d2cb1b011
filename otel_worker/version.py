"""The version of the distribution and of the instrumentation scope."""

__version__ = "0.1.0.dev0"
