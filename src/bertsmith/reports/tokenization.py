"""HTML sections of tokenization: the pieces of texts with their ids, words that are unknown, and fertility."""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .charts import FlowToken, TokenFlow
from .html import Section, render

MAX_TOKENS = 2000  # of one text
CAPTION = (
    "Each piece has its id below it; pieces of the same word touch. Orange pieces are unknown: the model does not see which "
    "word stood there. Fertility is the number of tokens per word."
)


class TokenizedText(NamedTuple):
    """A text in tokens, without [CLS] and [SEP]."""

    text: str
    ids: list[int]
    tokens: list[str]
    word_ids: list[int]  # the word of each token, counted from 0
    offsets: list[tuple[int, int]]  # characters [start, end) of each token

    @property
    def num_words(self) -> int:
        return len(set(self.word_ids))

    def unknown_words(self, unk_token_id: int) -> list[str]:
        """The words with an unknown piece, in order."""
        unknown = dict.fromkeys(
            word for word, token_id in zip(self.word_ids, self.ids, strict=True) if token_id == unk_token_id
        )
        places = {word: [o for o, w in zip(self.offsets, self.word_ids, strict=True) if w == word] for word in unknown}
        return [self.text[spans[0][0] : spans[-1][1]] for spans in places.values()]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TokenizedText]:
    """Words are those of the tokenizer's own splitting, before it looks for pieces."""
    results = []
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        if len(encoding.ids) > MAX_TOKENS:
            raise UserError(f"a text of {len(encoding.ids):,} tokens is too long to show; give at most {MAX_TOKENS:,}")
        word_ids = [index if word is None else word for index, word in enumerate(encoding.word_ids)]
        results.append(TokenizedText(text, list(encoding.ids), list(encoding.tokens), word_ids, list(encoding.offsets)))
    return results


def render_tokenization(tokenizer: Tokenizer, texts: Sequence[TokenizedText]) -> list[Section]:
    """A section of counts over all texts, and one for each text."""
    unk = tokenizer.unk_token_id
    num_tokens, num_words = sum(len(text.ids) for text in texts), sum(text.num_words for text in texts)
    unknown = [word for text in texts for word in text.unknown_words(unk)]
    facts = [
        ("tokens", num_tokens, f"of a vocabulary of {len(tokenizer):,}"),
        ("words", num_words, f"in {len(texts)} text{'s' * (len(texts) > 1)}"),
        ("fertility", num_tokens / max(num_words, 1), "tokens per word"),
        ("unknown words", len(unknown), f"{len(unknown) / max(num_words, 1):.1%} of the words"),
    ]
    rows = [
        (text.text[:60] + "…" * (len(text.text) > 60), text.num_words, len(text.ids),
         f"{len(text.ids) / max(text.num_words, 1):.2f}", ", ".join(dict.fromkeys(text.unknown_words(unk))) or "none")
        for text in texts
    ]  # fmt: skip
    sections = [Section("Tokens", render("tokenization", "summary", facts=facts, caption=CAPTION, rows=rows))]
    for number, text in enumerate(texts, 1):
        flow = TokenFlow(f"{len(text.ids)} tokens, {text.num_words} words", _flow_tokens(text, unk))
        sections.append(Section(f"Text {number}", render("tokenization", "text", flow=flow), (flow.draw(),)))
    return sections


def _flow_tokens(text: TokenizedText, unk_token_id: int) -> list[FlowToken]:
    return [
        FlowToken(
            token,
            str(token_id),
            style="unknown" if token_id == unk_token_id else "masked" if word % 2 else "unchanged",
            joins=index > 0 and text.word_ids[index - 1] == word,
            tooltip=text.text[start:end],
        )
        for index, (token, token_id, word, (start, end)) in enumerate(
            zip(text.tokens, text.ids, text.word_ids, text.offsets, strict=True)
        )
    ]
