"""Hostile texts and task files for every reader, and hostile arguments for `predict` and `embed`.

NUL bytes, lone surrogates, invalid UTF-8, byte order marks, marks of direction, long lines, broken quoting, deep and huge JSON,
wrong columns: each is read, or refused in one line that names its place.
"""

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import Case

CASES = 4500
SUFFIXES = (
    ".txt",
    ".tsv",
    ".csv",
    ".jsonl",
    ".json",
    ".md",
    "",
    ".gz",
    ".xz",
    ".bz2",
    ".zst",
    ".parquet",
    ".txt.gz",
    ".csv.bz2",
)
TEXTS = (
    "", " ", "\n", "\0", "a\0b", "\ufeff", "\ufeffa", "a\ufeffb", "\u202e\u202d", "\u200b" * 50, "\u200d", "e" + "\u0301" * 500,
    "\U0010ffff", "\ufffe\uffff", "\ud800", "\udfff\ud800", "\x1b[2J", "\x85\x0b\x0c\x1c\x1d\x1e\u2028\u2029", "\r", "\r\n\r",
    "\N{GRINNING FACE}" * 20, "\u4e2d\u6587\u3002" * 30, "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u1112\u1161\u11ab",
    "[MASK]" * 40, "[CLS] [SEP] [PAD] [UNK]", "##a ##b", "a" * 20_000, "a " * 5_000, "\t" * 300, ",", '"', '""', '"""', "'", "\\",
    "\\u0000", "1e999", "nan", "-1", "null", "{}", "[]", "B-PER", "I-", "-", "O O O", "\u2581", "\u0130\u0131\u00df\ufb01",
)  # fmt: skip
JSON_VALUES = ("null", "true", "1", "1e999", "-0", "NaN", "Infinity", '"\\ud800"', '"\\u0000"', "[]", "{}", '[["a"]]', "9" * 5000,
               "[" * 100_000, "[" * 900 + "]" * 900, '{"a":' * 5000, '"' + "x" * 30_000 + '"', '"a', "'a'", "", "1 2", "\ufeff1")  # fmt: skip
FIELDS = ("text", "label", "text_pair", "score", "tokens", "tags", "question", "context", "answers", "id", "data", "choices",
          "", "text ", "TEXT", "__class__", "1", "target", "premise", "hypothesis", "paragraphs")  # fmt: skip
TASKS = ("classify", "regress", "tag", "answer", "choose", "similar", "generate")


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for number in range(count):
        args, stdin, protected = build_command(rng, artifacts, work, number)
        name = f"{number} {' '.join(args)[:300]!r}"
        yield Case(name, args, work, protected=protected, stdin=stdin, timeout=60)


def build_command(rng: random.Random, a: Artifacts, work: Path, number: int) -> tuple[list[str], bytes, tuple[Path, ...]]:
    """The arguments, what stdin has, and the files that must not change."""
    kind, out = rng.randrange(10), work / f"out-{number}"
    if kind == 0:  # a text as an argument
        text = build_text(rng)[: 60_000 if rng.random() < 0.2 else 500].replace("\0", "")
        model = rng.choice((a.classifier, a.tagger, a.model))
        return [rng.choice(("predict", "embed")), f"model={model}", f"text={text}", "device=cpu"], b"", ()
    suffix = rng.choice(SUFFIXES) if rng.random() < 0.5 else rng.choice((".txt", ".tsv", ".csv", ".jsonl", ".json"))
    data = build_file(rng, suffix)
    path = work / f"data-{number}{suffix}"
    path.write_bytes(data)
    small = ["max_length=32", "train.steps=1", "train.batch_tokens=256", "train.device=cpu", "--quiet"]
    bad = [f"{key}skip_bad=true" for key in ("",) if rng.random() < 0.2]
    if kind == 1:
        words = ["tokenizer", f"texts={path}", "vocab_size=200", f"out={out}"]
    elif kind == 2:
        words = ["prepare", f"texts={path}", f"tokenizer={a.tokenizer}", "workers=1", f"out={out}"]
    elif kind in (3, 4, 5):
        task = rng.choice(TASKS)
        train, dev = rng.sample((path, rng.choice((path, a.rows, a.sentences))), 2)
        words = ["finetune", f"task={task}", f"model={a.model}", f"data.train={train}", f"data.dev={dev}", *small, f"out={out}"]
    elif kind in (6, 7):
        model = rng.choice((a.classifier, a.tagger, a.model))
        words = ["predict", f"model={model}", f"data={path}", "device=cpu", *bad, *([f"out={out}.jsonl"] * rng.randrange(2))]
    elif kind == 8:
        words = ["evaluate", f"model={rng.choice((a.classifier, a.tagger))}", f"data={path}", "device=cpu", *bad, f"out={out}"]
    else:
        words = rng.choice((
            ["embed", f"model={a.model}", f"data={path}", f"out={out}.npy", "device=cpu"],
            ["embed", f"model={a.vectors}", f"analogies={path}"],
            ["embed", f"model={a.vectors}", f"similarity={path}"],
            ["import", f"source={path}", f"out={out}"],
            ["tokenizer", f"texts={a.text}", f"extend={a.tokenizer}", f"words={path}", f"out={out}"],
            ["prepare", f"texts={a.text}", f"tokenizer={path}", f"out={out}", "workers=1"],
        ))  # fmt: skip
    return words, data if rng.random() < 0.1 else b"", (path, a.rows, a.model)


