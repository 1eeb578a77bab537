"""Diagnostics of a folder (`bertsmith doctor`): detects its kind, runs all checks for it, causes before consequences."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..artifacts import MANIFEST, MODEL_KINDS, detect_kind, read_object, require_kind
from ..config import from_dict
from ..corpus.build import is_interrupted
from ..corpus.store import Corpus, check_card
from ..errors import UserError
from ..model import checkpoint
from ..model.model import Model
from ..objectives import ObjectiveConfig
from . import corpus_checks
from .corpus_checks import check_documents, check_duplicates
from .finding import Finding
from .integrity import (
    INTERRUPTED,
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
from .run_log import RunSettings, TrainingLog, read_log

ReportKind = Literal["corpus", "checkpoint", "run"]


@dataclass
class DiagnosticReport:
    """The findings about a folder, in the order of the checks."""

    kind: ReportKind
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)  # checks that were not possible, with the reason

    @property
    def num_problems(self) -> int:
        return sum(finding.severity == "problem" for finding in self.findings)

    def add(self, findings: Iterator[Finding] | list[Finding]) -> None:
        self.findings += findings


def choose_report(folder: Path) -> ReportKind:
    """Which checks apply to a folder, by what it is."""
    kind = detect_kind(folder)
    if kind == "corpus" or (not (folder / MANIFEST).exists() and is_interrupted(folder)):
        return "corpus"
    if kind == "unfinished run" and folder.is_dir():
        return "run"
    if kind not in MODEL_KINDS:
        require_kind(folder, "corpus, checkpoint or run")
    return "checkpoint"


def examine_folder(folder: Path, corpus_folder: Path | None = None) -> DiagnosticReport:
    """Runs all checks; `corpus_folder` is the corpus of a run, where the folder does not name it or it has moved."""
    report = DiagnosticReport(choose_report(folder))
    if report.kind == "corpus":
        if corpus_folder is not None:
            raise UserError(f"{folder} is a corpus; leave out corpus={corpus_folder}, which applies to the folder of a run")
        _check_corpus(folder, report)
    elif report.kind == "run":
        _check_unfinished_run(folder, corpus_folder, report)
    else:
        _check_checkpoint(folder, corpus_folder, report)
    return report


def _check_corpus(folder: Path, report: DiagnosticReport) -> None:
    report.add(check_prepare_finished(folder))
    if report.findings or not (corpus := _open_corpus(folder, report)):
        return
    report.add(corpus_checks.check_corpus_tokenizer(corpus))
    if not report.findings:
        _check_data_card(corpus.card, None, report)
        report.add(corpus_checks.check_fertility(corpus))
        report.add(corpus_checks.check_unused_subwords(corpus))


def _check_data_card(card: dict[str, Any], objective: str | None, report: DiagnosticReport) -> None:
    """Checks that need the data card only."""
    report.add(corpus_checks.check_unk_rate(card))
    report.add(check_duplicates(card))
    report.add(check_documents(card, objective))


def _check_unfinished_run(folder: Path, corpus_folder: Path | None, report: DiagnosticReport) -> None:
    """A run in progress has a log and checkpoints; its settings and model are written when it ends."""
    log, weights = read_log(folder), load_newest_weights(folder)
    run = RunSettings(initializer_range=compute_weight_std(weights))
    report.add(check_run_finished(folder, log))
    corpus = _open_corpus(corpus_folder, report) if corpus_folder else None
    if corpus:
        _check_data_card(corpus.card, None, report)
    report.add(check_finite_weights(weights, log.peak_lr if log else None))
    _check_log(log, run, corpus.card if corpus else None, report)
    if log:
        report.add(check_masking(log, run, None))
    entropy = corpus.card["unigram_entropy"] if corpus else None
    report.add(
        check_unigram_baseline(log, run, None, entropy, [finding for finding in report.findings if finding.name != INTERRUPTED])
    )
    report.not_checked.append(
        "attention, positions and hidden states: they need the config, which is written when the run ends"
    )
    if not corpus_folder:
        report.not_checked.append("the corpus and its unigram baseline: set corpus=FOLDER")


def _check_checkpoint(folder: Path, corpus_folder: Path | None, report: DiagnosticReport) -> None:
    report.add(check_manifest(folder))
    tokenizer, tokenizer_findings = (None, []) if report.findings else load_tokenizer(folder)
    report.add(tokenizer_findings)
    if tokenizer is None:
        return
    record, card = checkpoint.read_config(folder), read_object(folder / "card.json")
    model, run, log = (
        checkpoint.load(folder, verify_checksums=False)[0],
        RunSettings.from_record(record),
        read_log(folder),
    )
    fingerprint = record.get("tokenizer_fingerprint", tokenizer.fingerprint)
    corpus = _open_run_corpus(corpus_folder, run, fingerprint, report)
    if corpus and (mismatches := list(corpus_checks.check_model_tokenizer(corpus, fingerprint))):
        report.add(mismatches)
        report.not_checked.append(f"attention, positions and hidden states: {corpus.path} has another tokenizer")
        corpus = None
    data_card = check_card(card["corpus"], folder / "card.json") if card.get("corpus") else None
    data_card = data_card or (corpus.card if corpus else None)  # the corpus it was trained on, whatever it is probed with
    if data_card and run.is_pretraining:
        _check_data_card(data_card, run.objective, report)
    report.add(non_finite := list(check_finite_weights(model.state_dict(), run.train_setting("learning_rate"))))
    if detect_kind(folder) == "word vectors":
        report.not_checked.append(
            "the training log, attention and positions: these checks are of language models; evaluate word vectors by "
            "`bertsmith embed similarity=FILE analogies=FILE`"
        )
        return
    _check_log(log, run, data_card, report)
    _check_model(model, log, run, corpus if not non_finite else None, data_card, report)


def _check_log(log: TrainingLog | None, run: RunSettings, card: dict[str, Any] | None, report: DiagnosticReport) -> None:
    if log is None:
        report.not_checked.append("the training log: metrics.jsonl is missing or empty")
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
    """Checks of masking, loss, positions, attention and hidden states, by a forward pass over the corpus."""
    probe = _probe_model(model, corpus, run) if corpus else None
    entropy = card["unigram_entropy"] if card and run.is_pretraining else None
    report.add(check_masking(log, run, probe))
    report.add(check_unigram_baseline(log, run, probe, entropy, report.findings) if run.is_pretraining or probe else [])
    report.add(check_position_embeddings(model, run))
    if probe is None:
        return
    report.add(collapse := list(check_collapse(probe, run)))
    report.add(check_dead_heads(probe))
    if not find_dead_heads(probe)[-1]:
        report.not_checked.append("attention: no layer of this model has full self-attention")
    if not collapse:  # hidden states equal for all texts are equal for all word orders, too
        report.add(check_word_order(probe, compute_unigram_loss(probe) if probe.has_mlm else None))


def _probe_model(model: Model, corpus: Corpus, run: RunSettings) -> Probe:
    recipe = (run.recipe or {}) if run.stage == "pretrain" else {}
    objective = from_dict(ObjectiveConfig, recipe["objective"], "objective") if "objective" in recipe else None  # type: ignore[arg-type]
    return build_probe(model, corpus, recipe, objective)


def _open_run_corpus(corpus_folder: Path | None, run: RunSettings, fingerprint: str, report: DiagnosticReport) -> Corpus | None:
    """The given corpus, or the one that the run was trained on, if it still exists.

    A folder that the run recorded counts only if it is a corpus of the model's tokenizer: the path may mean another folder on
    this machine, or in this working directory.
    """
    recorded = (run.recipe or {}).get("corpus")
    folder = corpus_folder or (Path(recorded) if recorded else None)
    if folder is None or (corpus_folder is None and not _is_corpus_of(folder, fingerprint)):
        reason = f"the corpus of the run, {folder}, is not here" if folder else "config.json has no corpus"
        report.not_checked.append(f"attention, positions, masking and hidden states: {reason}; set corpus=FOLDER")
        return None
    return _open_corpus(folder, report)


def _is_corpus_of(folder: Path, fingerprint: str) -> bool:
    """Whether a folder is a corpus that was prepared with the tokenizer of this fingerprint."""
    if detect_kind(folder) != "corpus" or not (folder / "card.json").exists():
        return False
    return bool(read_object(folder / "card.json").get("tokenizer_fingerprint") == fingerprint)


def _open_corpus(folder: Path, report: DiagnosticReport) -> Corpus | None:
    """None if the folder is damaged, with the reason added to the findings."""
    findings = list(check_manifest(folder))
    corpus = None if findings else Corpus.open(folder, verify_checksums=False)
    findings = findings or load_tokenizer(folder)[1]
    report.add(findings)
    return None if findings else corpus
