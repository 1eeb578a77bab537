"""Random rows of every task, decided by single words, and files of them."""

import json
from pathlib import Path

import numpy as np

from tests.support.texts import WORDS

NAMES, PLACES = ["john", "mary", "peter", "anna"], ["paris", "london", "rome", "berlin"]


def random_words(rng, size=6):
    return list(rng.choice(WORDS, size))


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def classification_row(rng):
    is_good = bool(rng.integers(2))
    words = [*random_words(rng), "people" if is_good else "water"]
    return {"text": " ".join(rng.permutation(words)), "label": "good" if is_good else "bad"}


def write_classification_files(folder, train, dev):
    """train.jsonl and dev.jsonl with so many rows."""
    rng = np.random.default_rng(0)
    for name, count in (("train", train), ("dev", dev)):
        write_jsonl(folder / f"{name}.jsonl", [classification_row(rng) for _ in range(count)])


def regression_row(rng):
    row = classification_row(rng)
    return {"text": row["text"], "label": 2.0 * (row["label"] == "good") + float(rng.random()) / 4}


def multiple_choice_row(rng):
    right, options = int(rng.integers(3)), [" ".join(random_words(rng, 3)) for _ in range(3)]
    options[right] += " people"
    return {"context": " ".join(random_words(rng)), "options": options, "label": right}


def tagging_row(rng):
    tokens = random_words(rng)
    tags = ["O"] * len(tokens)
    for words, tag in ((NAMES, "B-PER"), (PLACES, "B-LOC")):
        position = int(rng.integers(len(tokens)))
        tokens[position], tags[position] = str(rng.choice(words)), tag
    return {"tokens": [str(token) for token in tokens], "tags": tags}


def squad_paragraph(rng, number):
    words = [word for word in random_words(rng, 10) if word != "water"]
    words.insert(int(rng.integers(len(words))), "water")
    context = " ".join(words)
    gold_answer = {"text": "water", "answer_start": context.index("water")}
    return {"context": context, "qas": [{"id": str(number), "question": "what is made", "answers": [gold_answer]}]}


CASES = {
    "classify": (classification_row, "accuracy"),
    "choose": (multiple_choice_row, "accuracy"),
    "tag": (tagging_row, "f1"),
    "regress": (regression_row, "pearson"),
}


def write_coarse_wsd(folder: Path, word: str = "bank") -> Path:
    """A folder in the layout of CoarseWSD-20."""
    (folder / word).mkdir(parents=True)
    for name, lines in (
        ("train", [("1", "the bank was in time", "0"), ("2", "up the bank", "1")]),
        ("test", [("0", "bank", "1")]),
    ):
        (folder / word / f"{name}.data.txt").write_text("".join(f"{position}\t{text}\n" for position, text, _ in lines))
        (folder / word / f"{name}.gold.txt").write_text("".join(f"{sense}\n" for _, _, sense in lines))
    (folder / word / "classes_map.txt").write_text(json.dumps({"0": f"{word}_{word}", "1": f"{word}_{word}_(geography)"}))
    return folder
