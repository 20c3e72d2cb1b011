"""A lab for fetch policies: what a Dask worker asks from whom, tried on Dask's real state machine.

Light on purpose: a worker that only records (`recording.py`) must not import what the simulation needs.
"""
