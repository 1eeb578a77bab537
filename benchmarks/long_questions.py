"""Question answering on long texts: a model fine-tuned on short passages and converted by `convert-long`, against truncation.

python -m benchmarks long_questions model=FOLDER squad=FILE.json dev=FILE.json out=FOLDER
       [every=30] [characters=10000] [max_length=4096] [short_length=512] [train_length=256] [attention_window=512]
       [epochs=1] [learning_rate=1.5e-4] [steps=N] [device=cpu] [precision=bf16]

model       a pre-trained encoder, such as an imported MiniLM
squad, dev  SQuAD's JSON for training and evaluation; all files may be compressed (.xz .gz)
every       one in so many questions of `dev` is used; its passages are joined with their neighbours up to `characters`
train_length  sequence length of fine-tuning; `max_length` and `short_length` are those of evaluation, with windows and
              truncated

There is no training on long texts. The same command resumes. In out: finetuned, longformer, truncate (models),
joined.json (questions with long contexts), evaluation (scores of both, with intervals).
"""

import json
from pathlib import Path
from typing import Any

from bertsmith import api
from bertsmith.writing import write_atomic

from .inputs import BenchmarkInputs
from .long_folds import read_text

Row = tuple[str, str, str, str, str]


def run(bench: BenchmarkInputs) -> list[Row]:
    options = bench.options
    out = Path(options["out"])
    long, short = bench.int_option("max_length", 4096), bench.int_option("short_length", 512)
    articles = join_passages(Path(options["dev"]), bench.int_option("characters", 10_000), bench.int_option("every", 30))
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "joined.json", json.dumps({"data": articles}).encode())
    _build_models(bench, out, long, short)
    result = api.evaluate(model=str(out / "longformer"), data=str(out / "joined.json"), against=str(out / "truncate"),
                        device=options.get("device", "auto"), out=str(out / "evaluation"), quiet=True)  # fmt: skip
    return [_format_row(result, name, f"{long:,}", f"{short:,}") for name in ("f1", "exact")]


def join_passages(path: Path, max_characters: int, sample_every: int) -> list[dict[str, Any]]:
    """Articles with neighbouring passages joined up to `max_characters`, and one in `sample_every` questions."""
    articles, num_questions = [], 0
    for article in json.loads(read_text(path))["data"]:
        texts: list[dict[str, Any]] = []
        for passage in article["paragraphs"]:
            if not texts or len(texts[-1]["context"]) + len(passage["context"]) > max_characters:
                texts.append({"context": "", "qas": []})
            sampled = [question for index, question in enumerate(passage["qas"], num_questions) if index % sample_every == 0]
            num_questions += len(passage["qas"])
            _append_passage(texts[-1], passage["context"], sampled)
        articles += [{"paragraphs": paragraphs}] if (paragraphs := [text for text in texts if text["qas"]]) else []
    return articles


def _append_passage(text: dict[str, Any], passage: str, questions: list[dict[str, Any]]) -> None:
    """Append the passage to the text's context, and its questions with `answer_start` shifted."""
    text["context"] += "\n" if text["context"] else ""
    shift = len(text["context"])
    text["context"] += passage
    for question in questions:
        answers = [answer | {"answer_start": answer["answer_start"] + shift} for answer in question["answers"]]
        text["qas"].append(question | {"answers": answers})


def _build_models(bench: BenchmarkInputs, out: Path, long_length: int, short_length: int) -> None:
    """Fine-tune `finetuned`; convert it to `longformer`; save the same weights as `truncate`, which truncates long texts."""
    options, train_length = bench.options, bench.int_option("train_length", 256)
    task = {"kind": "answer", "doc_stride": train_length // 2}
    data, device = {"train": options["squad"]}, options.get("device", "auto")
    duration = {"steps": int(options["steps"])} if "steps" in options else {"epochs": float(options.get("epochs", 1))}
    train = {
        "learning_rate": float(options.get("learning_rate", 1.5e-4)),
        "batch_tokens": 16 * train_length,
        "device": device,
        **duration,
    }
    train |= {"precision": options["precision"]} if "precision" in options else {}
    api.finetune(
        task=task,
        model=options["model"],
        data=data,
        max_length=train_length,
        train=train,
        out=str(out / "finetuned"),
        quiet=True,
    )
    finetuned, attention_window = str(out / "finetuned"), [bench.int_option("attention_window", 512)]
    api.convert_long(
        model=finetuned, max_length=long_length, attention_window=attention_window, out=str(out / "longformer"), quiet=True
    )
    no_training = {"learning_rate": 1e-12, "steps": 1, "warmup_steps": 0, "batch_tokens": 16 * train_length, "device": device}
    api.finetune(task=task | {"long_text": "truncate"}, model=finetuned, data=data, max_length=short_length, train=no_training,
                 out=str(out / "truncate"), quiet=True)  # fmt: skip


def _format_row(result: dict[str, Any], name: str, long_length: str, short_length: str) -> Row:
    (low, high), difference = (
        result["confidence_intervals"][name],
        result["comparison"]["differences"][name],
    )
    ci_low, ci_high = difference["confidence_interval"]
    difference_text = f"{difference['difference']:+.4f} ({ci_low:+.4f} to {ci_high:+.4f}, p = {difference['p_value']:.3f})"
    label = f"{name} of {result['num_examples']} questions, windows at {long_length}"
    return (
        label,
        f"{difference['score']:.4f} ({low:.4f} to {high:.4f})",
        f"first {short_length}: {difference['other_score']:.4f}",
        difference_text,
        "above 0",
    )
