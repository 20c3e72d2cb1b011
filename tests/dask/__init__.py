"""Plain tests of Dask's own behaviour, closest to what its suite checks on workers: nothing here knows otel_worker.

`scripts/dask-suite` runs them twice, without us and with us, and compares the results.
"""
