"""Five minutes with BERT: take a shipped model, teach it a task, and live the whole life of a small one from raw text.

python -m bertsmith.quickstart [folder=out/quickstart] [minutes=1]
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .. import api
from ..artifacts import write_whole
from ..config import Config, parse, read
from ..console import Screen
from ..errors import BadInput, Stopped
from ..reports.finetuning import Lesson, answers, lesson
from ..reports.html import document, note, section, write
from . import docstrings
from .comparison import STUDY, STUDY_SMALL, taught
from .docstrings import gather, written

if TYPE_CHECKING:
    from ..inference.predictor import Predictor


SHIPPED = "mini-en"
VOCABULARY = 4000
MODEL = {"layers": 2, "width": 128, "mixer": {"kind": "dense", "heads": 4}, "feedforward": {"inner": 256},
         "positions": 64, "dropout": 0.0, "norm": "before", "deviation": 0.08}  # fmt: skip
# Chosen by measuring: in a minute or two on two cores, a model learns to use context only if its steps are very cheap (few
# pieces, a narrow inner layer, short texts) and each asks for many words.
LEARN: dict[str, Any] = {"model": MODEL, "length": [32], "objective": {"kind": "pairs", "rate": 0.3}, "held_out": 0.02,
                         "eval_tokens": 131_072}  # fmt: skip
TRAIN = {"batch_tokens": 1024, "rate": 3e-3, "warmup": 0.1, "eval_every": 1000}
ENGLISH = (
    "The capital of France is [MASK].",
    "He opened the [MASK] and walked in.",
    "Most birds build their [MASK] in trees.",
    "The old man sat by the [MASK] and read a book.",
)
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
    minutes: Annotated[float, "of pre-training the small model; all else takes about three more"] = 1.0
    roots: Annotated[tuple[str, ...], "folders of Python files to gather text from; none: this environment's"] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    # Set before torch is loaded: threads that spin while they wait for each other crawl where the cores have other work too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
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
    base = SHIPPED if SHIPPED in api.models() else None
    tell = Steps(screen, 7 if base else 6)
    if base:
        tell(f"Hidden words, by {base}: a model that comes with the package (a few seconds)")
        _asked(api.load(base), ENGLISH, screen)
    else:
        screen.say(f"{SHIPPED} is not in this checkout, which has no weights: the small model made here is taught instead\n")
    tell("Gathering English: the documentation inside Python and the installed packages (about 25 seconds)")
    _gathered(folder, [Path(root) for root in recipe.roots], screen)
    learnt = _taught(folder, base, STUDY, tell) if base else None
    result = _made(folder, recipe.minutes, tell)
    learnt = learnt if base else _taught(folder, str(folder / "model"), STUDY_SMALL, tell)
    page = _reported(folder, base, learnt)
    took = f"\nall of it took {time.monotonic() - began:.0f} seconds"
    screen.say("\n".join([took, "", *next_steps(folder, base, bool(learnt))]))
    return {"folder": str(folder), "report": page, **result, "base": base, "taught": learnt and learnt._asdict()}


class Steps:
    """Says which step of how many begins."""

    def __init__(self, screen: Screen, of: int) -> None:
        self.screen, self.of, self.number = screen, of, 0

    def __call__(self, words: str) -> None:
        self.number += 1
        self.screen.say(("\n" if self.number > 1 else "") + f"{self.number}/{self.of}  {words}")


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


def next_steps(folder: Path, base: str | None, taught: bool) -> list[str]:
    model, ask = (base, ENGLISH[0]) if base else (str(folder / "model"), "The default is [MASK].")
    lines = [f"The report, to open in a browser:     {folder / 'report.html'}"]
    if taught:
        lines.append(f"What the taught one gets wrong:       {folder / 'judged' / 'report.html'}")
    lines += [f"The small model, its corpus and text: {folder / 'model'}, {folder / 'corpus'}, {folder / 'text.txt'}",
              "What to type next:",
              f"  python -c \"import bertsmith; print(bertsmith.load('{model}').fill('{ask}'))\""]  # fmt: skip
    if taught:
        lines.append(f"  bertsmith predict model={folder / 'taught'} text='Returns the shortest path between two nodes.'")
    return [
        *lines,
        f"  bertsmith finetune model={model} task=classify data.train=YOUR.tsv out=out/mine",
        f"  bertsmith pretrain corpus={folder / 'corpus'} model=bert-mini train.minutes=30 train.rate=1e-3 out=out/mini",
        "  bertsmith tokenizer texts=YOUR.txt out=out/tokenizer        (then prepare, then pretrain; --help lists the keys)",
    ]


def _gathered(folder: Path, roots: Sequence[Path], screen: Screen) -> None:
    """The text to pre-train on, without the files that the task of packages is judged on; and that task's two files."""
    text = folder / "text.txt"
    if text.exists():
        screen.say(f"{text} is there already ({text.stat().st_size:,} bytes)")
        return
    with screen.bar("reading source files") as bar:
        documents = gather(roots, on_read=bar)
    task = docstrings.task_of(documents)
    if task:
        write_whole(folder / "learn.jsonl", docstrings.lines(task.learn))
        write_whole(folder / "judge.jsonl", docstrings.lines(task.judge))
    kept = [one for one in documents if task is None or (one.package, one.path) not in task.held_out]
    data = written(kept)
    write_whole(text, data)  # last: it says that all of them are there
    screen.say(f"{text}: {len(kept):,} documents, {sum(len(one.paragraphs) for one in kept):,} paragraphs, {len(data):,} bytes")


