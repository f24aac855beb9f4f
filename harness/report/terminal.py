"""Words with a mark and a colour for a terminal, and without the colour for a pipe."""

from __future__ import annotations

from rich.text import Text

from harness.report.fates import MARKS, Tone
from harness.report.figures import clean

STYLES = {Tone.GOOD: "green", Tone.BAD: "bold red", Tone.OPEN: "yellow", Tone.QUIET: "dim"}


def mark(tone: Tone, words: str) -> Text:
    """`✗ wrong`; the style ends with the words, whatever is appended."""
    return Text.assemble((f"{MARKS[tone]} {clean(words)}", STYLES[tone]))
