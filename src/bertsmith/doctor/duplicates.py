"""Lines and documents that come again and again: the model learns them by heart and little else."""

from collections.abc import Iterator
from typing import Any

from .finding import Finding

SOME, MANY = 0.1, 0.3  # of the sentences; subtitles and forums are near the first by nature


def duplicates(card: dict[str, Any]) -> Iterator[Finding]:
    counted = card.get("duplicates", {})
    dropped = counted.get("sentences dropped", 0)
    again = max(0, counted.get("sentences", 0) - dropped)
    share = again / max(1, card["sentences"])
    documents = 0 if dropped else counted.get("documents", 0)
    whole = documents / max(1, card["documents"])
    if max(share, whole) < SOME:
        return
    yield Finding(
        "duplicate lines",
        "problem" if max(share, whole) >= MANY else "note",
        f"{again:,} of {card['sentences']:,} sentences ({share:.0%}) and {documents:,} of {card['documents']:,} documents "
        f"({whole:.0%}) came before, word for word",
        "repeated lines are learnt by heart: the loss falls on them and stays high elsewhere, and held-out text may have been "
        "read in training, so its scores flatter",
        "prepare the text again without its repeats; headers and footers that stand in every file are best cut out first",
        """drop='["lines"]'""" if share >= whole else """drop='["documents"]'""",
    )
