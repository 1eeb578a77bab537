"""From nothing to a small BERT in minutes: gather English on this machine, learn it, teach it a task, show how it went.

python -m bertsmith.quickstart [folder=out/quickstart] [minutes=2]
"""

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

from . import api, packages
from .artifacts import write_whole
from .config import Config, read
from .docstrings import gather, written
from .errors import BadInput, Stopped
from .predict import Predictor
from .screen import Screen

VOCABULARY = 4000
MODEL = {"layers": 2, "width": 128, "mixer": {"kind": "dense", "heads": 4}, "feedforward": {"inner": 256},
         "positions": 64, "dropout": 0.0, "norm": "before", "deviation": 0.08}  # fmt: skip
# Chosen by measuring: in two minutes on two cores, a model learns to use context only if its steps are very cheap (few
# pieces, a narrow inner layer, short texts) and each asks for many words.
LEARN: dict[str, Any] = {"model": MODEL, "length": [32], "objective": {"kind": "pairs", "rate": 0.3}, "held_out": 0.02,
                         "eval_tokens": 131_072}  # fmt: skip
TRAIN = {"batch_tokens": 1024, "rate": 3e-3, "warmup": 0.1, "eval_every": 1000}
# The same for the model that was pre-trained and for the one that was not. The rate is the best of three for the latter, on
# files that are not judged here; how many texts, their length and what the head reads were chosen with the judged in sight.
TEACH: dict[str, Any] = {"task": "classify", "features": {"layers": "last"}, "length": 64,
                         "train": {"epochs": 15, "batch_tokens": 1024, "rate": 2e-3}}  # fmt: skip
TEXTS = (
    "Return a new [MASK] with the given name.",
    "The value is converted to a [MASK].",
    "If the file does not [MASK], an error is raised.",
    "The default value is [MASK].",
    "This function [MASK] a list of all the names.",
    "Returns True if the object is an [MASK] of the class.",
)


class Quickstart(Config, frozen=True):
    """Where to put things, and how long to train."""

    folder: Annotated[str, "everything that is made goes here"] = "out/quickstart"
    minutes: Annotated[float, "of pre-training; all else takes about one and a half more"] = 2.0
    roots: Annotated[tuple[str, ...], "folders of Python files to gather text from; none: this environment's"] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        run(read(Quickstart, overrides=sys.argv[1:] if arguments is None else arguments))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (Stopped, KeyboardInterrupt):
        print("stopped: run the same command again to go on", file=sys.stderr)
        return 130
    return 0


def run(recipe: Quickstart, screen: Screen | None = None) -> dict[str, Any]:
    """Every step through `bertsmith.api`, as a user would; a step whose folder is there already is not done again."""
    screen, folder, began = screen or Screen(), Path(recipe.folder), time.monotonic()
    if recipe.minutes <= 0:
        raise BadInput(f"minutes = {recipe.minutes:g} must be above 0")
    folder.mkdir(parents=True, exist_ok=True)
    text, tokenizer, corpus, model, page = (
        str(folder / name) for name in ("text.txt", "tokenizer", "corpus", "model", "report.html")
    )

    screen.say("1/6  Gathering English: the documentation inside Python and the installed packages (about 20 seconds)")
    _gathered(folder, [Path(root) for root in recipe.roots], screen)
    screen.say(f"\n2/6  Learning a vocabulary of {VOCABULARY:,} pieces (about 5 seconds)")
    api.train_tokenizer(texts=[text], kind="wordpiece", size=VOCABULARY, lowercase=True, out=tokenizer, quiet=screen.quiet)
    screen.say("\n3/6  Turning the text into a corpus of ids (about 5 seconds)")
    api.prepare(texts=[text], tokenizer=tokenizer, out=corpus, quiet=screen.quiet)
    screen.say(f"\n4/6  Training a small BERT for {recipe.minutes:g} minutes: masked words and sentence pairs")
    result = api.pretrain(corpus=corpus, out=model, quiet=screen.quiet, train={**TRAIN, "minutes": recipe.minutes}, **LEARN)
    screen.say("\n5/6  Asking it for hidden words, and writing the report (a few seconds)")
    _asked(api.load(model), screen)
    api.show(kind="run", model=model, corpus=corpus, texts=list(TEXTS), out=page, quiet=True)
    screen.say("\n".join(["", *told(result)]))
    screen.say("\n6/6  Teaching it which package a text is from, and a model that was not pre-trained too (about 30 seconds)")
    taught = _taught(folder, screen)
    screen.say("\n".join([f"\nall of it took {time.monotonic() - began:.0f} seconds", "", *next_steps(folder, bool(taught))]))
    return {"folder": str(folder), "report": page, **result, "taught": taught}


def told(result: dict[str, Any]) -> list[str]:
    """What was reached, beside what knowing nothing but frequencies would reach."""
    if "valid_loss_words" not in result:
        return ["nothing was held out to judge the model on: there is too little text"]
    alone, unigram = math.log(result["pseudo_perplexity"]), result["unigram_entropy"]
    verdict = (
        "below it: the model uses context" if alone < unigram else "not below it: give it longer (minutes=5 folder=out/longer)"
    )
    return [
        f"loss, each held-out word hidden alone   {alone:.3f} nats; knowing only frequencies gives {unigram:.3f}; {verdict}",
        f"loss as in training, on held-out text   {result['valid_loss_words']:.3f} nats; a tenth of the words stand in sight",
        f"masked words right at the first guess   {result['valid_mlm_accuracy']:.1%}",
        f"sentence pairs right                    {result['valid_next_accuracy']:.1%}; a coin gives 50%",
    ]


