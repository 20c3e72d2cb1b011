"""`python -m otel_worker.lab`."""

from otel_worker.lab.command import lab

if __name__ == "__main__":
    lab(prog_name="python -m otel_worker.lab")
