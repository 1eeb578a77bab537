"""One small command of each stage that writes, for attacks on what they write."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import Outcome

VOLATILE = re.compile(
    r'"(?:seconds|date|command|out|[\w.]*per_second\w*|speedup|time|elapsed|memory|peak\w*)": *(?:"[^"]*"|\[[^]]*\]|[-+\w.]+)'
)


WITHOUT_TORCH = ("tokenizer", "extend", "prepare", "prepare drop", "show corpus", "show curves")


@dataclass(frozen=True)
class Stage:
    """A command; `out` is the name of what it makes, relative to the working folder."""

    name: str
    words: tuple[str, ...]
    out: str
    is_file: bool = False

    def args(self, out: str | None = None) -> list[str]:
        return [*self.words, f"out={self.out if out is None else out}", "--quiet"]


def list_stages(a: Artifacts) -> list[Stage]:
    """Every stage that writes, on the small artifacts."""
    train = ("train.device=cpu", "train.steps=4", "train.save_every=2", "train.batch_tokens=512", "max_length=32")
    small = ("model=bert-tiny", "model.hidden_size=16", "model.num_hidden_layers=1", "model.mixer.num_attention_heads=2",
             "model.feedforward.intermediate_size=32", "model.max_position_embeddings=32", "eval_tokens=512")  # fmt: skip
    classify = ("task=classify", f"model={a.model}", f"data.train={a.rows}", f"data.dev={a.rows}")
    suite = (f"models.m={a.model}", "tasks.t.task=classify", f"tasks.t.data.train={a.rows}", f"tasks.t.data.dev={a.rows}",
             "every.train.steps=2", "every.train.batch_tokens=512", "every.max_length=32", "every.train.device=cpu",
             "seeds=0")  # fmt: skip
    return [
        Stage("tokenizer", ("tokenizer", f"texts={a.text}", "vocab_size=200"), "t"),
        Stage("extend", ("tokenizer", f"texts={a.rows}", f"extend={a.tokenizer}", "add=5", "min_frequency=1"), "t"),
        Stage("prepare", ("prepare", f"texts={a.text}", f"tokenizer={a.tokenizer}", "workers=1"), "c"),
        Stage("prepare drop", ("prepare", f"texts={a.text}", f"tokenizer={a.tokenizer}", "workers=1", "drop=lines"), "c"),
        Stage("export", ("export", f"model={a.classifier}"), "e"),
        Stage("export int8", ("export", f"model={a.classifier}", "format=int8"), "e"),
        Stage("export vectors", ("export", f"model={a.vectors}", "format=vectors"), "v.npy", is_file=True),
        Stage("export text", ("export", f"model={a.vectors}", "format=vectors"), "v.txt", is_file=True),
        Stage("import", ("import", f"source={a.huggingface}"), "i"),
        Stage("convert-long", ("convert-long", f"model={a.model}", "max_length=128", "attention_window=8"), "l"),
        Stage("evaluate", ("evaluate", f"model={a.classifier}", f"data={a.rows}", "device=cpu"), "r"),
        Stage("predict", ("predict", f"model={a.classifier}", f"data={a.rows}", "device=cpu"), "p.jsonl", is_file=True),
        Stage("embed", ("embed", f"model={a.model}", f"data={a.rows}", "device=cpu"), "x.npy", is_file=True),
        Stage("search", ("embed", f"model={a.model}", f"data={a.rows}", f"documents={a.text}", "device=cpu"), "s.jsonl", True),
        Stage("show corpus", ("show", "corpus", f"corpus={a.corpus}"), "o.html", is_file=True),
        Stage("show curves", ("show", "curves", f"model={a.model}"), "u.html", is_file=True),
        Stage("finetune", ("finetune", *classify, *train), "f"),
        Stage("pretrain", ("pretrain", f"corpus={a.corpus}", *small, *train), "m"),
        Stage(
            "word2vec",
            ("pretrain", f"corpus={a.corpus}", "objective=skip-gram", "objective.vector_size=8", "train.epochs=1"),
            "w",
        ),
        Stage("glove", ("pretrain", f"corpus={a.corpus}", "objective=glove", "objective.vector_size=8", "train.epochs=1"), "h"),
        Stage("continue", ("pretrain", f"corpus={a.corpus}", f"init={a.model}", *train, "train.average_checkpoints=2"), "j"),
        Stage("tag", ("finetune", "task=tag", f"model={a.model}", f"data.train={a.sentences}", *train), "k"),
        Stage(
            "prune",
            ("prune", f"model={a.classifier}", f"data.train={a.rows}", f"data.dev={a.rows}", "unit=neuron", *train),
            "n",
        ),
        Stage("prune tokens", ("prune", f"model={a.model}", "unit=vocab", f"texts={a.text}"), "o"),
        Stage("share", ("share", f"model={a.model}", "embedding_size=8"), "y"),
        Stage("distill", ("distill", f"teacher={a.classifier}", f"data.train={a.rows}", f"data.dev={a.rows}", *train), "z"),
        Stage(
            "static",
            (
                "distill",
                f"teacher={a.model}",
                "student=static",
                f"corpus={a.corpus}",
                "student.vector_size=8",
                "train.device=cpu",
                "train.epochs=1",
            ),
            "s",
        ),
        Stage("show masks", ("show", "masks", f"corpus={a.corpus}"), "k.html", is_file=True),
        Stage("suite", ("suite", *suite), "q"),
        Stage("seeds", ("finetune", *classify, *train, "seeds=0,1"), "g"),
    ]


def list_slow_stages(a: Artifacts) -> list[Stage]:
    """Those that take many seconds."""
    small = ("model.hidden_size=16", "model.num_hidden_layers=1", "model.mixer.kind=attention",
             "model.mixer.num_attention_heads=2", "model.feedforward.intermediate_size=32",
             "model.max_position_embeddings=32")  # fmt: skip
    race = ("race", f"corpus={a.corpus}", *(f"members.m.{word}" for word in small), "budget.flops=1e7", "every.max_length=32",
            "every.train.batch_tokens=512", "every.train.device=cpu", "tasks.t.task=classify", f"tasks.t.data.train={a.rows}",
            f"tasks.t.data.dev={a.rows}", "tuned.train.steps=2", "tuned.train.device=cpu", "frozen.train.steps=2",
            "frozen.train.device=cpu", "seeds=0")  # fmt: skip
    return [
        Stage("export onnx", ("export", f"model={a.classifier}", "format=onnx"), "x"),
        Stage("race", race, "r"),
    ]


def list_for_processes(a: Artifacts) -> list[Stage]:
    """Every stage that writes, those without torch eight times: a new process imports it in seconds."""
    return [stage for stage in list_stages(a) for _ in range(8 if stage.name in WITHOUT_TORCH else 1)] + list_slow_stages(a)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, with times and seconds in JSON, logs and pages blanked."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file():
            files[name] = b"link" if path.is_symlink() else b"folder"
        elif path.suffix in (".json", ".jsonl") and path.name != "tokenizer.json":
            files[name] = _blank(path)
        elif path.name == "report.html" and (path.parent / "race.json").exists():  # seconds of a step, in a cell
            files[name] = re.sub(rb"<td>[\d.]+</td>", b"", path.read_bytes())
        else:
            files[name] = path.read_bytes()
    return files


def compare(expected: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    """What differs between two snapshots: litter, losses and other contents."""
    names = sorted(expected.keys() | found.keys())
    problems = [f"lost: {name}" for name in names if name not in found]
    problems += [f"litter: {name}" for name in names if name not in expected]
    return problems + [
        f"changed: {name}" for name in names if name in expected and name in found and expected[name] != found[name]
    ]


def check_files(expected: dict[str, bytes], folder: Path, outcome: Outcome, remove: bool = True) -> list[str]:
    """Problems of what a command left in its working folder, if it succeeded."""
    problems = [] if outcome.status else compare(expected, snapshot(folder))
    if remove:
        shutil.rmtree(folder, ignore_errors=True)
    return problems


def _blank(path: Path) -> bytes:
    if re.fullmatch(r"seed-\d+\.json", path.name):  # of a race: its identity is that of a model, whose card has a date
        return re.sub(rb'"identity": *"\w+"|"seconds": *[\d.]+', b"", path.read_bytes())
    text = VOLATILE.sub('"volatile"', path.read_text(encoding="utf-8", errors="surrogateescape"))
    if path.name == "manifest.json":  # checksums of files that hold times
        files = json.loads(path.read_bytes())["files"]
        kept = {name: entry for name, entry in files.items() if not name.endswith((".json", ".jsonl", ".html"))}
        text = json.dumps([sorted(files), kept])
    return text.encode("utf-8", "surrogateescape")