def _made(folder: Path, minutes: float, tell: Steps) -> dict[str, Any]:
    """A small BERT from raw text: what its pre-training came to."""
    text, tokenizer, corpus, model = (str(folder / name) for name in ("text.txt", "tokenizer", "corpus", "model"))
    quiet = tell.screen.quiet
    tell(f"A small BERT from zero, first its vocabulary of {VOCABULARY:,} pieces (about 5 seconds)")
    api.train_tokenizer(texts=[text], kind="wordpiece", size=VOCABULARY, lowercase=True, out=tokenizer, quiet=quiet)
    tell("Turning the text into a corpus of ids (about 5 seconds)")
    api.prepare(texts=[text], tokenizer=tokenizer, out=corpus, quiet=quiet)
    tell(f"Pre-training it for {minutes:g} minute{'s' if minutes != 1 else ''}: masked words and sentence pairs")
    result = api.pretrain(corpus=corpus, out=model, quiet=quiet, train={**TRAIN, "minutes": minutes}, **LEARN)
    tell("Asking it for hidden words of documentation (a few seconds)")
    _asked(api.load(model), TEXTS, tell.screen)
    tell.screen.say("\n".join(["", *told(result)]))
    return result


def _taught(folder: Path, base: str, study: dict[str, Any], tell: Steps) -> Lesson | None:
    tell("Teaching it which package a text is from, and its like without pre-training too (about two minutes)")
    return taught(folder, base, study, tell.screen)


def _asked(predictor: "Predictor", texts: Sequence[str], screen: Screen) -> None:
    rows = []
    for text in texts:
        guesses = predictor.fill(text, top=4)[0]
        rows.append((text, ", ".join(f"{guess['word']} {guess['score']:.0%}" for guess in guesses)))
    screen.table("", rows)


def _reported(folder: Path, base: str | None, found: Lesson | None) -> str:
    """All of it on one page: what came with the package, what it was taught here, and the small model's life."""
    from ..commands import show

    out = folder / "report.html"
    recipe = {"kind": "run", "model": str(folder / "model"), "corpus": str(folder / "corpus"), "texts": TEXTS, "out": str(out)}
    title, life = show.life(parse(show.Recipe, recipe))
    learnt = [lesson("Which package a text is from", found)] if found else []
    if not base:
        write(out, document(title, str(folder), [*life, *learnt]))
        return str(out)
    predictor = api.load(base)
    filled = answers([(text, predictor.fill(text)) for text in ENGLISH], "The shipped model")
    small = section("A small BERT from zero", note("The rest of this page: text of this machine, a vocabulary, a corpus, and a "
                    f"model that knew nothing, pre-trained for a minute or so. It is a toy beside {base}."))  # fmt: skip
    write(out, document(f"From {base}, and from nothing", str(folder), [filled, *learnt, small, *life]))
    return str(out)


if __name__ == "__main__":
    sys.exit(main())
