"""All there is to say of a model on a file, gathered once for the report and for scores.json."""

from dataclasses import dataclass
from typing import Any

from ..config import plain
from ..inference.predictor import Predictor
from ..tasks import Tag
from .calibration import Calibration, calibration
from .confusion import Confusion, Row, by_label, tangle, usual
from .errors import Mistake, mistakes, tally
from .evaluate import Judged
from .measures import Measure, headline, sliced
from .significance import Compared, compared
from .slices import Cut, slices


@dataclass(frozen=True)
class Study:
    model: str
    data: str
    judged: Judged
    cuts: list[Cut]
    part: tuple[str, Measure]  # the score that slices are compared by
    labels: list[Row]
    tangle: Confusion | None
    usual: tuple[str, float] | None
    calibration: Calibration | None
    mistakes: list[Mistake]  # all, worst first
    faults: list[tuple[str, str, int]]  # of entities
    against: str | None = None
    compared: Compared | None = None

    @property
    def kind(self) -> str:
        return str(self.judged.task.__struct_config__.tag)

    @property
    def main(self) -> str:
        """The score to look at first."""
        return headline(self.judged.task)


def studied(
    predictor: Predictor, judged: Judged, model: str, data: str, against: str | None = None, other: Judged | None = None
) -> Study:
    """`other` is what the model named `against` made of the same examples."""
    return Study(
        model,
        data,
        judged,
        slices(judged, predictor.tokenizer, predictor.length),
        sliced(judged.task, judged.measures),
        by_label(judged),
        tangle(judged),
        usual(judged),
        calibration(judged),
        mistakes(judged),
        tally(judged.answers, judged.examples) if isinstance(judged.task, Tag) else [],
        against,
        compared(judged, other) if other else None,
    )


def scores(study: Study) -> dict[str, Any]:
    """What a script wants: `scores` by name, `intervals` as [low, high], and the comparison where there is one."""
    judged = study.judged
    told: dict[str, Any] = {"model": study.model, "data": study.data, "task": study.kind, "examples": len(judged.examples)}
    told |= {"scores": judged.scores, "intervals": {name: [one.low, one.high] for name, one in judged.intervals.items()}}
    if study.compared:
        told["against"] = {"model": study.against} | {
            name: value for name, value in plain(study.compared).items() if name not in ("lost", "won")
        }
    return told


def details(study: Study, most: int) -> dict[str, Any]:
    """All the report shows, as plain values; of the mistakes, the `most` worst."""
    labels = [{"label": one.label, "right": one.counts.right, "found": one.counts.found, "there": one.counts.there,
               "precision": one.counts.precision, "recall": one.counts.recall, "f1": one.counts.f1}
              for one in study.labels]  # fmt: skip
    faults = [{"kind": kind, "types": types, "times": times} for kind, types, times in study.faults]
    return scores(study) | {
        "slices": plain(study.cuts),
        "labels": labels,
        "confusion": plain(study.tangle),
        "calibration": plain(study.calibration),
        "faults": faults,
        "mistakes": len(study.mistakes),
        "worst": plain(study.mistakes[:most]),
    }
