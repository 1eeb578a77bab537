"""Written ids as a text: special tokens left out, and no space between ideographs that no space parted."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..text.tokenizer import Tokenizer

# Ideographs, kana and full-width signs: WordPiece puts spaces around each, which no Chinese text has.
_WIDE = "\u2e80-\u30ff\u31c0-\u31ef\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_GAPS = re.compile(f"(?<=[{_WIDE}]) +| +(?=[{_WIDE}])")


class Spelling:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        kept = np.asarray(ids, np.int64)
        text = self.tokenizer.decode(kept[~self.tokenizer.special[kept]].tolist())
        return (text if self.tokenizer.marks_starts == "Ġ" else _GAPS.sub("", text)).strip()
