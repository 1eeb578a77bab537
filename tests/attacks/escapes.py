"""Terminal escapes and control characters in labels, columns, names of files, texts and cards: none reaches stdout or stderr.

The harness refuses control characters below 32; C1 controls, DEL and marks of direction are refused here.
"""

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import Case, Outcome

CASES = 1500
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ESCAPES = ("\x1b[31m", "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b1m", "\x07", "\x08\x08\x08", "\x7f", "\u202e", "\u2066",
           "\x1bP1$r\x1b\\",
           "\x0e", "\r", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\")  # fmt: skip


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for number in range(count):
        folder = work / str(number)
        folder.mkdir()
        escape = rng.choice(ESCAPES)
        args = build_command(rng, artifacts, folder, f"a{escape}b")
        yield Case(f"{number} {' '.join(args)[:300]!r}", args, folder, frozenset({0, 1, 2}), timeout=60, check=find_raw)


def find_raw(outcome: Outcome) -> list[str]:
    found = RAW.search(outcome.stdout + outcome.stderr)
    return [f"raw {found[0]!r} in the output"] if found else []


def build_command(rng: random.Random, a: Artifacts, folder: Path, name: str) -> list[str]:
    file_name = name.replace("/", "")
    small = ["max_length=32", "train.steps=1", "train.batch_tokens=256", "train.device=cpu"]
    kind = rng.randrange(9)
    if kind == 0:  # labels
        rows = folder / "rows.csv"
        rows.write_text(
            "text,label\n" + "".join(f"a film {i},{name if i % 2 else 'good'}\n" for i in range(20)), encoding="utf-8"
        )
        dev = folder / "dev.csv"
        dev.write_text(f"text,label\na film,{rng.choice(('good', name, name + name))}\n", encoding="utf-8")
        return ["finetune", "task=classify", f"model={a.model}", f"data.train={rows}", f"data.dev={dev}", *small, f"out={folder}/o",
                *rng.choice(([], ["--json"]))]  # fmt: skip
    if kind == 1:  # columns
        rows = folder / "rows.tsv"
        rows.write_text(f"te{name}xt\tlabel\na\tb\n", encoding="utf-8")
        column = rng.choice(("text", f"te{name}xt", name))
        return ["finetune", "task=classify", f"model={a.model}", f"data.train={rows}", f"data.dev={rows}", *small,
                f"columns.text={column}", f"out={folder}/o"]  # fmt: skip
    if kind == 2:  # texts and predictions
        command = rng.choice(("predict", "embed"))
        return [command, f"model={rng.choice((a.classifier, a.tagger, a.model))}", f"text=a {name} [MASK] film", "device=cpu"]
    if kind == 3:  # names of files
        path = folder / f"{name.replace(chr(47), '')}{rng.choice(('.txt', '.csv', '.zip', ''))}"
        path.write_text(rng.choice(("", "a\n", "text,label\na,b\n", '{"text": 1}')), encoding="utf-8")
        return rng.choice((
            ["prepare", f"texts={path}", f"tokenizer={a.tokenizer}", "workers=1", f"out={folder}/o"],
            ["tokenizer", f"texts={path}", "vocab_size=200", f"out={folder}/{name.replace(chr(47), '')}o"],
            ["predict", f"model={a.classifier}", f"data={path}", "device=cpu"],
            ["predict", f"model={path}", "text=a"],
            ["evaluate", f"model={a.classifier}", f"data={path}", "device=cpu"],
        ))  # fmt: skip
    if kind == 4:  # keys and values
        return rng.choice((
            [name], ["prepare", f"{name}=1"], ["prepare", f"texts={name}"], ["finetune", f"task={name}"],
            ["plan", f"model={name}"],
            ["pretrain", f"corpus={a.corpus}", f"model={name}", f"out={folder}/o"], ["prepare", f"--{name}"], ["prepare", name],
            ["predict", f"model={name}", "text=a"], ["show", name], ["prepare", f"workers={name}"], ["help", name],
            ["pretrain", f"corpus={a.corpus}", f"train.optimizer={name}", f"out={folder}/o"],
        ))  # fmt: skip
    if kind == 5:  # a recipe
        recipe = folder / f"{file_name}.toml"
        recipe.write_text(f'texts = "{json.dumps(name)[1:-1]}"\n"{json.dumps(name)[1:-1]}" = 1\n', encoding="utf-8")
        return [rng.choice(("prepare", "tokenizer", "finetune")), str(recipe)]
    if kind == 6:  # cards and configurations
        source = rng.choice((a.classifier, a.corpus, a.model, a.tokenizer))
        copy = folder / file_name
        shutil.copytree(source, copy)
        (copy / "manifest.json").unlink(missing_ok=True)
        for path in copy.glob("*.json"):
            text = path.read_text(encoding="utf-8")
            strings = sorted(set(re.findall(r'(?<=: )"[^"\\]+"', text)))
            for string in rng.sample(strings, min(len(strings), 2)) if path.name != "tokenizer.json" else ():
                text = text.replace(f": {string}", f": {json.dumps(name)}")
            path.write_text(text, encoding="utf-8")
        return rng.choice((
            ["predict", f"model={copy}", "text=a film", "device=cpu"], ["doctor", str(copy)],
            ["pretrain", f"corpus={copy}", "train.steps=1", f"out={folder}/o", "train.device=cpu", "model=bert-tiny"],
            ["show", "corpus", f"corpus={copy}", f"out={folder}/o.html"], ["evaluate", f"model={copy}", f"data={a.rows}"],
            ["export", f"model={copy}", f"out={folder}/o"],
        ))  # fmt: skip
    if kind == 7:  # words of vectors
        file = folder / "vectors.txt"
        file.write_text(f"3 2\nthe 1 0\n{name.replace(' ', '')} 0 1\nof 1 1\n", encoding="utf-8", newline="\n")
        return ["import", f"source={file}", f"out={folder}/o"]
    rows = folder / "rows.jsonl"  # values of rows
    rows.write_text("".join(json.dumps(rng.choice(({"text": name}, {name: 1}, {"text": 1}, {"text": name, "label": name}))) + "\n"
                            for _ in range(3)), encoding="utf-8")  # fmt: skip
    return rng.choice((
        ["predict", f"model={rng.choice((a.classifier, a.tagger, a.model))}", f"data={rows}", "device=cpu", "skip_bad=true"],
        ["evaluate", f"model={a.classifier}", f"data={rows}", "device=cpu", "--json"],
        ["predict", f"model={a.classifier}", f"data={rows}", "device=cpu"],
    ))  # fmt: skip
