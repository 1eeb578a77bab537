"""Which folder is which, what is looked at in each, and the findings in order: causes first, then what follows from them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..artifacts import MANIFEST, read_json
from ..config import from_dict
from ..corpus.build import is_interrupted
from ..corpus.store import TOKENS_FILE, Corpus
from ..errors import UserError
from ..model import checkpoint
from ..model.model import Model
from ..objectives import ObjectiveConfig
from . import corpus_checks
from . import run_log as courses
from .corpus_checks import check_documents, check_duplicates
from .finding import Finding
from .integrity import (
    check_finite_weights,
    check_manifest,
    check_prepare_finished,
    check_run_finished,
    compute_weight_std,
    load_newest_weights,
    load_tokenizer,
)
from .model_checks import (
    check_collapse,
    check_dead_heads,
    check_masking,
    check_position_embeddings,
    check_word_order,
    find_dead_heads,
)
from .probe import Probe, build_probe
from .run_checks import check_lr_too_high, check_lr_too_low, check_overfitting, check_unigram_baseline, compute_unigram_loss
from .run_log import RunSettings, TrainingLog

FolderKind = Literal["corpus", "checkpoint", "run"]


@dataclass
class DiagnosticReport:
    kind: FolderKind
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)  # what could not be looked at, and why

    @property
    def num_problems(self) -> int:
        return sum(one.severity == "problem" for one in self.findings)

    def add(self, findings: Iterator[Finding] | list[Finding]) -> None:
        self.findings += findings


def detect_kind(folder: Path) -> FolderKind:
    """What a folder is, by what lies in it."""
    if (folder / TOKENS_FILE).exists() or (not (folder / MANIFEST).exists() and is_interrupted(folder)):
        return "corpus"
    if (folder / "config.json").exists():
        checkpoint.read_config(folder)  # refuses what others made
        return "checkpoint"
    if (folder / "state").is_dir() or (folder / "metrics.jsonl").exists():
        return "run"
    there = f"{folder} is neither a corpus nor a checkpoint" if folder.is_dir() else f"there is no folder {folder}"
    raise UserError(f"{there}; give a folder that `prepare`, `pretrain`, `finetune` or `import` made, or is making")


def examine_folder(folder: Path, corpus_folder: Path | None = None) -> DiagnosticReport:
    """`corpus` is the text of a run, where the folder does not say where it is, or it has moved."""
    report = DiagnosticReport(detect_kind(folder))
    if report.kind == "corpus":
        if corpus_folder is not None:
            raise UserError(f"{folder} is a corpus itself; corpus={corpus_folder} goes with the folder of a run")
        _check_corpus(folder, report)
    elif report.kind == "run":
        _check_unfinished_run(folder, corpus_folder, report)
    else:
        _check_checkpoint(folder, corpus_folder, report)
    return report


def _check_corpus(folder: Path, report: DiagnosticReport) -> None:
    report.add(check_prepare_finished(folder))
    if report.findings or not (opened := _open_corpus(folder, report)):
        return
    report.add(corpus_checks.check_corpus_tokenizer(opened))
    if not report.findings:
        _check_data_card(opened.card, None, report)
        report.add(corpus_checks.check_fertility(opened))
        report.add(corpus_checks.check_unused_subwords(opened))


def _check_data_card(card: dict[str, Any], objective: str | None, report: DiagnosticReport) -> None:
    """What the data card alone tells."""
    report.add(corpus_checks.check_unk_rate(card))
    report.add(check_duplicates(card))
    report.add(check_documents(card, objective))


def _check_unfinished_run(folder: Path, corpus_folder: Path | None, report: DiagnosticReport) -> None:
    """Of a run in progress the log and the weights are there; its settings are written down when it ends."""
    log, weights = courses.read_log(folder), load_newest_weights(folder)
    run = RunSettings(initializer_range=compute_weight_std(weights))
    report.add(check_run_finished(folder, log))
    text = _open_corpus(corpus_folder, report) if corpus_folder else None
    if text:
        _check_data_card(text.card, None, report)
    report.add(check_finite_weights(weights, log.peak_lr if log else None))
    _check_log(log, run, text.card if text else None, report)
    if log:
        report.add(check_masking(log, run, None))
    entropy = text.card["unigram entropy"] if text else None
    report.add(
        check_unigram_baseline(log, run, None, entropy, [one for one in report.findings if one.name != "stopped half-way"])
    )
    report.not_checked.append("attention, positions and hidden states: the model is written down when the run ends")
    if not corpus_folder:
        report.not_checked.append("the text, and what it costs by frequency alone: give corpus=FOLDER")


def _check_checkpoint(folder: Path, corpus_folder: Path | None, report: DiagnosticReport) -> None:
    report.add(check_manifest(folder))
    tokenizer, faults = (None, []) if report.findings else load_tokenizer(folder)
    report.add(faults)
    if tokenizer is None:
        return
    record, card = checkpoint.read_config(folder), read_json(folder / "card.json")
    model, run, log = (
        checkpoint.load(folder, verify_checksums=False)[0],
        RunSettings.from_record(record),
        courses.read_log(folder),
    )
    text = _open_run_corpus(corpus_folder, run, report)
    if text and (other := list(corpus_checks.check_model_tokenizer(text, record.get("tokenizer", tokenizer.fingerprint)))):
        report.add(other)
        report.not_checked.append(f"attention, positions and hidden states: {text.path} is of another tokenizer")
        text = None
    about = card.get("corpus") or (text.card if text else None)  # its own text, whatever it is read on now
    if about and run.is_pretraining:
        _check_data_card(about, run.objective, report)
    report.add(ruined := list(check_finite_weights(model.state_dict(), run.train_setting("rate"))))
    _check_log(log, run, about, report)
    _check_model(model, log, run, text if not ruined else None, about, report)


def _check_log(log: TrainingLog | None, run: RunSettings, card: dict[str, Any] | None, report: DiagnosticReport) -> None:
    if log is None:
        report.not_checked.append("the course of training: there is no metrics.jsonl, or it is empty")
        return
    report.add(check_lr_too_high(log, run))
    report.add(check_lr_too_low(log, run))
    report.add(check_overfitting(log, run, card if run.is_pretraining else None))


def _check_model(
    model: Model,
    log: TrainingLog | None,
    run: RunSettings,
    corpus: Corpus | None,
    card: dict[str, Any] | None,
    report: DiagnosticReport,
) -> None:
    """What shows when the model reads its own text."""
    seen = _probe_model(model, corpus, run) if corpus else None
    entropy = card["unigram entropy"] if card and run.is_pretraining else None
    report.add(check_masking(log, run, seen))
    report.add(check_unigram_baseline(log, run, seen, entropy, report.findings) if run.is_pretraining or seen else [])
    report.add(check_position_embeddings(model, run))
    if seen is None:
        return
    report.add(alike := list(check_collapse(seen, run)))
    report.add(check_dead_heads(seen))
    if not find_dead_heads(seen)[-1]:
        report.not_checked.append("attention: this model's mixers do not attend as a BERT does")
    if not alike:  # what is the same for every text is the same for every order
        report.add(check_word_order(seen, compute_unigram_loss(seen) if seen.has_mlm else None))


def _probe_model(model: Model, corpus: Corpus, run: RunSettings) -> Probe:
    told = (run.recipe or {}) if run.stage == "pretrain" else {}
    objective = from_dict(ObjectiveConfig, told["objective"], "objective") if "objective" in told else None  # type: ignore[arg-type]
    return build_probe(model, corpus, told, objective)


def _open_run_corpus(corpus_folder: Path | None, run: RunSettings, report: DiagnosticReport) -> Corpus | None:
    """The corpus that is named, or that the run was trained on, if it is still there."""
    told = (run.recipe or {}).get("corpus")
    place = corpus_folder or (Path(told) if told else None)
    if place is None or (corpus_folder is None and not (place / MANIFEST).exists()):
        why = f"{place} is not there any more" if place else "the folder names no corpus"
        report.not_checked.append(f"attention, positions, masks and hidden states: {why}; give corpus=FOLDER")
        return None
    return _open_corpus(place, report)


def _open_corpus(folder: Path, report: DiagnosticReport) -> Corpus | None:
    """None, with the reason among the findings, if it is not whole."""
    faults = list(check_manifest(folder))
    opened = None if faults else Corpus.open(folder, verify_checksums=False)
    faults = faults or load_tokenizer(folder)[1]
    report.add(faults)
    return None if faults else opened
