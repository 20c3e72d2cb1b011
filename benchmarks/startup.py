"""What having us installed costs a program that does not use Dask: `opentelemetry-instrument python -c pass`.

    python -m benchmarks.startup [--runs N]

Two virtual environments with links to the same packages, one of them without us; CPU time of the whole process, in turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.spread import spread

QUIET = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
OURS = ("otel_worker", "_editable_impl_otel_worker")


def linked(folder: Path, *, ours: bool) -> Path:
    """Make a virtual environment of links; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    target = next(folder.glob("lib/python*/site-packages"))
    for place in site.getsitepackages():
        for entry in Path(place).iterdir():
            if ours or not entry.name.startswith(OURS):
                (target / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def cpu_ms(python: Path, program: str) -> float:
    tool = [str(python), "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*tool, str(python), "-c", program], env={**os.environ, **QUIET}, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--program", default="pass", help="what the program does")
    chosen = parser.parse_args()
    found: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        pythons = {ours: linked(Path(folder, str(ours)), ours=ours) for ours in found}
        for ours, python in pythons.items():  # what is compiled, is compiled now
            cpu_ms(python, chosen.program)
            loaded = f"import sys; sys.exit(('otel_worker.instrumentor' in sys.modules) is not {ours})"
            cpu_ms(python, loaded)
        for turn in range(chosen.runs):
            for ours in (turn % 2 == 0, turn % 2 == 1):
                found[ours].append(cpu_ms(pythons[ours], chosen.program))
    beyond = spread([ours - plain for ours, plain in zip(found[True], found[False], strict=True)])
    print("| | CPU ms, least | median |\n|---|---|---|")
    for ours, name in ((False, "without us"), (True, "with us")):
        print(f"| {name} | {min(found[ours]):.0f} | {median(found[ours]):.0f} |")
    least = min(found[True]) - min(found[False])
    print(f"\nBeyond: {least:+.0f} ms least, {beyond.median:+.0f} ms median ({beyond.low:+.0f} to {beyond.high:+.0f}).")


if __name__ == "__main__":
    main()
