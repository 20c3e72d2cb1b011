"""Ends well once every address given has answered 200, badly after two minutes."""

import sys
import time
import urllib.error
import urllib.request

PATIENCE = 120.0  # seconds


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main(urls: list[str]) -> int:
    deadline = time.monotonic() + PATIENCE
    while missing := [url for url in urls if not answers(url)]:
        if time.monotonic() > deadline:
            print("no answer from", *missing, file=sys.stderr)
            return 1
        time.sleep(0.5)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
