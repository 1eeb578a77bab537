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
from bertsmith.artifacts import write_whole

from .long_folds import text_of
from .material import Material

FILES = ("model", "squad", "dev", "out")
Row = tuple[str, str, str, str, str]


def run(stuff: Material) -> list[Row]:
    given = stuff.given
    if missing := [name for name in FILES if name not in given]:
        sys.exit(f"long_questions needs {'=... '.join(missing)}=...; see benchmarks/long_questions.py")
    out = Path(given["out"])
    long, short = stuff.number("length", 4096), stuff.number("short", 512)
    asked = joined(Path(given["dev"]), stuff.number("characters", 10_000), stuff.number("every", 30))
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "joined.json", json.dumps({"data": asked}).encode())
    _readers(stuff, out, long, short)
    told = api.evaluate(model=str(out / "long"), data=str(out / "joined.json"), against=str(out / "cut"),
                        device=given.get("device", "auto"), out=str(out / "judged"), quiet=True)  # fmt: skip
    return [_row(told, name, f"{long:,}", f"{short:,}") for name in ("f1", "exact")]


def joined(path: Path, characters: int, every: int) -> list[dict[str, Any]]:
    """Articles whose neighbouring passages are one text, each with every so-many-th of all questions."""
    articles, number = [], 0
    for article in json.loads(text_of(path))["data"]:
        texts: list[dict[str, Any]] = []
        for passage in article["paragraphs"]:
            if not texts or len(texts[-1]["context"]) + len(passage["context"]) > characters:
                texts.append({"context": "", "qas": []})
            chosen = [one for place, one in enumerate(passage["qas"], number) if place % every == 0]
            number += len(passage["qas"])
            _append(texts[-1], passage["context"], chosen)
        articles += [{"paragraphs": kept}] if (kept := [text for text in texts if text["qas"]]) else []
    return articles


def _append(text: dict[str, Any], passage: str, questions: list[dict[str, Any]]) -> None:
    """The passage behind what is there, and its questions, whose answers begin so much later."""
    text["context"] += "\n" if text["context"] else ""
    shift = len(text["context"])
    text["context"] += passage
    for asked in questions:
        answers = [answer | {"answer_start": answer["answer_start"] + shift} for answer in asked["answers"]]
        text["qas"].append(asked | {"answers": answers})


def _readers(stuff: Material, out: Path, long: int, short: int) -> None:
    """One that is taught, the same made long, and the same that sees the beginning of a text alone."""
    given, taught = stuff.given, stuff.number("taught", 256)
    task = {"kind": "answer", "stride": taught // 2}
    data, device = {"train": given["squad"]}, given.get("device", "auto")
    much = {"steps": int(given["steps"])} if "steps" in given else {"epochs": float(given.get("epochs", 1))}
    train = {"rate": float(given.get("rate", 1.5e-4)), "batch_tokens": 16 * taught, "device": device, **much}
    train |= {"precision": given["precision"]} if "precision" in given else {}
    api.finetune(task=task, model=given["model"], data=data, length=taught, train=train, out=str(out / "reader"), quiet=True)
    reader, reach = str(out / "reader"), [stuff.number("reach", 256)]
    api.convert_long(model=reader, length=long, reach=reach, out=str(out / "long"), quiet=True)
    still = {"rate": 1e-12, "steps": 1, "warmup": 0, "batch_tokens": 16 * taught, "device": device}
    api.finetune(task=task | {"long": "truncate"}, model=reader, data=data, length=short, train=still, out=str(out / "cut"),
                 quiet=True)  # fmt: skip


def _row(told: dict[str, Any], name: str, long: str, short: str) -> Row:
    (low, high), other = told["intervals"][name], next(one for one in told["against"]["differences"] if one["name"] == name)
    above = other["above"]
    apart = f"{above['value']:+.4f} ({above['low']:+.4f} to {above['high']:+.4f}, p = {other['p']:.3f})"
    what = f"{name} of {told['examples']} questions, windows at {long}"
    return what, f"{other['score']:.4f} ({low:.4f} to {high:.4f})", f"first {short}: {other['other']:.4f}", apart, "above 0"
