"""Warnings while a run trains, and at its end: the problems that `bertsmith doctor` finds in its log."""

from collections.abc import Iterator
from pathlib import Path

from .finding import Finding
from .run_checks import (
    check_lr_too_high,
    check_lr_too_low,
    check_unigram_baseline,
    describe_divergence,
    is_loss_falling,
)
from .run_log import RunSettings, TrainingLog, read_log

CHECK_AT = (0.25, 0.5, 0.75)  # fractions of the run
# A healthy model may stay at the unigram baseline for a while: the warning comes after this fraction, or so many steps.
BASELINE_AFTER, BASELINE_AFTER_STEPS = 0.75, 10_000
MIN_STEPS = 100  # of a run that is expected to have learned something


class RunMonitor:
    """Checks the log of the run in `folder` a few times during the run, and at its end; each problem is reported once.

    unigram_entropy: of the corpus, in nats per token; None for runs that are not compared with the unigram baseline.
    """

    def __init__(self, folder: Path, run: RunSettings, unigram_entropy: float | None = None) -> None:
        self.folder, self.run, self.unigram_entropy = folder, run, unigram_entropy
        self._checked: float | None = None  # fraction of the run at the last check; None before the first row of this session
        self._reported: set[str] = set()  # names of findings

    def check(self, fraction_done: float) -> Iterator[str]:
        """Warnings after a row of the log; a resumed run does not repeat the checks before its checkpoint."""
        last, self._checked = self._checked, fraction_done
        if last is not None and any(last < at <= fraction_done < 1 for at in CHECK_AT) and (log := read_log(self.folder)):
            # Whether steps are large relative to the weights shows by the loss at the end.
            findings = list(check_lr_too_high(log, self.run)) if describe_divergence(log) else []
            is_late = fraction_done >= BASELINE_AFTER or log.steps >= BASELINE_AFTER_STEPS
            if is_late and (findings or not is_loss_falling(log)):
                findings += self._check_baseline(log, findings)
            yield from self._describe_problems(findings, log)

    def finish(self) -> Iterator[str]:
        """Warnings about the whole run."""
        if log := read_log(self.folder):
            is_long = log.steps >= MIN_STEPS
            findings = list(check_lr_too_high(log, self.run)) if is_long or describe_divergence(log) else []
            if is_long and self.run.stage == "pretrain":
                findings += check_lr_too_low(log, self.run)
            findings += self._check_baseline(log, findings)
            yield from self._describe_problems(findings, log)

    def _check_baseline(self, log: TrainingLog, findings: list[Finding]) -> Iterator[Finding]:
        if log.steps >= MIN_STEPS:
            yield from check_unigram_baseline(log, self.run, None, self.unigram_entropy, findings)

    def _describe_problems(self, findings: list[Finding], log: TrainingLog) -> Iterator[str]:
        for finding in findings:
            if finding.severity == "problem" and finding.name not in self._reported:
                self._reported.add(finding.name)
                setting = f" ({finding.setting})" if finding.setting else ""
                yield f"step {log.steps:,}: {finding.name}: {finding.observation}; {finding.suggestion}{setting}"
