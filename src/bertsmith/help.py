"""The help pages of the command line. What each stage does, its examples and its main keys are in `STAGE_HELP`.

`bertsmith STAGE --help` prints a page that fits one screen; `finetune task=tag --help` the keys of that kind; `--help train`
the keys of a table; `--help all` every key. Defaults, types and meanings come from the schema, so torch is not imported.
"""

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

from .commands import STAGES
from .config import KeyHelp, iter_keys, suggest
from .errors import UserError
from .recipes import list_shipped
from .schema import load_stage_schema

USAGE = "bertsmith STAGE [RECIPE.toml] [key=value ...] [--json] [--quiet] [--help]"
MAX_WIDTH = 100  # columns
# Columns; a longer default follows the meaning, the meaning of a longer name is on the next line.
MAX_KEY_WIDTH, MAX_DEFAULT_WIDTH = 32, 12
KIND = re.compile(r"\[([^]]*)\]")  # in the names of `iter_keys`: task[tag].crf
MAX_CHOICES = 12  # longer lists, those of presets, are written by family


class StageHelp(NamedTuple):
    """The content of one help page."""

    summary: str  # one or two sentences
    examples: tuple[str, ...]  # complete commands
    keys: tuple[str, ...]  # the keys that people change


STAGE_HELP = {
    "tokenizer": StageHelp(
        "Train a tokenizer (WordPiece, BPE, unigram, ...) on text files, or add tokens for your domain to one you have. "
        "Writes a folder with tokenizer.json and a report.",
        (
            "bertsmith tokenizer 'texts=books/*.txt.gz' vocab_size=30000 out=out/tokenizer",
            "bertsmith tokenizer texts=news.jsonl kind=byte-bpe lowercase=false out=out/tokenizer",
            "bertsmith tokenizer texts=law.txt extend=out/tokenizer add=2000 out=out/law-tokenizer",
        ),
        ("texts", "out", "kind", "vocab_size", "lowercase", "min_frequency", "language", "column", "extend", "add"),
    ),
    "prepare": StageHelp(
        "Tokenize text files into a corpus folder that `pretrain` reads: token ids, sentences and documents, and a data card.",
        (
            "bertsmith prepare 'texts=books/*.txt.gz' tokenizer=out/tokenizer out=out/corpus",
            "bertsmith prepare texts=zh.jsonl tokenizer=vocab.txt language=zh drop=documents out=out/zh",
        ),
        ("texts", "tokenizer", "out", "workers", "language", "sentences", "drop", "column", "lowercase"),
    ),
    "pretrain": StageHelp(
        "Pre-train a model, or word vectors, on a corpus that `prepare` made. Give one of train.steps, train.epochs and "
        "train.minutes. An interrupted run resumes when you run the same command again.",
        (
            "bertsmith pretrain corpus=out/corpus model=bert-mini train.steps=20000 out=out/bert",
            "bertsmith pretrain corpus=out/corpus model=gpt objective=clm train.steps=20000 out=out/gpt",
            "bertsmith pretrain corpus=out/domain init=mini-en train.epochs=3 out=out/domain-bert",
        ),
        ("corpus", "out", "model", "objective", "max_length", "init", "train.steps", "train.batch_tokens",
         "train.learning_rate", "train.optimizer", "train.precision", "seed"),
    ),
    "plan": StageHelp(
        "Estimate what a pre-training run will take: parameters, peak memory, time and disk. It takes the keys of `pretrain`, "
        "and suggests settings that fit where yours do not.",
        (
            "bertsmith plan model=bert-base max_length=512 train.steps=100000 machine=h200",
            "bertsmith plan corpus=out/corpus model=bert-mini train.epochs=10",
        ),
        ("corpus", "model", "objective", "max_length", "train.steps", "train.batch_tokens", "train.precision", "vocab_size",
         "machine", "seconds"),
    ),
    "import": StageHelp(
        "Convert a Hugging Face, TensorFlow or ELMo checkpoint, or a file of word vectors, to a checkpoint folder.",
        (
            "bertsmith import source=path/to/hugging-face-folder out=out/bert",
            "bertsmith import source=uncased_L-12_H-768_A-12 out=out/bert-base",
            "bertsmith import source=glove.6B.100d.txt out=out/glove",
        ),
        ("source", "out", "tokenizer", "lowercase", "attention_dropout", "check"),
    ),
    "convert-long": StageHelp(
        "Convert a model with full attention to a Longformer: sliding-window attention and more positions. Pre-train it a "
        "little further afterwards, with `pretrain init=`.",
        (
            "bertsmith convert-long model=mini-en max_length=4096 out=out/mini-long",
            "bertsmith convert-long model=out/bert max_length=2048 attention_window=256 out=out/bert-long",
        ),
        ("model", "out", "max_length", "attention_window", "dilation", "global_attention"),
    ),
    "export": StageHelp(
        "Write a checkpoint for another library, or with int8 weights, and compare it with the original.",
        (
            "bertsmith export model=out/bert format=hf out=out/bert-hf",
            "bertsmith export model=out/mood format=int8 out=out/mood-int8",
            "bertsmith export model=out/vectors format=vectors out=vectors.bin",
        ),
        ("model", "out", "format", "check", "header", "card"),
    ),
    "finetune": StageHelp(
        "Fine-tune a pre-trained model on a task; batch size, epochs and lengths suit the data by default.",
        (
            "bertsmith finetune task=classify model=mini-en data.train=train.tsv data.dev=dev.tsv out=out/mood",
            "bertsmith finetune task=tag model=out/bert data.train=train.conll task.crf=true out=out/names",
            "bertsmith finetune recipes/lora.toml model=out/bert data.train=train.tsv out=out/lora",
        ),
        ("task", "model", "data.train", "data.dev", "out", "max_length", "train.epochs", "train.learning_rate",
         "train.batch_tokens", "freeze", "lora", "seeds"),
    ),
    "prune": StageHelp(
        "Make a model smaller: attention heads, feed-forward neurons, layers and unused tokens are removed, single weights or "
        "blocks set to zero, while the unpruned model teaches the smaller one. Reports score, size and speed before and after.",
        (
            "bertsmith prune model=out/mood data.train=train.tsv data.dev=dev.tsv out=out/mood-pruned",
            "bertsmith prune model=out/mood data.train=train.tsv unit=block amount=0.8 out=out/mood-sparse",
            "bertsmith prune model=mini-en unit=vocab texts=books/*.txt.gz out=out/mini-books",
        ),
        ("model", "out", "unit", "amount", "data.train", "data.dev", "texts", "importance", "drop_layers", "train.epochs",
         "train.learning_rate", "sparsity_schedule", "loss"),
    ),
    "share": StageHelp(
        "Make an ALBERT-shaped model: layers share the weights of one block or several, the token embeddings are factorized "
        "by truncated SVD. With data, the original model teaches the smaller one.",
        (
            "bertsmith share model=out/mood data.train=train.tsv num_hidden_groups=2 out=out/mood-albert",
            "bertsmith share model=out/bert embedding_size=128 out=out/bert-narrow",
        ),
        ("model", "out", "num_hidden_groups", "group_init", "embedding_size", "data.train", "data.dev", "train.epochs",
         "train.learning_rate", "loss"),
    ),
    "quantize": StageHelp(
        "Make a model whose linear layers compute in int8, with embedding tables of 8 or 4 bits. Layers that hurt stay in "
        "float32, and nothing worse than `gate` is written. The folder answers through onnxruntime, without torch.",
        (
            "bertsmith quantize model=out/mood data.train=train.tsv data.dev=dev.tsv out=out/mood-int8",
            "bertsmith quantize model=out/mood mode=qat data.train=train.tsv data.dev=dev.tsv out=out/mood-qat",
            "bertsmith quantize model=mini-en out=out/mini-int8",
        ),
        ("model", "out", "mode", "data.train", "data.dev", "corpus", "gate", "embedding_bits", "modules_to_not_convert",
         "sensitivity", "train.epochs", "train.learning_rate"),
    ),
    "evaluate": StageHelp(
        "Evaluate a fine-tuned model on a labelled file: every score with its confidence interval, calibration, slices and "
        "the worst errors, in scores.json and report.html.",
        (
            "bertsmith evaluate model=out/mood data=test.tsv out=out/report",
            "bertsmith evaluate model=out/mood data=test.tsv against=out/other out=out/report",
        ),
        ("model", "data", "out", "against", "columns", "errors", "skip_bad", "backend", "device",
         "precision"),
    ),
    "distill": StageHelp(
        "Train a smaller model on what a larger one predicts and computes: for its task with `data`, or for any task with "
        "`corpus`. An interrupted run resumes when you run the same command again.",
        (
            "bertsmith distill teacher=out/mood student.num_hidden_layers=2 data.train=train.tsv out=small",
            "bertsmith distill teacher=out/bert loss=minilm corpus=out/corpus train.steps=20000 out=small",
        ),
        ("teacher", "student", "data.train", "data.dev", "corpus", "out", "loss", "max_length", "train.epochs", "train.steps",
         "train.learning_rate", "seed"),
    ),
    "compress": StageHelp(
        "Find the smallest model that keeps its score: students of fewer layers, pruned heads and neurons, int8, and their "
        "combinations are trained and measured (score, size, memory, latency, throughput); a page shows the front.",
        (
            "bertsmith compress model=out/mood data.train=train.tsv data.dev=dev.tsv gate=0.98 out=out/small",
            "bertsmith compress model=out/mood data.train=train.tsv amount=0.5,0.7 out=out/tiny",
        ),
        ("model", "data.train", "data.dev", "out", "gate", "num_hidden_layers", "amount", "unit", "precision", "format",
         "train.epochs", "train.learning_rate"),
    ),
    "suite": StageHelp(
        "Fine-tune several models on several tasks with several seeds, and write one table of scores.",
        ("bertsmith suite recipes/suite.toml", "bertsmith suite recipes/suite.toml 'seeds=[0,1,2,3,4]' jobs=4 out=out/suite"),
        ("models", "tasks", "out", "every", "seeds", "jobs"),
    ),
    "race": StageHelp(
        "Pre-train several model families on one corpus with one compute budget, fine-tune them on tasks and compare them.",
        (
            "bertsmith race recipes/race.toml texts=english.txt.xz valid=valid.txt.xz out=out/race",
            "bertsmith race recipes/race.toml budget.flops=1e12 jobs=2 out=out/small-race",
        ),
        ("members", "tasks", "out", "budget.flops", "budget.epochs", "corpus", "texts", "every", "seeds", "jobs"),
    ),
    "predict": StageHelp(
        "Predict with a fine-tuned model, fill [MASK] or generate text with a pre-trained one: one JSON object per line.",
        (
            'bertsmith predict model=out/mood text="a fine film"',
            "bertsmith predict model=out/mood data=reviews.tsv out=answers.jsonl",
            'bertsmith predict model=out/gpt text="Once upon a time" generate=sample generate.top_p=0.9',
        ),
        ("model", "text", "data", "out", "text_b", "question", "context", "top_k", "generate", "columns", "backend",
         "device", "precision"),
    ),
    "embed": StageHelp(
        "Compute a vector for each text, search documents by them, or query word vectors.",
        (
            "bertsmith embed model=mini-en data=texts.txt out=vectors.npy",
            "bertsmith embed model=mini-en data=queries.txt documents=texts.txt top_k=5",
            "bertsmith embed model=out/vectors word=bank",
        ),
        ("model", "text", "data", "out", "pooling", "documents", "top_k", "word", "analogy", "batch_tokens", "backend",
         "device", "precision"),
    ),
    "serve": StageHelp(
        "Answer over HTTP with one or more models: /models/NAME/predict, fill, embed ..., and the paths of OpenAI's, "
        "text-embeddings-inference's and Cohere's clients. GET /openapi.json lists them all.",
        (
            "bertsmith serve model=mini-en",
            "bertsmith serve model=out/mood,mini-en port=8080 api_keys=keys.txt",
            "bertsmith serve runs=out",
        ),
        ("model", "runs", "host", "port", "batch_tokens", "max_texts", "timeout", "memory_limit", "api_keys",
         "requests_per_minute", "cors_origins", "device", "precision"),
    ),
    "doctor": StageHelp(
        "Diagnose a corpus, a checkpoint or a stopped run: what was found, what it means, and a setting to try. Exits with 1 "
        "if there are problems.",
        ("bertsmith doctor out/bert", "bertsmith doctor out/corpus --json"),
        ("folder", "corpus"),
    ),
    "verify": StageHelp(
        "Compare every file of a folder, and of folders inside it, with the checksums in its manifest.json. Exits with 1 if a "
        "file is damaged or missing, or if there is no manifest.",
        ("bertsmith verify out/bert", "bertsmith verify out --json"),
        ("folder",),
    ),
    "show": StageHelp(
        "Draw what a corpus or a model holds: an HTML page that needs no network, or its charts as SVG or PNG.",
        (
            "bertsmith show masks corpus=out/corpus out=masks.html",
            'bertsmith show attention model=mini-en texts="The bank was steep." out=attention.png',
            'bertsmith show attribution model=out/mood texts="a fine film" out=attribution.svg',
        ),
        ("kind", "out", "corpus", "model", "texts", "target", "data", "word", "objective", "samples"),
    ),
}  # fmt: skip


