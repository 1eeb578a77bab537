"""Checks of a prepared corpus.

- documents: enough of them, with several sentences each, for sentence pairs and for a validation split.
- size: enough tokens for the vocabulary.
- duplicate sentences and documents.
- tokenizer: rate of unknown tokens, fertility (subwords per word), unused subwords, mismatched fingerprints.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..corpus.card import count_unigrams
from ..corpus.store import Corpus
from .finding import Finding, format_number

MIN_DOCUMENTS = 8  # below this no document is held out for validation
MIN_TOKENS_PER_SUBWORD = 20  # on average; with fewer, most rows of the embedding table are hardly trained
DUPLICATES_NOTE, DUPLICATES_PROBLEM = 0.1, 0.3  # fractions of sentences; subtitles and forum posts are naturally near the first
MAX_UNK_RATE = 0.02  # of the tokens; the data card warns at the same rate
FERTILITY_NOTE, FERTILITY_PROBLEM = 2.0, 3.0  # subwords per word; a vocabulary trained on the same text has 1.1 to 1.6
MAX_UNUSED_FRACTION = 0.5  # of the vocabulary
FERTILITY_SAMPLE_TOKENS = 1 << 22  # fertility is computed on the first so many tokens
TOKENIZER_PREFIX = "tokenizer: "  # of the names of findings
RETRAIN_TOKENIZER = "train a tokenizer on this text (`bertsmith tokenizer texts=...`) and prepare the corpus again with it"


def check_documents(card: dict[str, Any], objective: str | None) -> Iterator[Finding]:
    """`objective` is the kind of the objective; None for a corpus that has not been trained on yet."""
    if objective in (None, "mlm-nsp", "mlm-sop"):
        yield from _check_pairs(card)
    if 1 < card["documents"] < MIN_DOCUMENTS:
        yield Finding(
            "few documents", "note", f"{card['documents']} documents",
            "with so few, none is held out for validation, and overfitting goes unnoticed",
            "put a blank line between documents and prepare again, or give `pretrain` a validation corpus",
            "valid=FOLDER",
        )  # fmt: skip
    yield from _check_corpus_size(card)


def check_duplicates(card: dict[str, Any]) -> Iterator[Finding]:
    """Sentences or documents that occur more than once."""
    duplicates = card.get("duplicates", {})
    dropped = duplicates.get("dropped_sentences", 0)
    repeated = max(0, duplicates.get("sentences", 0) - dropped)
    sentence_fraction = repeated / max(1, card["sentences"])
    documents = 0 if dropped else duplicates.get("documents", 0)
    document_fraction = documents / max(1, card["documents"])
    if max(sentence_fraction, document_fraction) < DUPLICATES_NOTE:
        return
    yield Finding(
        "duplicate text",
        "problem" if max(sentence_fraction, document_fraction) >= DUPLICATES_PROBLEM else "note",
        f"{repeated:,} of {card['sentences']:,} sentences ({sentence_fraction:.0%}) and {documents:,} of "
        f"{card['documents']:,} documents ({document_fraction:.0%}) are exact duplicates",
        "the model memorizes duplicates, and copies of validation text in the training text make the validation loss too low",
        "prepare the corpus again without duplicates; remove headers and footers that every file has",
        """drop='["lines"]'""" if sentence_fraction >= document_fraction else """drop='["documents"]'""",
    )


def check_unk_rate(card: dict[str, Any]) -> Iterator[Finding]:
    """Too many [UNK] tokens."""
    if card["unknown_rate"] > MAX_UNK_RATE:
        yield Finding(
            TOKENIZER_PREFIX + "unknown tokens", "problem", f"{card['unknown_rate']:.1%} of the tokens are [UNK]",
            "the model cannot learn or predict these words",
            f"{RETRAIN_TOKENIZER}; check that case and language of the vocabulary match the text",
            "tokenizer=FOLDER",
        )  # fmt: skip


def check_corpus_tokenizer(corpus: Corpus) -> Iterator[Finding]:
    """The corpus was tokenized with another tokenizer than the one in its folder."""
    recorded, actual, vocab_size = corpus.card["tokenizer_fingerprint"], corpus.tokenizer.fingerprint, len(corpus.tokenizer)
    max_id = int(corpus.tokens.max()) if len(corpus.tokens) else 0
    if recorded != actual or max_id >= vocab_size:
        yield Finding(
            TOKENIZER_PREFIX + "mismatch", "problem",
            f"{corpus.path} was prepared with tokenizer {recorded[:8]}, but its tokenizer.json is {actual[:8]}; "
            f"its largest id is {max_id:,} of {vocab_size:,}",
            "the token ids do not match the text: a model trained on them learns noise",
            "do not edit a corpus folder by hand; prepare the text again with the right tokenizer", "tokenizer=FOLDER",
        )  # fmt: skip


def check_model_tokenizer(corpus: Corpus, fingerprint: str) -> Iterator[Finding]:
    """The corpus was tokenized with another tokenizer than the model's."""
    if corpus.card["tokenizer_fingerprint"] != fingerprint:
        yield Finding(
            TOKENIZER_PREFIX + "mismatch", "problem",
            f"{corpus.path} was prepared with tokenizer {corpus.card['tokenizer_fingerprint'][:8]}, "
            f"the model has {fingerprint[:8]}",
            "the token ids mean other tokens in the model's vocabulary: this corpus is noise to it",
            "prepare the text with the tokenizer of the model", "tokenizer=FOLDER",
        )  # fmt: skip


