"""`python -m tests.soak --minutes N --seed S`: exits with 1 if anything that must hold did not."""

import argparse
import json
import random
import sys

from tests.soak.rounds import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (2)")
    parser.add_argument("--seed", type=int, help="decides graphs and faults; it is printed, and random by default")
    arguments = parser.parse_args()
    if arguments.minutes <= 0:
        parser.error("--minutes has to be more than 0")
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    soak = run(arguments.minutes * 60, seed, lambda line: print(line, flush=True))
    print(json.dumps(soak.summary()))
    for sentence in soak.wrong:
        print(sentence, file=sys.stderr)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
