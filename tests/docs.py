"""The code blocks of docs/, and what an HTML comment before a block says about running it.

No comment: tests/test_docs.py runs it, and it has to end well. `run until: TEXT`: it is run until it prints that, and stopped.
`run by FILE`: that test reads it from the page. `not run: REASON`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.services import ROOT

BLOCK = re.compile(r"(?:^<!-- (?P<note>.*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    how: str  # run | run until | run by | not run
    what: str  # until what, by which file, why not

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page.name, text[: found.start("text")].count("\n"), found["language"], found["text"], *_how(found["note"])
        )
        for found in BLOCK.finditer(text)
    ]


def _how(note: str | None) -> tuple[str, str]:
    if note and note.startswith("run by "):
        return "run by", note.removeprefix("run by ")
    how, _, what = (note or "run").partition(": ")
    return how, what


def every() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


def pages() -> list[Path]:
    """Without the lab's, whose commands tests/lab runs."""
    return sorted(
        set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / name for name in ("lab.md", "fetch-policies.md")}
    )
