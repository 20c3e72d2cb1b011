"""Keeps these files out of a plain run: `scripts/dask-suite` runs them twice (with --noconftest) and compares."""

collect_ignore_glob = ["test_*.py"]
