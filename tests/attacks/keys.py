"""Random and mutated keys, values, types and nesting for every stage.

A command that works, with up to three settings that are wrong, extreme or out of place, as arguments or in a recipe file. It
may run or be refused in one line, in bounded time and memory. Settings that would only make a run longer stay small.
"""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bertsmith.commands import STAGES
from bertsmith.config import iter_keys
from bertsmith.schema import load_stage_schema
from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import Case
from tests.support.cli import SMALL

CASES = 7000
LONGER = ("steps", "epochs", "minutes", "max_new_tokens", "num_beams", "iterations", "repeats", "seeds", "dupe_factor", "fold")
NUMBERS = ("-1", "0", "1", "2", "3", "7", "64", "1e3", "65536", "1e6", "2147483648", "4611686018427387904", "9223372036854775808",
           "1e19", "-1e19", "1e308", "1e999", "nan", "inf", "-inf", "0.5", "-0.0", "1e-320", "0x10", "1_000", "٣", "1" * 400)  # fmt: skip
SMALL_NUMBERS = ("-1", "0", "1", "2", "3", "nan", "inf", "1e999", "0.5", "x", "-2147483648")
WORDS = ("", " ", "none", "true", "no", "null", "auto", "bert-tiny", "mini-en", "adamw", "/", ".", "..", "~", "~nobody-here", "~nobody-here/x",
         "-", "/dev/null", "/proc/self/mem", "nowhere/x", "a" * 5000, "a/" * 3000, "\u202eevil", "caf\u00e9", "\ud800", "x\ny",
         "\x1b[31m", "%s%n", "{}", "[]", "{kind = 1}", "[[[]]]", "[1, 2", '{"a": 1}', "'", '"', "#", "a=b", "*", "**/*", "[ab]*",
         "cuda", "cuda:99", "1970-01-01", "12:00:00", "module:function", "os:system", "numpy:zeros", "../x")  # fmt: skip


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    keys = {stage: list_keys(stage) for stage in STAGES}
    bases = build_commands(artifacts)
    seen = set[tuple[str, ...]]()
    while len(seen) < count:
        number = len(seen)
        stage = rng.choice(list(STAGES))
        base = [word.replace("OUT", str(work / f"out-{number}")) for word in rng.choice(bases.get(stage, [["out=OUT"]]))]
        name = f"{number} {stage}"
        protected = (artifacts.text, artifacts.rows, artifacts.tokenizer)
        if rng.random() < 0.15:
            recipe = work / f"{number}.toml"
            recipe.write_bytes(build_recipe(rng, keys[stage], base))
            args = [stage, str(recipe)]
        else:
            settings = [build_setting(rng, keys[stage], work) for _ in range(rng.randint(1, 3))]
            args = [stage, *base, *settings]
            rng.random() < 0.1 and rng.shuffle(args)
        if rng.random() < 0.05:
            args.append(rng.choice(("--json", "--help", "-h", "--", "-x", "--out=x", "---", "\u2014help", "=", "==", "a", "")))
        command = tuple(word.replace(f"out-{number}", "OUT") for word in args)
        if command in seen:
            continue
        seen.add(command)
        yield Case(
            f"{name}: {' '.join(args)[:300]!r}", args, work, statuses=frozenset({0, 1, 2}), protected=protected, timeout=60
        )


def list_keys(stage: str) -> list[str]:
    return sorted({re.sub(r"\[.*?\]", "", key.name).strip(".") for key in iter_keys(load_stage_schema(stage))})