def next_steps(folder: Path, taught: bool) -> list[str]:
    lines = [
        f"The report, to open in a browser:  {folder / 'report.html'}",
        f"The model, the corpus, the text:   {folder / 'model'}, {folder / 'corpus'}, {folder / 'text.txt'}",
        "What to type next:",
        f"  python -c \"import bertsmith; print(bertsmith.load('{folder / 'model'}').fill('The default is [MASK].'))\"",
        f"  bertsmith pretrain corpus={folder / 'corpus'} model=bert-mini train.minutes=30 train.rate=1e-3 out=out/mini",
        "  bertsmith tokenizer texts=YOUR.txt out=out/tokenizer        (then prepare, then pretrain; --help lists the keys)",
    ]
    if taught:
        lines[1:1] = [f"What it gets right and wrong:      {folder / 'judged' / 'report.html'}"]
        lines.insert(-1, f"  bertsmith predict model={folder / 'taught'} text='Returns the shortest path between two nodes.'")
    return lines


def _gathered(folder: Path, roots: Sequence[Path], screen: Screen) -> None:
    """The text to pre-train on, without the files that the task of packages is judged on; and that task's two files."""
    text = folder / "text.txt"
    if text.exists():
        screen.say(f"{text} is there already ({text.stat().st_size:,} bytes)")
        return
    with screen.bar("reading source files") as bar:
        documents = gather(roots, on_read=bar)
    task = packages.task_of(documents)
    if task:
        write_whole(folder / "learn.jsonl", packages.lines(task.learn))
        write_whole(folder / "judge.jsonl", packages.lines(task.judge))
    kept = [one for one in documents if task is None or (one.package, one.path) not in task.held_out]
    data = written(kept)
    write_whole(text, data)  # last: it says that all of them are there
    screen.say(f"{text}: {len(kept):,} documents, {sum(len(one.paragraphs) for one in kept):,} paragraphs, {len(data):,} bytes")


def _taught(folder: Path, screen: Screen) -> dict[str, Any]:
    """The scores of both models on files that neither has read, and what the better one says of some; nothing, if no task."""
    learn, judge, taught, scratch = (str(folder / name) for name in ("learn.jsonl", "judge.jsonl", "taught", "scratch"))
    if not Path(learn).exists():
        screen.say("there are no two packages with enough text to tell apart")
        return {}
    for out, forgets in ((taught, False), (scratch, True)):
        api.finetune(model=str(folder / "model"), data={"train": learn}, out=out, scratch=forgets, quiet=True, **TEACH)
    found = api.evaluate(model=taught, data=judge, against=scratch, out=str(folder / "judged"), quiet=True)
    other = api.evaluate(model=scratch, data=judge, quiet=True)
    examples = [json.loads(line) for line in Path(judge).read_text(encoding="utf-8").splitlines()]
    labels = sorted({one["label"] for one in examples})
    screen.say(f"from {len(Path(learn).read_bytes().splitlines()):,} texts of {', '.join(labels)}")
    screen.table(f"right on {len(examples):,} texts of other files, which pre-training did not see either:",
                 accuracies(found, other, len(labels)))  # fmt: skip
    _predicted(api.load(taught), [next(one for one in examples if one["label"] == label) for label in labels], screen)
    return {"pretrained": found, "scratch": other}


def accuracies(found: dict[str, Any], other: dict[str, Any], labels: int) -> list[tuple[str, str, str]]:
    """Rows to print: both models and a guess, and how much the first is above the second."""
    rows = [("", "accuracy", "95% interval")]
    for name, one in (("pre-trained", found), ("from scratch", other)):
        low, high = one["intervals"]["accuracy"]
        rows.append((name, f"{one['scores']['accuracy']:.1%}", f"{low:.1%} to {high:.1%}"))
    above = next(one["above"] for one in found["against"]["differences"] if one["name"] == "accuracy")
    difference = ("points above", f"{100 * above['value']:+.1f}", f"{100 * above['low']:+.1f} to {100 * above['high']:+.1f}")
    return [*rows, difference, ("a guess", f"{1 / labels:.1%}", "")]


def _predicted(predictor: Predictor, examples: list[dict[str, str]], screen: Screen) -> None:
    answers = predictor([one["text"] for one in examples])
    rows = [("it says", "", "truly", "text")]
    for one, answer in zip(examples, answers, strict=True):
        sure = max(answer["scores"].values())
        rows.append((answer["label"], f"{sure:.0%}", one["label"], shorten(one["text"], 72, placeholder=" ...")))
    screen.table("", rows)


def _asked(predictor: Predictor, screen: Screen) -> None:
    rows = []
    for text in TEXTS:
        guesses = predictor.fill(text, top=4)[0]
        rows.append((text, ", ".join(f"{guess['word']} {guess['score']:.0%}" for guess in guesses)))
    screen.table("", rows)


if __name__ == "__main__":
    sys.exit(main())
