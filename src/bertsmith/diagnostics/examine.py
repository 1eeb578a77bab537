"""Which folder is which, what is looked at in each, and the findings in order: causes first, then what follows from them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..artifacts import MANIFEST, read_json
from ..config import parse
from ..corpus.build import begun
from ..corpus.store import TOKENS, Corpus
from ..errors import BadInput
from ..model import checkpoint
from ..model.model import Model
from ..objectives import ObjectiveConfig
from . import corpus_checks
from . import run_log as courses
from .corpus_checks import documents, duplicates
from .finding import Finding
from .integrity import damaged, deviation, lost, newest_weights, stopped, tokenizer_of, unprepared
from .model_checks import collapsed, counted, dead_heads, masks, unmoved, unordered
from .probe import Probe, probe
from .run_checks import frequencies, overfit, stuck, too_high, too_low
from .run_log import Course, Run

Kind = Literal["corpus", "checkpoint", "run"]


@dataclass
class Report:
    kind: Kind
    findings: list[Finding] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)  # what could not be looked at, and why

    @property
    def problems(self) -> int:
        return sum(one.severity == "problem" for one in self.findings)

    def add(self, found: Iterator[Finding] | list[Finding]) -> None:
        self.findings += found


def recognised(folder: Path) -> Kind:
    """What a folder is, by what lies in it."""
    if (folder / TOKENS).exists() or (not (folder / MANIFEST).exists() and begun(folder)):
        return "corpus"
    if (folder / "config.json").exists():
        checkpoint.recorded(folder)  # refuses what others made
        return "checkpoint"
    if (folder / "state").is_dir() or (folder / "metrics.jsonl").exists():
        return "run"
    there = f"{folder} is neither a corpus nor a checkpoint" if folder.is_dir() else f"there is no folder {folder}"
    raise BadInput(f"{there}; give a folder that `prepare`, `pretrain`, `finetune` or `import` made, or is making")


def examined(folder: Path, corpus: Path | None = None) -> Report:
    """`corpus` is the text of a run, where the folder does not say where it is, or it has moved."""
    report = Report(recognised(folder))
    if report.kind == "corpus":
        if corpus is not None:
            raise BadInput(f"{folder} is a corpus itself; corpus={corpus} goes with the folder of a run")
        _corpus(folder, report)
    elif report.kind == "run":
        _unfinished(folder, corpus, report)
    else:
        _checkpoint(folder, corpus, report)
    return report


def _corpus(folder: Path, report: Report) -> None:
    report.add(unprepared(folder))
    if report.findings or not (opened := _opened(folder, report)):
        return
    report.add(corpus_checks.mixed_up(opened))
    if not report.findings:
        _text(opened.card, None, report)
        report.add(corpus_checks.crumbs(opened))
        report.add(corpus_checks.unused(opened))


def _text(card: dict[str, Any], objective: str | None, report: Report) -> None:
    """What the data card alone tells."""
    report.add(corpus_checks.unknown(card))
    report.add(duplicates(card))
    report.add(documents(card, objective))


def _unfinished(folder: Path, corpus: Path | None, report: Report) -> None:
    """Of a run in progress the log and the weights are there; its settings are written down when it ends."""
    log, weights = courses.read(folder), newest_weights(folder)
    run = Run(deviation=deviation(weights))
    report.add(stopped(folder, log))
    text = _opened(corpus, report) if corpus else None
    if text:
        _text(text.card, None, report)
    report.add(lost(weights, log.rate if log else None))
    _log(log, run, text.card if text else None, report)
    if log:
        report.add(masks(log, run, None))
    entropy = text.card["unigram entropy"] if text else None
    report.add(stuck(log, run, None, entropy, [one for one in report.findings if one.name != "stopped half-way"]))
    report.unseen.append("attention, positions and hidden states: the model is written down when the run ends")
    if not corpus:
        report.unseen.append("the text, and what it costs by frequency alone: give corpus=FOLDER")


def _checkpoint(folder: Path, corpus: Path | None, report: Report) -> None:
    report.add(damaged(folder))
    tokenizer, faults = (None, []) if report.findings else tokenizer_of(folder)
    report.add(faults)
    if tokenizer is None:
        return
    record, card = checkpoint.recorded(folder), read_json(folder / "card.json")
    model, run, log = checkpoint.load(folder, check=False)[0], Run.of(record), courses.read(folder)
    text = _beside(corpus, run, report)
    if text and (other := list(corpus_checks.other(text, record.get("tokenizer", tokenizer.fingerprint)))):
        report.add(other)
        report.unseen.append(f"attention, positions and hidden states: {text.path} is of another tokenizer")
        text = None
    about = card.get("corpus") or (text.card if text else None)  # its own text, whatever it is read on now
    if about and run.words:
        _text(about, run.objective, report)
    report.add(ruined := list(lost(model.state_dict(), run.train("rate"))))
    _log(log, run, about, report)
    _read(model, log, run, text if not ruined else None, about, report)


def _log(log: Course | None, run: Run, card: dict[str, Any] | None, report: Report) -> None:
    if log is None:
        report.unseen.append("the course of training: there is no metrics.jsonl, or it is empty")
        return
    report.add(too_high(log, run))
    report.add(too_low(log, run))
    report.add(overfit(log, run, card if run.words else None))


def _read(model: Model, log: Course | None, run: Run, text: Corpus | None, card: dict[str, Any] | None, report: Report) -> None:
    """What shows when the model reads its own text."""
    seen = _probed(model, text, run) if text else None
    entropy = card["unigram entropy"] if card and run.words else None
    report.add(masks(log, run, seen))
    report.add(stuck(log, run, seen, entropy, report.findings) if run.words or seen else [])
    report.add(unmoved(model, run))
    if seen is None:
        return
    report.add(alike := list(collapsed(seen, run)))
    report.add(dead_heads(seen))
    if not counted(seen)[-1]:
        report.unseen.append("attention: this model's mixers do not attend as a BERT does")
    if not alike:  # what is the same for every text is the same for every order
        report.add(unordered(seen, frequencies(seen) if seen.asked else None))


def _probed(model: Model, text: Corpus, run: Run) -> Probe:
    told = (run.recipe or {}) if run.stage == "pretrain" else {}
    objective = parse(ObjectiveConfig, told["objective"], "objective") if "objective" in told else None  # type: ignore[arg-type]
    return probe(model, text, told, objective)


def _beside(corpus: Path | None, run: Run, report: Report) -> Corpus | None:
    """The corpus that is named, or that the run was trained on, if it is still there."""
    told = (run.recipe or {}).get("corpus")
    place = corpus or (Path(told) if told else None)
    if place is None or (corpus is None and not (place / MANIFEST).exists()):
        why = f"{place} is not there any more" if place else "the folder names no corpus"
        report.unseen.append(f"attention, positions, masks and hidden states: {why}; give corpus=FOLDER")
        return None
    return _opened(place, report)


def _opened(folder: Path, report: Report) -> Corpus | None:
    """None, with the reason among the findings, if it is not whole."""
    faults = list(damaged(folder))
    opened = None if faults else Corpus.open(folder, check=False)
    faults = faults or tokenizer_of(folder)[1]
    report.add(faults)
    return None if faults else opened
