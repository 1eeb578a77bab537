"""Perplexity of NNLM (Bengio et al. 2003) against a Kneser-Ney trigram: the same held-out words, the same vocabulary.

texts=FILE valid=FILE    training and validation text
vocab_size=N min_frequency=N     vocabulary size and minimum frequency; other words are [UNK]
order=N embedding_size=N intermediate_size=N direct=false dropout=P
                         the NNLM: n-gram order, sizes, direct connections
epochs=N learning_rate=R batch_tokens=N weight_decay=W device=cuda precision=bf16 eval_every=N
                         its training; the final weights count
"""

from pathlib import Path
from typing import Any

from bertsmith import api
from bertsmith.config import to_dict
from bertsmith.model.presets import nnlm

from .inputs import BenchmarkInputs
from .trigram import KneserNeyTrigram, read_tokens

MAX_LENGTH = 1024


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    train_corpus, valid_corpus, tokenizer_result = _prepare_corpora(bench)
    train_tokens, valid_tokens = read_tokens(train_corpus), read_tokens(valid_corpus)
    vocab_size, start_id = tokenizer_result["vocab_size"], 2  # [CLS]
    trigram_perplexity = KneserNeyTrigram(train_tokens, vocab_size, start_id).perplexity(valid_tokens)
    result = _train_nnlm(bench, train_corpus, valid_corpus)
    num_words, unknown = (valid_tokens != start_id).sum(), _unknown_fraction(valid_tokens)
    name = f"perplexity of {num_words:,} words, vocabulary {vocab_size:,}, unknown {unknown:.1%}"
    ratio = result["perplexity"] / trigram_perplexity
    return [(name, f"{result['perplexity']:.1f}", f"{trigram_perplexity:.1f}", f"{ratio:.2f}", "below 1")]


def _prepare_corpora(bench: BenchmarkInputs) -> tuple[Path, Path, dict[str, Any]]:
    files = {name: bench.options[name] for name in ("texts", "valid")}
    tokenizer_result = api.train_tokenizer(
        kind="word", texts=files["texts"], vocab_size=bench.int_option("vocab_size", 50_000), lowercase=False,
        min_frequency=bench.int_option("min_frequency", 2), out=str(bench.folder / "words"), quiet=True,
    )  # fmt: skip
    for name, path in files.items():
        api.prepare(
            texts=path, tokenizer=str(bench.folder / "words"), sentences="lines", out=str(bench.folder / name), quiet=True
        )
    return bench.folder / "texts", bench.folder / "valid", tokenizer_result


def _train_nnlm(bench: BenchmarkInputs, train_corpus: Path, valid_corpus: Path) -> dict[str, Any]:
    direct = bench.options.get("direct", "true") == "true"
    order, embedding_size = bench.int_option("order", 5), bench.int_option("embedding_size", 60)
    intermediate_size = bench.int_option("intermediate_size", 100)
    hidden_size = intermediate_size + (order - 1) * embedding_size * direct
    model = to_dict(nnlm(order, hidden_size, embedding_size=embedding_size, intermediate_size=intermediate_size, direct=direct))
    model["hidden_dropout_prob"] = float(bench.options.get("dropout", 0.0))
    train = {
        "epochs": float(bench.options.get("epochs", 5)), "learning_rate": float(bench.options.get("learning_rate", 1e-3)),
        "warmup_steps": 0.02, "batch_tokens": bench.int_option("batch_tokens", 4096), "grad_spike_factor": 0.0,
        "device": bench.options.get("device", "cpu"),
        "weight_decay": float(bench.options.get("weight_decay", 0.01)), "precision": bench.options.get("precision", "fp32"),
        "eval_every": bench.int_option("eval_every", 0), "save_every": 1_000_000,
    }  # fmt: skip
    head = {"transform": False, "tied": False, "bias": True}
    return api.pretrain(
        corpus=str(train_corpus), valid=str(valid_corpus), model=model, objective={"kind": "clm", "head": head},
        max_length=MAX_LENGTH, train=train, eval_tokens=1 << 40, out=str(bench.folder / "nnlm"),
    )  # fmt: skip


def _unknown_fraction(tokens: Any) -> float:
    return float((tokens == 1).mean())  # [UNK]