def format_overview() -> str:
    """The page of `bertsmith --help`."""
    name_width = max(map(len, STAGES))
    stages = "\n".join(f"  {name.ljust(name_width)}  {description}" for name, description in STAGES.items())
    names = ", ".join(name.removesuffix(".toml") for name in list_shipped())
    recipes = textwrap.fill(names, _page_width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    last_line = "`bertsmith STAGE --help` shows examples and the main keys of a stage."
    return f"usage: {USAGE}\n\nstages:\n{stages}\n\nshipped recipes, such as recipes/lora.toml:\n{recipes}\n\n{last_line}"


def format_stage_help(stage: str, args: Sequence[str]) -> str:
    """The page that the arguments after the stage ask for: main keys, those of the kinds given, of a table, or all."""
    keys = list(iter_keys(load_stage_schema(stage)))
    topic = _find_topic(args)
    kinds = _find_kinds(keys, args)
    usage = textwrap.fill(f"usage: {USAGE.replace('STAGE', stage)}", _page_width(), subsequent_indent=" " * 7)
    if not topic and not kinds:
        return "\n\n".join([usage, *_format_main_page(stage, keys)])
    selected = [_shorten(key, kinds) for key in keys if _is_selected(key.name, topic, kinds)]
    if not selected and topic:
        tables = list(dict.fromkeys(_typed_name(key.name.rpartition(".")[0]) for key in keys if "." in key.name))
        raise UserError(f"--help {topic}: unknown table; {suggest(topic, ['all', *tables])}")
    sections = [*_format_presets(keys, topic), *_format_tables(selected)] or [
        f"{' '.join(map('='.join, kinds.items()))} has no keys"
    ]
    last_line = [] if topic == "all" else [f"`bertsmith {stage} --help all` lists every key."]
    return "\n\n".join([usage, *sections, *last_line])


def _format_main_page(stage: str, keys: list[KeyHelp]) -> list[str]:
    """The sections of `bertsmith STAGE --help`."""
    content, by_name = STAGE_HELP[stage], {key.name: key for key in keys}
    kinds = [f"{name}={kind}" for key in keys for name, kind in _list_kinds(key.name) if name in content.keys]
    pages = [f"`bertsmith {stage} {setting} --help`" for setting in kinds[:1]]
    if "train" in by_name:
        pages.append(f"`bertsmith {stage} --help train`")
    more = f"See also {' and '.join(pages)}.\n" if pages else ""
    return [
        textwrap.fill(content.summary, _page_width()),
        "\n".join(["examples:", *(f"  {example}" for example in content.examples)]),
        "\n".join(["main keys (name, default, meaning):", *_format_rows([by_name[name] for name in content.keys])]),
        f"{more}`bertsmith {stage} --help all` lists every key.",
    ]


def _format_presets(keys: list[KeyHelp], topic: str) -> list[str]:
    """A section with the presets of a table such as `model`, one family per line; nothing for tables without presets."""
    words = next((key.type_name.split(" | ") for key in keys if key.name == topic), [])
    presets = [word for word in words if word not in ("text", "table")]
    if len(presets) <= MAX_CHOICES:
        return []
    families = [" ".join(members) for _, members in groupby(presets, key=lambda word: word.partition("-")[0])]
    return ["\n".join([f"presets ({topic}=NAME; the keys below change single values):", *(f"  {line}" for line in families)])]


def _find_topic(args: Sequence[str]) -> str:
    """The word after --help: `all`, or a table such as `train`."""
    words = [word for flag, word in pairwise(args) if flag in ("--help", "-h")]
    return next((word for word in words if "=" not in word and not word.startswith("-")), "")


def _find_kinds(keys: list[KeyHelp], args: Sequence[str]) -> dict[str, str]:
    """The kinds that the arguments choose, `task=tag`, by key; a wrong kind is an error, other arguments do not matter."""
    choices: dict[str, list[str]] = {}
    for key in keys:
        for name, kind in _list_kinds(key.name):
            choices.setdefault(name, []).append(kind)
    for key in keys:  # kinds without keys of their own, and presets
        if (name := _typed_name(key.name)) in choices:
            choices[name] += key.type_name.split(" | ")
    kinds = {}
    for arg in args:
        name, _, value = arg.partition("=")
        name = name.removesuffix(".kind")
        if name not in choices or value == "none" or not re.fullmatch(r"[\w-]+", value):
            continue
        if value not in choices[name]:
            raise UserError(f"{name} = {value!r} is not valid; {suggest(value, list(dict.fromkeys(choices[name])))}")
        kinds[name] = value
    return kinds


def _is_selected(name: str, topic: str, kinds: dict[str, str]) -> bool:
    key_kinds = _list_kinds(name)
    if any(kinds.get(key, kind) != kind for key, kind in key_kinds):
        return False  # of another kind than the chosen one
    if topic:
        return topic == "all" or _typed_name(name).startswith(f"{topic}.")
    return any(key in kinds for key, _ in key_kinds)


def _shorten(key: KeyHelp, kinds: dict[str, str]) -> KeyHelp:
    """Leave out the kinds of outer tables that are not chosen: `objective.masking=span` is the same in every objective."""
    chosen = [match.end() for match in KIND.finditer(key.name) if _typed_name(key.name[: match.start()]) in kinds]
    end = max(chosen, default=0)
    outer = KIND.sub(lambda match: match[0] if match.end() in chosen else "", key.name[:end])
    return replace(key, name=outer + key.name[end:])


def _list_kinds(name: str) -> list[tuple[str, str]]:
    """The kinds that a key belongs to: `task[classify].pair[cross].blocks` -> (task, classify), (task.pair, cross)."""
    return [(_typed_name(name[: match.start()]), match[1]) for match in KIND.finditer(name)]


def _typed_name(name: str) -> str:
    """A key as a user types it, without kinds: `task[tag].crf` -> `task.crf`."""
    return KIND.sub("", name)


def _format_tables(keys: Iterable[KeyHelp]) -> list[str]:
    """One section per table, headed by its name or by the settings that choose its kind."""
    tables: dict[str, list[KeyHelp]] = {}
    for key in {key.name: key for key in keys}.values():
        table = key.name.rpartition(".")[0]
        settings = [f"{name}={kind}" for name, kind in _list_kinds(table)]
        heading = " ".join(settings + [_typed_name(table)] * (not table.endswith("]")))
        tables.setdefault(heading, []).append(key)
    return ["\n".join([f"{heading or 'keys'}:", *_format_rows(table)]) for heading, table in tables.items()]


def _format_rows(keys: Sequence[KeyHelp]) -> list[str]:
    """Lines of three columns: name, default, meaning with the accepted type or values; wrapped with a hanging indent."""
    names = [_typed_name(key.name) for key in keys]
    defaults = [key.default if len(key.default) <= MAX_DEFAULT_WIDTH else "" for key in keys]
    name_width, default_width = min(max(map(len, names)), MAX_KEY_WIDTH), max(map(len, defaults))
    indent = " " * (name_width + default_width + 6)
    lines = []
    for key, name, default in zip(keys, names, defaults, strict=True):
        long_default = f", default {key.default}" if key.default != default else ""
        meaning = f"{key.description} ({_format_choices(key.type_name)}{long_default})"
        wrapped = [indent + line for line in _wrap(meaning, _page_width() - len(indent))]
        cells = f"  {name.ljust(name_width)}  {default.ljust(default_width)}  "
        fits = len(cells) == len(indent)
        lines += [cells + wrapped[0].lstrip(), *wrapped[1:]] if fits else [cells.rstrip(), *wrapped]
    return lines


def _format_choices(type_name: str) -> str:
    """The accepted values; a long list by family: `bert-tiny, -mini, -base; albert-base, -large`."""
    words = type_name.split(" | ")
    if len(words) <= MAX_CHOICES:
        return type_name
    families = [(family, list(members)) for family, members in groupby(words, key=lambda word: word.partition("-")[0])]
    return "; ".join(
        ", ".join([first, *(member.removeprefix(family) for member in others)]) for family, (first, *others) in families
    )


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns that begin neither with `|` nor inside a type of several words."""
    glued = re.sub(r" (?=\|)|(?<=list) (?=of )|(?<=of) |(?<=true \|) (?=false\))", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(glued, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _page_width() -> int:
    return max(60, min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns))