def build_commands(artifacts: Artifacts) -> dict[str, list[list[str]]]:
    """Small commands that work, by stage."""
    a, cpu = artifacts, ["train.device=cpu", "--quiet"]
    tiny = ["max_length=32", "train.steps=1", "train.batch_tokens=256", *cpu]
    data = [f"data.train={a.rows}", f"data.dev={a.rows}"]
    small = [word for word in SMALL if "max_length" not in word]
    return {
        "tokenizer": [[f"texts={a.text}", "vocab_size=200", "out=OUT"]],
        "prepare": [[f"texts={a.text}", f"tokenizer={a.tokenizer}", "workers=1", "out=OUT"]],
        "pretrain": [
            [f"corpus={a.corpus}", *small, *tiny, "out=OUT"],
            [f"corpus={a.corpus}", "objective=skip-gram", "objective.vector_size=8", "train.epochs=1", "out=OUT"],
        ],
        "plan": [[f"corpus={a.corpus}", *small, "train.steps=1", "train.device=cpu"]],
        "import": [[f"source={a.huggingface}", "out=OUT"]],
        "convert-long": [[f"model={a.model}", "out=OUT"]],
        "export": [[f"model={a.classifier}", "format=int8", "out=OUT"], [f"model={a.classifier}", "format=hf", "out=OUT"]],
        "finetune": [
            ["task=classify", f"model={a.model}", *data, *tiny, "out=OUT"],
            ["task=tag", f"model={a.model}", f"data.train={a.sentences}", f"data.dev={a.sentences}", *tiny, "out=OUT"],
        ],
        "evaluate": [[f"model={a.classifier}", f"data={a.rows}", "out=OUT"]],
        "suite": [["out=OUT"]],
        "race": [["out=OUT"]],
        "predict": [[str(a.classifier), "a text"], [f"model={a.classifier}", f"data={a.rows}", "out=OUT"]],
        "embed": [[str(a.classifier), "a text"], [f"model={a.vectors}", "word=the"]],
        "doctor": [[str(a.corpus)], [str(a.model)]],
        "show": [["corpus", f"corpus={a.corpus}", "out=OUT.html"], ["masks", f"corpus={a.corpus}", "out=OUT.html"]],
    }


def build_setting(rng: random.Random, keys: list[str], work: Path) -> str:
    key = mutate_key(rng, rng.choice(keys), keys)
    return f"{key}={build_value(rng, key, work)}"


def mutate_key(rng: random.Random, key: str, keys: list[str]) -> str:
    if rng.random() < 0.75:
        return key
    changes: tuple[Callable[[], str], ...] = (
        lambda: key[: rng.randrange(len(key)) + 1],
        lambda: key.upper(),
        lambda: key + "." + rng.choice(keys),
        lambda: ".".join([key] * rng.randint(2, 3000)),
        lambda: key.replace("_", "-"),
        lambda: "." + key,
        lambda: key + ".",
        lambda: key + ".kind",
        lambda: key + "[0]",
        lambda: f"{key}.{rng.choice(('0', '__class__', 'kind.kind', 'x' * 999, chr(0x1B), ' '))}",
    )
    return rng.choice(changes)()


def build_value(rng: random.Random, key: str, work: Path) -> str:
    last = key.rpartition(".")[2]
    if last in LONGER or any(part in LONGER for part in key.split(".")):
        return rng.choice(SMALL_NUMBERS)
    value = rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(WORDS)
    if rng.random() < 0.1:
        value = rng.choice(
            (f"[{value}]", f"{value},{value}", f"{{x = {value}}}", "[" * 3000, "{a=" * 3000, "[" * 900 + "]" * 900)
        )
    is_place = last in ("out", "model", "corpus", "tokenizer", "data", "source", "folder", "init")
    return f"{work}/{value}" if is_place and rng.random() < 0.5 and "\x00" not in value else value


def build_recipe(rng: random.Random, keys: list[str], base: list[str]) -> bytes:
    """A TOML file of the settings of a command and some that are wrong, or one that is no TOML."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return b"[" + b".".join([b"a"] * rng.choice((10, 500, 5000))) + b"]\nx = 1\n"
    if kind == 2:
        return b"x = " + b"[" * rng.choice((100, 900, 5000, 100_000))
    if kind == 3:
        return b"x = " + b"{a = " * 3000 + b"1" + b"}" * 3000
    lines = [f"{key} = {value!r}" for key, _, value in (word.partition("=") for word in base) if value and "'" not in value]
    for _ in range(rng.randint(1, 3)):
        key = mutate_key(rng, rng.choice(keys), keys)
        value = rng.choice(
            (*SMALL_NUMBERS, '"x"', "[1]", "{}", "true", "[[[]]]", '"\\u001b"', "1979-05-27T07:32:00Z", "9" * 5000)
        )
        lines.append(f"{key} = {value}")
    return "\n".join(lines).encode("utf-8", "surrogatepass")
