"""Names, summaries and options of all benchmarks, for `--help` and for checking the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertsmith.config import suggest
from bertsmith.errors import UserError

USAGE = "python -m benchmarks [NAME ...] [option=value ...] [--help]"

TEXTS = {
    "texts": "text files, comma-separated; default: docstrings of the installed packages",
    "tokenizer": "vocab.txt or tokenizer.json; default: a WordPiece tokenizer trained on the texts",
}
WEIGHTS = {
    **TEXTS,
    "model": "Hugging Face folder with the weights of both sides; default: random",
    "size": "layers x hidden size of random weights (6x384)",
}
LABELLED = {
    "short": "labelled short texts (.tsv, .csv, .jsonl); default: synthetic",
    "long": "labelled long texts; default: synthetic",
    **{
        f"{kind}.{column}": f"column of the {column}s in `{kind}`" for kind in ("short", "long") for column in ("text", "label")
    },
}
DEVICE = {"device": "cpu or cuda", "precision": "fp32 or bf16"}


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: a module of this package with `run(bench)`."""

    summary: str
    options: Mapping[str, str]  # name: meaning
    by_default: bool = False  # run without being named

    @property
    def required(self) -> list[str]:
        return [name for name, meaning in self.options.items() if meaning.endswith("(required)")]


