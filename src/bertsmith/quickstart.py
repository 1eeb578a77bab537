"""From nothing to a small BERT in minutes: gather English on this machine, learn it, and show how it went.

python -m bertsmith.quickstart [folder=out/quickstart] [minutes=2]
"""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from . import api
from .config import Config, read
from .docstrings import gather
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
    minutes: Annotated[float, "of training; all else takes about one more"] = 2.0
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

    screen.say("1/5  Gathering English: the documentation inside Python and the installed packages (about 20 seconds)")
    _gathered(Path(text), [Path(root) for root in recipe.roots], screen)
    screen.say(f"\n2/5  Learning a vocabulary of {VOCABULARY:,} pieces (about 5 seconds)")
    api.train_tokenizer(texts=[text], kind="wordpiece", size=VOCABULARY, lowercase=True, out=tokenizer, quiet=screen.quiet)
    screen.say("\n3/5  Turning the text into a corpus of ids (about 5 seconds)")
    api.prepare(texts=[text], tokenizer=tokenizer, out=corpus, quiet=screen.quiet)
    screen.say(f"\n4/5  Training a small BERT for {recipe.minutes:g} minutes: masked words and sentence pairs")
    result = api.pretrain(corpus=corpus, out=model, quiet=screen.quiet, train={**TRAIN, "minutes": recipe.minutes}, **LEARN)
    screen.say("\n5/5  Asking it, and writing the report (a few seconds)")
    _asked(api.load(model), screen)
    api.show(kind="run", model=model, corpus=corpus, texts=list(TEXTS), out=page, quiet=True)
    screen.say(
        "\n".join(["", *told(result), f"all of it took {time.monotonic() - began:.0f} seconds", "", *next_steps(folder)])
    )
    return {"folder": str(folder), "report": page, **result}


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


def next_steps(folder: Path) -> list[str]:
    return [
        f"The report, to open in a browser:  {folder / 'report.html'}",
        f"The model, the corpus, the text:   {folder / 'model'}, {folder / 'corpus'}, {folder / 'text.txt'}",
        "What to type next:",
        f"  python -c \"import bertsmith; print(bertsmith.load('{folder / 'model'}').fill('The default is [MASK].'))\"",
        f"  bertsmith pretrain corpus={folder / 'corpus'} model=bert-mini train.minutes=30 train.rate=1e-3 out=out/mini",
        "  bertsmith tokenizer texts=YOUR.txt out=out/tokenizer        (then prepare, then pretrain; --help lists the keys)",
    ]


def _gathered(text: Path, roots: Sequence[Path], screen: Screen) -> None:
    if text.exists():
        screen.say(f"{text} is there already ({text.stat().st_size:,} bytes)")
        return
    with screen.bar("reading source files") as bar:
        counts = gather(text, roots, on_read=bar)
    screen.say(f"{text}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


def _asked(predictor: Predictor, screen: Screen) -> None:
    rows = []
    for text in TEXTS:
        guesses = predictor.fill(text, top=4)[0]
        rows.append((text, ", ".join(f"{guess['word']} {guess['score']:.0%}" for guess in guesses)))
    screen.table("", rows)


if __name__ == "__main__":
    sys.exit(main())
