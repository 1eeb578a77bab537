"""The quickstart's task: a model is taught to tell packages apart, and so is its like that was not pre-trained."""

import json
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from .. import api
from ..console import Screen
from ..reports.finetuning import Answer, Lesson, Score

if TYPE_CHECKING:
    from ..inference.predictor import Predictor


# The same for the model that was pre-trained and for the one that was not. Small updates, since few texts must make many of
# them; three times the rate, and the one from scratch learns nothing. Chosen with the judged texts in sight.
TEACH: dict[str, Any] = {"task": "classify", "features": {"layers": "last"}, "length": 64}
STUDY = {"epochs": 3, "batch_tokens": 256, "rate": 1.5e-4, "head_rate": 10}
STUDY_SMALL = {"epochs": 15, "batch_tokens": 1024, "rate": 2e-3}  # for the small model, where none is shipped


def taught(folder: Path, base: str, study: dict[str, Any], screen: Screen) -> Lesson | None:
    """The scores of both models on files that neither learnt from; nothing, if there is no task."""
    learn, judge, pupil, scratch = (str(folder / name) for name in ("learn.jsonl", "judge.jsonl", "taught", "scratch"))
    if not Path(learn).exists():
        screen.say("there are no two packages with enough text to tell apart")
        return None
    for out, forgets in ((pupil, False), (scratch, True)):
        api.finetune(model=base, data={"train": learn}, out=out, scratch=forgets, train=study, quiet=True, **TEACH)
    found = api.evaluate(model=pupil, data=judge, against=scratch, out=str(folder / "judged"), quiet=True)
    other = api.evaluate(model=scratch, data=judge, quiet=True)
    examples = [json.loads(line) for line in Path(judge).read_text(encoding="utf-8").splitlines()]
    labels = sorted({one["label"] for one in examples})
    some = [next(one for one in examples if one["label"] == label) for label in labels]
    lesson = Lesson([_score("pre-trained", found), _score("from scratch", other)], _above(found), 1 / len(labels),
                    len(Path(learn).read_bytes().splitlines()), len(examples), _predicted(api.load(pupil), some))  # fmt: skip
    _tell(lesson, labels, screen)
    return lesson


def _score(name: str, found: dict[str, Any]) -> Score:
    low, high = found["intervals"]["accuracy"]
    return Score(name, low, found["scores"]["accuracy"], high)


def _above(found: dict[str, Any]) -> Score:
    above = next(one["above"] for one in found["against"]["differences"] if one["name"] == "accuracy")
    return Score("points above", above["low"], above["value"], above["high"])


def _predicted(predictor: "Predictor", examples: list[dict[str, str]]) -> list[Answer]:
    said = predictor([one["text"] for one in examples])
    return [Answer(answer["label"], max(answer["scores"].values()), one["label"], one["text"])
            for one, answer in zip(examples, said, strict=True)]  # fmt: skip


def _tell(found: Lesson, labels: list[str], screen: Screen) -> None:
    above = found.above
    screen.say(f"from {found.learnt:,} texts of {', '.join(labels)}")
    screen.table(f"right on {found.judged:,} texts of other files:", [
        ("", "accuracy", "95% interval"),
        *((one.name, one.percent, one.interval) for one in found.scores),
        (above.name, f"{100 * above.value:+.1f}", f"{100 * above.low:+.1f} to {100 * above.high:+.1f}"),
        ("a guess", f"{found.guess:.1%}", ""),
    ])  # fmt: skip
    rows = [(one.says, f"{one.sure:.0%}", one.truly, shorten(one.text, 72, placeholder=" ...")) for one in found.answers]
    screen.table("", [("it says", "", "truly", "text"), *rows])