BENCHMARKS = {
    "preparing": Benchmark("`prepare` against the tokenizers library: MB/s, memory, disk", TEXTS, by_default=True),
    "batching": Benchmark("batch construction: sampling, masking, packing", TEXTS, by_default=True),
    "train_step": Benchmark("pre-training step of bert-mini on a CPU against transformers", TEXTS, by_default=True),
    "finetuning": Benchmark(
        "fine-tuning a classifier against transformers' Trainer: examples/s",
        {**WEIGHTS, **LABELLED, **DEVICE, "batch_size": "sequences per batch; default: 32 (short), 8 (long)",
         "steps": "measured steps per round (24)", "rounds": "rounds; the median counts (3)", "compile": "true: torch.compile"},
        by_default=True,
    ),
    "predicting": Benchmark(
        "text classification on a CPU against transformers' pipeline: texts/s",
        {**WEIGHTS, **LABELLED, "count": "number of texts (400)", "rounds": "rounds; the median counts (3)"},
        by_default=True,
    ),
    "compressed": Benchmark(
        "compressed classifiers against transformers on the original: latency, throughput, bytes, accuracy",
        {"model": "fine-tuned checkpoint (required)", "small": "folders made of it, comma-separated (required)",
         "data": "labelled texts, .tsv (required)", "rounds": "rounds; the median counts (3)"},
    ),
    "cpu_inference": Benchmark(
        "sentence embeddings on a CPU against every engine: one text, many texts, busy neighbours",
        {**WEIGHTS, "count": "number of texts (512)",
         "rounds": "rounds; the median counts (3)", "cells": "of single, arrival, sorted, busy; default: all",
         "neighbours": "busy processes (4)",
         "prepared": "folder of the converted models; kept, and used if it exists",
         "clock": "wall, or cpu: CPU time, which other processes disturb less (wall)",
         "cores": "cores that each library may use; 0: all (0)",
         "arms": "libraries and precisions, comma-separated; default: all that are installed"},
    ),
    "loading": Benchmark(
        "import, load and first prediction in a new process against transformers",
        {**WEIGHTS, "rounds": "rounds; the median counts (5)"},
        by_default=True,
    ),
    "engines": Benchmark(
        "answers on a CPU by onnxruntime, OpenVINO and torch: first answer, memory, idle threads, busy neighbours",
        {"model": "shipped model, or a folder with an ONNX graph (mini-en)",
         "backends": "of onnx, openvino, torch; default: all installed", "rounds": "processes of the first answer (5)",
         "count": "texts until memory is read (20000)", "neighbours": "busy processes (4)"},
    ),
    "serving": Benchmark(
        "`bertsmith serve` under load and faults: against offline, infinity, and FastAPI with a transformers pipeline",
        {**WEIGHTS, "parts": "embed, classify, memory, faults; default: all", "count": "number of texts (2000)",
         "precision": "fp32, bf16 or auto (fp32)", "seconds": "of a measurement (12)",
         "requests": "of the memory row (100000)", "minutes": "limit of the memory row (4)",
         "peers": "python of an environment with infinity-emb, FastAPI, transformers and schemathesis; default: without",
         "stops": "stops under load of each kind (6)", "examples": "of schemathesis, for each path (30)"},
    ),
    "generating": Benchmark(
        "text generation with and without KV cache, and against transformers",
        {"sizes": "models, of tiny, small, base (tiny,small)", "max_new_tokens": "tokens per text (256)",
         "rounds": "rounds; the median counts (3)", "device": "cpu or cuda"},
        by_default=True,
    ),
    "versions": Benchmark(
        "`prepare`, saving a checkpoint, and answers, against an earlier version of the package",
        {**TEXTS, "before": "`src` of the earlier version, such as a git worktree's (required)",
         "rounds": "rounds; the median counts (5)"},
    ),
    "planning": Benchmark(
        "`plan` against real runs: parameters, disk, time, memory", {**TEXTS, "steps": "steps of a run (40; 200 on a GPU)"}
    ),
    "scores": Benchmark(
        "fine-tuning scores against transformers on the tasks of a suite",
        {"suite": "TOML file with one table per task (required), such as benchmarks/scores.toml",
         "tasks": "tasks of the suite; default: all", "seeds": "random seeds (0,1,2)", "out": "folder of the results",
         "minutes": "time limit; unfinished jobs are left out", "jobs": "parallel processes (1)", **DEVICE},
    ),
    "embeddings": Benchmark(
        "sentence embeddings as they come: similarity of pairs and retrieval, beside BM25",
        {"suite": "TOML file with one table per set (required), such as benchmarks/embeddings.toml",
         "models": "shipped models and folders, comma-separated, and bm25 (required)",
         "cases": "sets of the suite; default: all",
         "dimensions": "sizes to which vectors are truncated too, comma-separated", "queries": "of a retrieval set (2000)",
         "out": "file to which every result is appended"},
    ),
    "defaults": Benchmark(
        "fine-tuning with nothing set against tuned settings",
        {"suite": "TOML file with one table per set (required), such as benchmarks/defaults.toml",
         "sets": "sets of the suite; default: all", "seeds": "random seeds (0,1,2)", "out": "folder of the results",
         "minutes": "time limit; unfinished runs are left out", "jobs": "parallel processes (1)", **DEVICE},
    ),
    "gpu_pretrain": Benchmark(
        "pre-training step of BERT on a GPU against transformers",
        {"model": "preset (bert-base)", "batch_tokens": "tokens per batch (65536)", "steps": "measured steps (20)",
         "cases": "sequence lengths (128,512,mixed-128,mixed-512)", "peer": "sdpa, compile or both; empty: none (sdpa)",
         "trace": "file for a kernel profile of the first case"},
    ),
    "gpu_feeding": Benchmark(
        "time that a GPU run waits for batches",
        {"corpus": "corpus folder (required)", "model": "preset (bert-base)", "max_length": "sequence length (128)",
         "batch_tokens": "tokens per batch (65536)", "workers": "worker processes (12)", "steps": "steps (150)"},
    ),
    "perplexity": Benchmark(
        "perplexity of NNLM against a Kneser-Ney trigram model",
        {"texts": "training text (required)", "valid": "validation text (required)",
         "vocab_size": "maximum vocabulary size (50000)", "min_frequency": "minimum count of a word (2)",
         "order": "n of the n-gram model (5)", "embedding_size": "word embedding size (60)",
         "intermediate_size": "hidden layer size (100)", "direct": "direct connections (true)", "dropout": "dropout (0)",
         "epochs": "epochs (5)", "learning_rate": "peak learning rate (1e-3)", "batch_tokens": "tokens per batch (4096)",
         "weight_decay": "weight decay (0.01)", "eval_every": "steps between evaluations (0: at the end)", **DEVICE},
    ),
    "vectors": Benchmark(
        "word vectors against gensim: words/s, similarity, analogies",
        {"texts": TEXTS["texts"], "vocab_size": "maximum vocabulary size (30000)", "epochs": "epochs (3)",
         "threads": "CPU threads of both sides (1)",
         "methods": "skip-gram, cbow, skip-gram-hs, cbow-hs, glove (skip-gram,cbow)",
         "device": "cpu or cuda, for bertsmith", "peer": "gensim or none", "pairs": "word similarity files",
         "analogies": "analogy files"},
    ),
    "scaling": Benchmark(
        "time and memory of the mixers by sequence length",
        {"lengths": "sequence lengths (512,1024,2048,4096,8192)", "kinds": "mixers; default: all",
         "hidden_size": "hidden size (768)", "num_attention_heads": "heads (12)",
         "num_hidden_layers": "layers of a whole model; 0: the mixer alone (0)",
         "batch_tokens": "tokens per batch, at least one sequence (0)", "rounds": "measured steps (2)",
         "threads": "CPU threads (1)", "gradient_checkpointing": "1: on (0)", "compile": "1: torch.compile (0)",
         "reversible": "1: reversible layers (0)", "hidden_dropout_prob": "dropout (0)",
         "max_seconds": "a slower mixer is not measured at greater lengths (60)", "device": "cpu or cuda",
         "out": "folder for time.svg and memory.svg"},
    ),
    "reformer": Benchmark(
        "LSH attention against transformers' Reformer, and memory of reversible layers by depth",
        {"lengths": "sequence lengths (4096,16384)", "batch_tokens": "tokens per batch (32768)",
         "num_hidden_layers": "layers (12)", "hidden_size": "hidden size (768)", "num_attention_heads": "heads (12)",
         "rounds": "measured steps (2)", "depths": "numbers of layers for the memory rows (6,12,24,48)",
         "depth_length": "sequence length of the memory rows (4096)", "device": "cuda or cpu", "threads": "CPU threads (1)",
         "gradient_checkpointing": "1: on (0)", "compile": "1: torch.compile (0)", "reversible": "1: in all rows (0)"},
    ),
    "long_documents": Benchmark(
        "Longformer against truncated, hierarchical and windowed reading of long documents",
        {"reviews": "classification, .jsonl with text, label and optional fold (required)",
         "covid": "question answering on long articles, SQuAD JSON (required)",
         "squad": "question answering on short passages, SQuAD JSON (required)",
         "texts": "long documents for continued MLM training (required)", "out": "folder of the results (required)",
         "model": "encoder (mini-en)", "folds": "folds of reviews and of covid (5,3); 0: leave out",
         "max_length": "sequence length of Longformer (4096)", "short_length": "of the others (512)",
         "attention_window": "attention window (512)", "minutes": "of continued MLM training (1)",
         "learning_rate": "of continued MLM training (5e-4)", "steps": "replaces all epochs and minutes, for a quick test",
         "seconds": "time limit; 0: only the table, from existing results", "jobs": "parallel processes (1)", **DEVICE},
    ),
    "long_questions": Benchmark(
        "a model fine-tuned on short passages and converted to a Longformer, against truncation",
        {"model": "pre-trained encoder (required)", "squad": "training file, SQuAD JSON (required)",
         "dev": "evaluation file, SQuAD JSON (required)", "out": "folder of the results (required)",
         "every": "use one question in so many (30)", "characters": "maximum length of joined passages (10000)",
         "max_length": "sequence length with windows (4096)", "short_length": "sequence length with truncation (512)",
         "train_length": "sequence length of fine-tuning (256)", "attention_window": "attention window (512)",
         "epochs": "epochs (1)", "learning_rate": "peak learning rate (1.5e-4)", "steps": "replaces epochs", **DEVICE},
    ),
}  # fmt: skip
DEFAULT_BENCHMARKS = tuple(name for name, benchmark in BENCHMARKS.items() if benchmark.by_default)


