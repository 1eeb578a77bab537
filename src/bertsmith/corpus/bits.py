"""Bits per byte: what a language model needs to write held-out text down, comparable between vocabularies.

A tokenizer of whole words knows only some of them, and a model that foretells [UNK] has not written the word. So each
unknown word is charged as it would have to be sent: eight bits a byte, and a byte for its end.
"""

import math
from typing import Any

A_BYTE = 8


def bits_per_byte(nats: float, card: dict[str, Any]) -> float | None:
    """Of the text of a corpus at `nats` a token; None where its card does not tell, having left out or not counted some."""
    unknown = card.get("unknown bytes", None if card["unknown rate"] else 0)
    if not card.get("bytes") or unknown is None:
        return None
    return float(nats / math.log(2) * card["tokens"] + A_BYTE * unknown) / float(card["bytes"])
