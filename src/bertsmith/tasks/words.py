"""Words of tagged sentences: from a raw text, as subwords, and with the surrounding sentences of their document."""

import re
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, groupby, pairwise

import numpy as np
from tokenizers import Regex, pre_tokenizers

from ..tokenization.tokenizer import Tokenizer
from .conll_files import Sentence
from .sequences import encode_texts

TokenSubwords = list[list[int]]  # subword ids of each token of a sentence

_SURROGATES = re.compile("[\ud800-\udfff]")
_HAN = Regex(r"\p{Han}")
_PRE_TOKENIZER = pre_tokenizers.Sequence([pre_tokenizers.Split(_HAN, "isolated"), pre_tokenizers.BertPreTokenizer()])


def sentence_from_text(text: str) -> tuple[Sentence, list[tuple[int, int]]]:
    """A raw text as a sentence without document, and the characters [start, end) of each token.

    Tokens are those of BERT's basic tokenizer: words, punctuation characters, Chinese characters.
    """
    clean = _SURROGATES.sub("\ufffd", text)  # same length, so that offsets stay valid
    spans = [span for _, span in _PRE_TOKENIZER.pre_tokenize_str(clean)]
    return Sentence(tokens=tuple(text[start:end] for start, end in spans)), spans


def join_tokens(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Tokens as one text, and the characters [start, end) of each: separated by spaces, but not between CJK characters."""
    parts, offsets = list[str](), list[tuple[int, int]]()
    position, previous = 0, ""
    for token in tokens:
        separator = "" if not parts or (_is_cjk(previous[-1:]) and _is_cjk(token[:1])) else " "
        start = position + len(separator)
        position = start + len(token)
        parts += [separator, token]
        offsets.append((start, position))
        previous = token
    return "".join(parts), offsets


def encode_words(examples: Sequence[Sentence], tokenizer: Tokenizer) -> list[TokenSubwords]:
    """Subword ids of the tokens of each sentence; each distinct token is tokenized once."""
    texts = [
        _add_space_prefix(example.tokens) if tokenizer.has_space_prefixed_tokens else list(example.tokens)
        for example in examples
    ]
    words = list(dict.fromkeys(chain.from_iterable(texts)))
    word_to_ids = dict(zip(words, encode_texts(words, tokenizer), strict=True))
    return [[word_to_ids[text] for text in sentence] for sentence in texts]


def document_context(
    sentences: Sequence[TokenSubwords], documents: Sequence[Hashable], max_tokens: int, max_context: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Context ids before and after each sentence: whole tokens of the same document, at most `max_context` ids per side.

    Consecutive sentences with equal `documents` keys form a document. The tokens a sentence leaves of `max_tokens` are split
    evenly between both sides, and what one side cannot use goes to the other.
    """
    groups = groupby(range(len(sentences)), documents.__getitem__)
    for _, indices in groups:
        yield from _context_in_document([sentences[index] for index in indices], max_tokens, max_context)


def _context_in_document(
    sentences: Sequence[TokenSubwords], max_tokens: int, max_context: int
) -> Iterator[tuple[list[int], list[int]]]:
    flat = list(chain.from_iterable(chain.from_iterable(sentences)))
    token_starts = np.cumsum([0, *(len(ids) for tokens in sentences for ids in tokens)])
    end = 0
    for tokens in sentences:
        start, end = end, end + sum(map(len, tokens))
        left, right = _split_budget(
            min(start, max_context), min(len(flat) - end, max_context), max(0, max_tokens - (end - start))
        )
        first = int(token_starts[np.searchsorted(token_starts, start - left)])
        last = int(token_starts[np.searchsorted(token_starts, end + right, "right") - 1])
        yield flat[first:start], flat[end:last]


def _split_budget(available_before: int, available_after: int, budget: int) -> tuple[int, int]:
    left = min(available_before, max(budget // 2, budget - available_after))
    return left, min(available_after, budget - left)


def document_keys(examples: Sequence[Sentence]) -> list[Hashable]:
    """Document key of each sentence; a sentence without a document gets its own."""
    return [index if example.document_id is None else example.document_id for index, example in enumerate(examples)]


def _add_space_prefix(tokens: Sequence[str]) -> list[str]:
    """Tokens with the leading space that byte-level BPE expects, except next to CJK characters."""
    pairs = pairwise(["", *tokens])
    return [
        f" {current}" if previous and not (_is_cjk(previous[-1]) or _is_cjk(current[:1])) else current
        for previous, current in pairs
    ]


def _is_cjk(character: str) -> bool:
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef" or character >= "\U00020000"