def parse_arguments(args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Names of the benchmarks to run and their options; UserError for an unknown name, or an option that none of them has."""
    names = [arg for arg in args if "=" not in arg]
    options = dict(arg.split("=", 1) for arg in args if "=" in arg)
    _check_names(names)
    names = names or list(DEFAULT_BENCHMARKS)
    known = list(dict.fromkeys(option for name in names for option in BENCHMARKS[name].options))
    for option in options:
        if option not in known:
            raise UserError(f"{', '.join(names)}: unknown option {option!r}; {suggest(option, known)}")
    for name in names:
        if missing := [option for option in BENCHMARKS[name].required if option not in options]:
            raise UserError(f"{name} needs {'=... '.join(missing)}=...; see `python -m benchmarks {name} --help`")
    return names, options


def format_help(names: Sequence[str] = ()) -> str:
    """The page of `--help`: every benchmark with its options, or the benchmarks named, with the meaning of each option."""
    lines = [f"usage: {USAGE}", ""]
    _check_names(names)
    for name in names or BENCHMARKS:
        lines.append(f"{name}: {BENCHMARKS[name].summary}")
        options = BENCHMARKS[name].options
        if names:
            width = max(map(len, options))
            lines += [f"  {option.ljust(width)}  {meaning}" for option, meaning in options.items()] + [""]
        else:
            lines += _wrap_names(list(options))
    if not names:
        lines += ["", f"Without a name: {', '.join(DEFAULT_BENCHMARKS)}."]
        lines.append("`python -m benchmarks NAME --help` explains the options of a benchmark.")
    return "\n".join(lines).rstrip()


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in BENCHMARKS:
            raise UserError(f"unknown benchmark {name!r}; {suggest(name, list(BENCHMARKS))}")


def _wrap_names(names: Sequence[str], width: int = 100) -> list[str]:
    lines = [" "]
    for name in names:
        if len(lines[-1]) + len(name) + 1 > width:
            lines.append(" ")
        lines[-1] += f" {name}"
    return lines
