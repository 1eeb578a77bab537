"""Chinese words as tokens: behind BERT's splitting, jieba cuts every stretch that holds an ideograph."""

import json
from itertools import accumulate, pairwise
from typing import Any

from tokenizers import NormalizedString, PreTokenizedString, pre_tokenizers
from tokenizers import Tokenizer as Rust

from .segment import IDEOGRAPH, Segmenter, segmenter

JIEBA = "jieba"  # the one segmenter a tokenizer.json may name: a file must not choose what code is run


class Cut:
    """What BERT's splitting left whole, as words; jieba is loaded when the first ideograph comes."""

    def __init__(self) -> None:
        self.segment: Segmenter | None = None

    def __call__(self, text: str) -> list[str]:
        if not IDEOGRAPH.search(text):
            return [text]
        self.segment = self.segment or segmenter(JIEBA)
        return list(self.segment(text))

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """The library's protocol: called once a text, it cuts the pieces in place and keeps their offsets."""
        text.split(self._parts)

    def _parts(self, number: int, piece: NormalizedString) -> list[NormalizedString]:
        ends = list(accumulate(map(len, self(piece.normalized)), initial=0))
        return [part for pair in pairwise(ends) if (part := piece[slice(*pair)]) is not None]


def install(rust: Rust) -> bytes:
    """Puts jieba behind BERT's splitting; returns the tokenizer.json, which the library cannot write once that is done.

    Other readers of that file see a tokenizer of whole words which takes a Chinese clause for one.
    """
    state = json.loads(rust.to_str())
    state["pre_tokenizer"] = {"type": "BertPreTokenizer", "segmenter": JIEBA}
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.PreTokenizer.custom(Cut())])
    return json.dumps(state, indent=2, ensure_ascii=False).encode()


def asked(data: bytes) -> bool:
    """Whether a tokenizer.json names the segmenter; almost none does, and those are not parsed twice."""
    if b'"segmenter"' not in data:
        return False
    splitter: Any = json.loads(data).get("pre_tokenizer") or {}
    return splitter.get("segmenter") == JIEBA
