"""What was wrong with a source, counted by kind, told in sentences."""

from dataclasses import dataclass, field


def count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


class SourceError(Exception):
    """Nothing at all could be read; the message is one clear sentence for the user."""


@dataclass(slots=True)
class Problems:
    """A kind of problem is told once, with its first example and how often it came."""

    _counts: dict[str, int] = field(default_factory=dict)
    _examples: dict[str, str] = field(default_factory=dict)

    def add(self, sentence: str, example: str = "") -> None:
        self._counts[sentence] = self._counts.get(sentence, 0) + 1
        self._examples.setdefault(sentence, example)

    def sentences(self) -> tuple[str, ...]:
        return tuple(self._sentence(text, count) for text, count in self._counts.items())

    def _sentence(self, text: str, count: int) -> str:
        example = self._examples[text]
        details = [f"{count:,} times"] * (count > 1) + [f"first: {example}" if count > 1 else example] * bool(example)
        return f"{text} ({', '.join(details)})." if details else f"{text}."