def build_text(rng: random.Random) -> str:
    return "".join(rng.choice(TEXTS) if rng.random() < 0.6 else " a good film" for _ in range(rng.randint(1, 6)))


def build_file(rng: random.Random, suffix: str) -> bytes:
    kind = rng.randrange(12)
    if kind == 0:
        data = rng.randbytes(rng.choice((0, 1, 3, 300, 5000)))
    elif kind == 1:
        data = rng.choice((b"a", b"\0", b'"', b"\xff", "\u4e2d".encode())) * rng.choice((100_000, 10_000_000 // 3))
    elif ".json" in suffix or kind == 2:
        data = "\n".join(build_json_row(rng) for _ in range(rng.randint(1, 8))).encode("utf-8", "surrogatepass")
    elif suffix.startswith((".tsv", ".csv")) or kind in (3, 4):
        data = build_table(rng, "\t" if "tsv" in suffix else ",").encode("utf-8", "surrogatepass")
    else:
        data = "\n".join(build_text(rng) for _ in range(rng.randint(1, 30))).encode("utf-8", "surrogatepass")
    if rng.random() < 0.2:
        data = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff", b"\x1f\x8b", b"PAR1")) + data
    if rng.random() < 0.2 and data:  # cut or flip
        position = rng.randrange(len(data))
        data = data[:position] if rng.random() < 0.5 else data[:position] + rng.randbytes(2) + data[position + 1 :]
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    pack = packers.get(suffix[suffix.rfind(".") :])
    if pack and rng.random() < 0.8:
        data = pack(data)
        data = data[: rng.randrange(len(data))] if rng.random() < 0.3 else data
    return data


def build_json_row(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return rng.choice(JSON_VALUES)
    values = (rng.choice(JSON_VALUES) if rng.random() < 0.3 else json.dumps(build_text(rng)) for _ in range(rng.randint(1, 5)))
    return "{" + ", ".join(f"{json.dumps(rng.choice(FIELDS))}: {value}" for value in values) + "}"


def build_table(rng: random.Random, delimiter: str) -> str:
    width = rng.randint(1, 5)
    header = [rng.choice(FIELDS[:4]) if rng.random() < 0.7 else rng.choice((*FIELDS, *TEXTS[:30])) for _ in range(width)]
    header = ["text", "label"] if rng.random() < 0.5 else header
    rows = [header] if rng.random() < 0.9 else []
    for _ in range(rng.randint(0, 12)):
        cells = [build_text(rng) if rng.random() < 0.3 else rng.choice(("a film", "0", "1")) for _ in header]
        cells = cells + ["x"] * (rng.random() < 0.05) if rng.random() < 0.95 else cells[:-1]
        rows.append([f'"{cell}"' if rng.random() < 0.1 else cell for cell in cells])
    return "\n".join(delimiter.join(row) for row in rows) + rng.choice(("\n", "", "\r\n", '"'))
