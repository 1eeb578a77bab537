"""Questions about long texts: a reader that was taught short passages, made long by `convert-long`, against itself cut off.

python -m benchmarks long_questions model=FOLDER squad=FILE.json dev=FILE.json out=FOLDER
       [every=30] [characters=10000] [length=4096] [short=512] [taught=256] [reach=256] [epochs=1]
       [rate=1.5e-4] [steps=N] [device=cpu] [precision=bf16]

model       a trained encoder with a table of positions or without, such as an imported MiniLM
squad, dev  SQuAD's JSON, to learn from and to be judged on; all files may be packed (.xz .gz)
every       so many questions of `dev` are one; its passages are joined with their neighbours up to `characters`
taught      tokens at a time while it learns; `length` and `short` are what it reads of a long text afterwards

Nothing is learnt from long texts. The same command goes on where it was stopped. In out: reader, long, cut (models),
joined.json (what is asked), judged (scores of both, with intervals).
"""

import json
import sys
from pathlib import Path
from typing import Any

from bertsmith import api
from bertsmith.artifacts import write_atomic

from .long_folds import read_text
from .material import BenchmarkInputs

REQUIRED_KEYS = ("model", "squad", "dev", "out")
Row = tuple[str, str, str, str, str]


def run(bench: BenchmarkInputs) -> list[Row]:
    given = bench.options
    if missing := [name for name in REQUIRED_KEYS if name not in given]:
        sys.exit(f"long_questions needs {'=... '.join(missing)}=...; see benchmarks/long_questions.py")
    out = Path(given["out"])
    long, short = bench.int_option("length", 4096), bench.int_option("short", 512)
    asked = join_passages(Path(given["dev"]), bench.int_option("characters", 10_000), bench.int_option("every", 30))
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "joined.json", json.dumps({"data": asked}).encode())
    _build_readers(bench, out, long, short)
    told = api.evaluate(model=str(out / "long"), data=str(out / "joined.json"), against=str(out / "cut"),
                        device=given.get("device", "auto"), out=str(out / "judged"), quiet=True)  # fmt: skip
    return [_format_row(told, name, f"{long:,}", f"{short:,}") for name in ("f1", "exact")]


def join_passages(path: Path, max_characters: int, sample_every: int) -> list[dict[str, Any]]:
    """Articles whose neighbouring passages are one text, each with every so-many-th of all questions."""
    articles, number = [], 0
    for article in json.loads(read_text(path))["data"]:
        texts: list[dict[str, Any]] = []
        for passage in article["paragraphs"]:
            if not texts or len(texts[-1]["context"]) + len(passage["context"]) > max_characters:
                texts.append({"context": "", "qas": []})
            chosen = [one for place, one in enumerate(passage["qas"], number) if place % sample_every == 0]
            number += len(passage["qas"])
            _append_passage(texts[-1], passage["context"], chosen)
        articles += [{"paragraphs": kept}] if (kept := [text for text in texts if text["qas"]]) else []
    return articles


def _append_passage(text: dict[str, Any], passage: str, questions: list[dict[str, Any]]) -> None:
    """The passage behind what is there, and its questions, whose answers begin so much later."""
    text["context"] += "\n" if text["context"] else ""
    shift = len(text["context"])
    text["context"] += passage
    for asked in questions:
        answers = [answer | {"answer_start": answer["answer_start"] + shift} for answer in asked["answers"]]
        text["qas"].append(asked | {"answers": answers})


def _build_readers(bench: BenchmarkInputs, out: Path, long_length: int, short_length: int) -> None:
    """One that is taught, the same made long, and the same that sees the beginning of a text alone."""
    given, taught = bench.options, bench.int_option("taught", 256)
    task = {"kind": "answer", "stride": taught // 2}
    data, device = {"train": given["squad"]}, given.get("device", "auto")
    much = {"steps": int(given["steps"])} if "steps" in given else {"epochs": float(given.get("epochs", 1))}
    train = {"rate": float(given.get("rate", 1.5e-4)), "batch_tokens": 16 * taught, "device": device, **much}
    train |= {"precision": given["precision"]} if "precision" in given else {}
    api.finetune(task=task, model=given["model"], data=data, length=taught, train=train, out=str(out / "reader"), quiet=True)
    reader, reach = str(out / "reader"), [bench.int_option("reach", 256)]
    api.convert_long(model=reader, length=long_length, reach=reach, out=str(out / "long"), quiet=True)
    still = {"rate": 1e-12, "steps": 1, "warmup": 0, "batch_tokens": 16 * taught, "device": device}
    api.finetune(task=task | {"long": "truncate"}, model=reader, data=data, length=short_length, train=still, out=str(out / "cut"),
                 quiet=True)  # fmt: skip


def _format_row(result: dict[str, Any], name: str, long_length: str, short_length: str) -> Row:
    (low, high), other = result["intervals"][name], next(one for one in result["against"]["differences"] if one["name"] == name)
    above = other["above"]
    apart = f"{above['value']:+.4f} ({above['low']:+.4f} to {above['high']:+.4f}, p = {other['p']:.3f})"
    what = f"{name} of {result['examples']} questions, windows at {long_length}"
    return (
        what,
        f"{other['score']:.4f} ({low:.4f} to {high:.4f})",
        f"first {short_length}: {other['other']:.4f}",
        apart,
        "above 0",
    )
