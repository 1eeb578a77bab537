"""What the small model has learned in a minute, on text that it was not trained on.

- loss by step, next to the unigram baseline (a model that knows only how frequent each token is)
- words filled into held-out sentences, and what always answering with the most frequent word would get right
- nearest neighbours of some words among the token embeddings, before and after training
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..console import Console
from ..corpus.card import count_unigrams
from ..corpus.store import Corpus
from ..inference.fill_mask import group_by_mask
from ..inference.predictor import Predictor
from ..model.model import build_model
from ..reports.html import Section, render
from ..reports.training_curves import read_metrics
from ..tokenization.tokenizer import Tokenizer

NUM_SENTENCES = 200
MIN_WORDS, MAX_WORDS = 6, 20  # of a held-out sentence
MIN_LETTERS = 3  # of a masked word
NUM_RIGHT, NUM_WRONG = 6, 2  # examples shown
MIN_COUNT = 100  # in the corpus, of a word that has neighbours or is one
NUM_NEIGHBORS = 4
QUERY_WORDS = ("returns", "list", "integer", "file", "error", "first", "can", "matrix", "true", "method", "server", "class")
MAX_QUERIES = 6
SENTENCE = re.compile(r"[A-Z][^.!?]*[.!?](?=\s|$)")
WORD = re.compile(rf"[a-z]{{{MIN_LETTERS},}}")


@dataclass(frozen=True)
class LossPoint:
    """The loss on held-out text at a step: nats per token, each token masked on its own."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Completion:
    """A held-out sentence with [MASK] in place of one word, and the model's words for it."""

    text: str
    gold: str
    predictions: list[tuple[str, float]]  # (word, probability), most probable first

    @property
    def is_correct(self) -> bool:
        return self.predictions[0][0] == self.gold


@dataclass(frozen=True)
class Learned:
    """Loss by step, completions of held-out sentences, and nearest neighbours of words."""

    unigram_loss: float
    losses: list[LossPoint]
    completions: list[Completion]
    frequent_words: list[str]  # the most frequent ones of the corpus, first first
    neighbors: list[tuple[str, list[str], list[str]]]  # word, neighbours before training, neighbours after

    def accuracy(self, top_k: int) -> float:
        """Share of the sentences whose word is among the model's first `top_k`."""
        return float(np.mean([c.gold in [word for word, _ in c.predictions[:top_k]] for c in self.completions]))

    def unigram_accuracy(self, top_k: int) -> float:
        """The same of a model that always answers with the most frequent words."""
        return float(np.mean([c.gold in self.frequent_words[:top_k] for c in self.completions]))

    @property
    def examples(self) -> list[Completion]:
        """Some right and some wrong completions; words that the baseline gets right are left out."""
        others = [completion for completion in self.completions if completion.gold != self.frequent_words[0]]
        right, wrong = ([c for c in others if c.is_correct is flag] for flag in (True, False))
        return right[:NUM_RIGHT] + wrong[:NUM_WRONG]


def examine(folder: Path, corpus: Corpus, predictor: Predictor, held_out: Sequence[str]) -> Learned:
    """What the model in `folder` has learned; `held_out`: texts that it was not trained on."""
    counts = count_unigrams(corpus.tokens, len(corpus.tokenizer))
    words = _frequent_words(corpus.tokenizer, counts)
    common_words = {word: token_id for word, token_id in words.items() if counts[token_id] >= MIN_COUNT}
    sentences = [masked for text in held_out if (masked := _mask_sentence(text, set(corpus.tokenizer.id_to_token)))]
    completions = [Completion(text, word, _fill(predictor, text)) for text, word in sentences[:NUM_SENTENCES]]
    return Learned(
        corpus.card["unigram_entropy"], _read_losses(folder), completions, list(words)[:5], _neighbors(predictor, common_words)
    )


def read_held_out_texts(folder: Path) -> list[str]:
    """The texts of the classification task's test file, which come from files that are not in the corpus."""
    path = folder / "test.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line)["text"] for line in lines]


def print_learned(learned: Learned, console: Console) -> None:
    """Tables of the losses, the completions and the neighbours."""
    rows = [(f"step {point.step:,}", f"{point.loss:.2f}", f"{point.accuracy:.1%}") for point in learned.losses]
    console.print_table("\nloss on held-out text, in nats per token, and accuracy:", [
        ("", "loss", "accuracy"), ("unigram baseline", f"{learned.unigram_loss:.2f}", ""), *rows])  # fmt: skip
    if learned.completions:
        console.info("\n" + describe_completions(learned))
        table = [("right" if c.is_correct else "wrong", c.gold, ", ".join(word for word, _ in c.predictions[:3]), c.text)
                 for c in learned.examples]  # fmt: skip
        console.print_table("", [("", "word", "predictions", "sentence"), *table])
    if learned.neighbors:
        console.print_table("\nnearest neighbours among the token embeddings, before and after training:", [
            ("word", "before", "after"),
            *((word, ", ".join(before), ", ".join(after)) for word, before, after in learned.neighbors)])  # fmt: skip