def check_fertility(corpus: Corpus) -> Iterator[Finding]:
    """Words are split into too many subwords."""
    fertility = compute_fertility(corpus)
    if fertility and fertility > FERTILITY_NOTE:
        yield Finding(
            TOKENIZER_PREFIX + "high fertility", "problem" if fertility > FERTILITY_PROBLEM else "note",
            f"{fertility:.2f} tokens per word on average",
            "the vocabulary does not fit this text: sequences contain few words, and masked tokens are mostly predicted from "
            "other tokens of the same word", RETRAIN_TOKENIZER, "tokenizer=FOLDER",
        )  # fmt: skip


def check_unused_subwords(corpus: Corpus) -> Iterator[Finding]:
    """Most of the vocabulary never occurs in the text."""
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    non_special = corpus.tokenizer.non_special_ids
    num_unused = int((counts[non_special] == 0).sum())
    if num_unused > MAX_UNUSED_FRACTION * len(non_special):
        yield Finding(
            TOKENIZER_PREFIX + "unused tokens", "note",
            f"{num_unused:,} of the {len(non_special):,} tokens of the vocabulary never occur in the text",
            "their embeddings cost memory and time at every step and learn nothing",
            f"{RETRAIN_TOKENIZER}, with a smaller vocab_size",
            f"vocab_size={max(100, len(non_special) - num_unused + 5)}",
        )  # fmt: skip


def compute_fertility(corpus: Corpus) -> float | None:
    """Subwords per word; None where words cannot be identified: character or byte vocabularies, text without spaces."""
    tokenizer, ids = corpus.tokenizer, np.asarray(corpus.tokens[:FERTILITY_SAMPLE_TOKENS])
    subwords = [tokenizer.id_to_token[token_id].removeprefix("##").lstrip("Ġ▁") for token_id in tokenizer.non_special_ids]
    is_word_like = np.zeros(len(tokenizer), bool)
    is_word_like[tokenizer.non_special_ids] = [any(c.isalnum() for c in subword) for subword in subwords]
    if tokenizer.is_hex or not subwords or np.mean([len(subword) > 1 for subword in subwords]) < 0.2:
        return None
    in_word = is_word_like[ids]
    num_words = int((in_word & ~tokenizer.is_continuation[ids]).sum())
    if tokenizer.word_start_prefix and num_words < 0.1 * in_word.sum():
        return None
    return float(in_word.sum() / num_words) if num_words else None


def _check_pairs(card: dict[str, Any]) -> Iterator[Finding]:
    num_single = card.get("document_lengths", {}).get("1+", 0)
    if card["documents"] == 1:
        yield Finding(
            "no document boundaries", "problem", f"one document of {card['sentences']:,} sentences",
            "next-sentence prediction has no other document to sample a negative sentence from, and none can be held out",
            "put a blank line between documents and prepare again, or train with MLM only", "objective=mlm",
        )  # fmt: skip
    elif num_single == card["documents"]:
        yield Finding(
            "no sentence pairs", "problem", f"each of the {num_single:,} documents is one sentence",
            "no sentence has a next sentence: there are no positive pairs",
            "remove the blank lines between the sentences of a document and prepare again, or train with MLM only",
            "objective=mlm",
        )  # fmt: skip
    elif num_single > 0.5 * card["documents"]:
        yield Finding(
            "short documents", "note", f"{num_single:,} of {card['documents']:,} documents are one sentence",
            "sentence pairs use these only as a random second segment",
            "train with MLM only, which uses all text", "objective=mlm",
        )  # fmt: skip


def _check_corpus_size(card: dict[str, Any]) -> Iterator[Finding]:
    tokens_per_subword = card["tokens"] / max(1, card["vocab_size"])
    if tokens_per_subword < MIN_TOKENS_PER_SUBWORD:
        suggested_size = max(100, card["tokens"] // (5 * MIN_TOKENS_PER_SUBWORD))
        yield Finding(
            "too little text", "problem" if tokens_per_subword < MIN_TOKENS_PER_SUBWORD / 4 else "note",
            f"{card['tokens']:,} tokens for a vocabulary of {card['vocab_size']:,}: "
            f"{format_number(tokens_per_subword)} per vocabulary entry",
            "most tokens occur too rarely to be learned",
            "use more text, a smaller vocabulary, or continue from a pre-trained model (init=FOLDER)",
            f"vocab_size={suggested_size}" if suggested_size < card["vocab_size"] else "init=FOLDER",
        )  # fmt: skip
