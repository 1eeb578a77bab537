"""Text of a small Markov chain that is learned in seconds, and pretraining runs on it, healthy or broken by one setting."""

from pathlib import Path
from typing import Any

import numpy as np

import bertsmith
from tests.support.corpora import prepare_test_corpus

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [a + b for a in ("ba", "ke", "li", "mo", "nu", "po", "ri", "sa") for b in ("da", "fe", "go", "hi", "ju", "ma")]
MODEL = {"num_hidden_layers": 2, "hidden_size": 32, "mixer": {"kind": "attention", "num_attention_heads": 2},
         "feedforward": {"intermediate_size": 64}, "max_position_embeddings": 32,
         "hidden_dropout_prob": 0.0, "norm": "pre", "initializer_range": 0.08}  # fmt: skip
TRAIN = {"batch_tokens": 1024, "learning_rate": 1e-2, "warmup_steps": 0.1, "log_every": 5, "steps": 60}


def generate_text(num_documents: int, seed: int = 0, ordered: bool = True) -> str:
    """Documents in which each word has two possible successors; if not `ordered`, words are independent."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(num_documents):
        texts.append("\n".join(_sentence(rng, ordered) for _ in range(rng.integers(3, 9))))
    return "\n\n".join(texts) + "\n"


def _sentence(rng: np.random.Generator, ordered: bool) -> str:
    index, words = int(rng.integers(len(WORDS))), []
    for _ in range(rng.integers(8, 14)):
        words.append(WORDS[index])
        index = (5 * index + int(rng.choice((7, 20)))) % len(WORDS) if ordered else int(rng.integers(len(WORDS)))
    return " ".join(words) + "."


def write_vocab(folder: Path, subwords: list[str]) -> Path:
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *subwords]) + "\n")
    return folder / "vocab.txt"


def prepare_corpus(folder: Path, text: str, subwords: list[str] | None = None, **settings: object) -> Path:
    """Prepares a corpus of this text under `folder`, by default with a vocabulary of its words."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(text)
    vocab = [".", *WORDS] if subwords is None else subwords
    return prepare_test_corpus(folder / "text.txt", write_vocab(folder, vocab), folder / "corpus", **settings)


def pretrain_recipe(corpus_folder: Path, out: Path, model: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """The healthy recipe with other settings of `model`, of `train`, or at top level."""
    top_level = ("objective", "max_length", "validation_split", "valid")
    train = {name: settings.pop(name) for name in tuple(settings) if name not in top_level}
    values = {
        "objective": {"kind": "mlm", "mlm_probability": 0.2},
        "max_length": [32],
        "validation_split": 0.05,
        "eval_tokens": 8192,
        **settings,
    }
    return {
        "corpus": str(corpus_folder),
        "out": str(out),
        "model": {**MODEL, **(model or {})},
        "train": {**TRAIN, **train},
        **values,
    }


def run_pretraining(corpus_folder: Path, out: Path, model: dict[str, Any] | None = None, **settings: Any) -> Path:
    bertsmith.pretrain(quiet=True, **pretrain_recipe(corpus_folder, out, model, **settings))
    return out


def doctor_findings(folder: Path, corpus_folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """The findings of `bertsmith doctor` by name."""
    result = bertsmith.doctor(folder=str(folder), corpus=corpus_folder and str(corpus_folder), quiet=True)
    assert result["healthy"] == (not result["problems"]) and len(result["findings"]) == result["problems"] + result["notes"]
    return {finding["name"]: finding for finding in result["findings"]}


def doctor_problems(folder: Path, corpus_folder: Path | None = None) -> list[str]:
    return [name for name, finding in doctor_findings(folder, corpus_folder).items() if finding["severity"] == "problem"]