def describe_completions(learned: Learned) -> str:
    """The accuracies as a sentence."""
    word, count = learned.frequent_words[0], len(learned.completions)
    return (
        f"One word masked in {count} sentences of files that it has not seen: the small BERT is right in "
        f"{learned.accuracy(1):.1%} (among its first five: {learned.accuracy(5):.1%}); always “{word}”, the most frequent "
        f"word, is right in {learned.unigram_accuracy(1):.1%} (the five most frequent: {learned.unigram_accuracy(5):.1%})."
    )


def render_learned(learned: Learned) -> list[Section]:
    """The sections of the report: completions of held-out sentences, and nearest neighbours."""
    sections = []
    if learned.completions:
        rows = [(c.is_correct, c.gold, [(word, f"{score:.0%}") for word, score in c.predictions[:3]], c.text.split("[MASK]"))
                for c in learned.examples]  # fmt: skip
        accuracies = [
            ("small BERT", f"{learned.accuracy(1):.1%}", f"{learned.accuracy(5):.1%}"),
            ("most frequent words", f"{learned.unigram_accuracy(1):.1%}", f"{learned.unigram_accuracy(5):.1%}"),
        ]
        body = render("learned", "completions", caption=describe_completions(learned), accuracies=accuracies, rows=rows)
        sections.append(Section("Held-out sentences", body))
    if learned.neighbors:
        sections.append(Section("Nearest neighbours", render("learned", "neighbors", rows=learned.neighbors)))
    return sections


def _read_losses(folder: Path) -> list[LossPoint]:
    rows = [row for row in read_metrics(folder) if row.get("split") == "pseudo_perplexity"]
    return [LossPoint(row["step"], row["mlm_loss"], row["mlm_accuracy"]) for row in rows]


def _frequent_words(tokenizer: Tokenizer, counts: NDArray[np.int64]) -> dict[str, int]:
    """{word: id} of the tokens that are whole words, most frequent first."""
    order = np.argsort(-counts, kind="stable")
    words = {tokenizer.id_to_token[i]: int(i) for i in order if counts[i]}
    return {word: token_id for word, token_id in words.items() if WORD.fullmatch(word)}


def _mask_sentence(text: str, vocabulary: set[str]) -> tuple[str, str] | None:
    """The first sentence of fitting length with one word, of the vocabulary, masked: (text, word).

    Which word depends on the text only: the one at 5/8 of those that can be masked.
    """
    for sentence in SENTENCE.findall(text):
        words = sentence.split()
        candidates = [i for i, word in enumerate(words) if WORD.fullmatch(word) and word in vocabulary]
        if MIN_WORDS <= len(words) <= MAX_WORDS and candidates:
            masked = candidates[5 * len(candidates) // 8]
            return " ".join([*words[:masked], "[MASK]", *words[masked + 1 :]]), words[masked]
    return None


def _fill(predictor: Predictor, text: str) -> list[tuple[str, float]]:
    (rows,) = group_by_mask(predictor.fill(text, top_k=5))
    return [(row["token_str"], row["score"]) for row in rows]


def _neighbors(predictor: Predictor, words: dict[str, int]) -> list[tuple[str, list[str], list[str]]]:
    """Nearest frequent words by cosine of the token embeddings, in the untrained and in the trained model."""
    model, seed = predictor.model, predictor.config["recipe"]["seed"]
    before = build_model(model.config, seed, predictor.tokenizer)
    tables = [m.encoder.word_embeddings.weight.detach().float().cpu().numpy() for m in (before, model)]
    queries = [word for word in (*QUERY_WORDS, *words) if word in words][:MAX_QUERIES]
    return [(word, *(_nearest(word, words, table) for table in tables)) for word in queries]  # type: ignore[misc]


def _nearest(word: str, words: dict[str, int], table: NDArray[np.float32]) -> list[str]:
    names = [name for name in words if name != word]
    vectors = table[[words[name] for name in names]]
    cosines = vectors @ table[words[word]] / np.linalg.norm(vectors, axis=1)
    return [names[i] for i in np.argsort(-cosines, kind="stable")[:NUM_NEIGHBORS]]
