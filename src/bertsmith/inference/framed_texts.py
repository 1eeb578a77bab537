"""Single texts as [CLS] text [SEP], with the tokens and their places in the text."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..tokenization.tokenizer import Tokenizer
from .engines.base import Ints


class EncodedText(NamedTuple):
    """One text as [CLS] text [SEP]."""

    ids: Ints
    tokens: list[str]
    offsets: NDArray[np.int64]  # (tokens, 2): characters [start, end) of each token; 0, 0 for [CLS] and [SEP]


def encode_framed(tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> list[EncodedText]:
    """[CLS] text [SEP], truncated to `max_length` tokens."""
    limit, (cls_id, sep_id) = max_length - 2, (tokenizer.cls_token_id, tokenizer.sep_token_id)
    cls_token, sep_token = (tokenizer.id_to_token[token_id] for token_id in (cls_id, sep_id))
    return [
        EncodedText(
            np.array([cls_id, *encoding.ids[:limit], sep_id], np.int64),
            [cls_token, *encoding.tokens[:limit], sep_token],
            np.array([(0, 0), *encoding.offsets[:limit], (0, 0)], np.int64),
        )
        for encoding in tokenizer.encode_batch(texts)
    ]
