"""Checks of a training run by its log.

- overfitting: validation loss that rises or is far above the training loss; too many epochs.
- learning rate: too high (skipped updates, rising loss, growing gradients, large steps) or too low.
- unigram baseline: an MLM loss no better than that of token frequencies alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..corpus.card import count_unigrams
from .finding import Finding, format_number
from .probe import Probe
from .run_log import (
    ADAM_OPTIMIZERS,
    DEFAULT_INITIALIZER_RANGE,
    MLM_LOSS,
    RunSettings,
    TrainingLog,
    smoothing_window,
)

MAX_EVAL_LOSS_RISE = 0.02  # relative to the lowest validation loss
MAX_LOSS_GAP_RATIO, MIN_LOSS_GAP = 0.2, 0.2  # relative to the training loss, and in nats
MAX_EPOCHS = 100  # BERT was trained for 40 epochs, with repeated masks
LARGE_STEP = 0.3  # of initializer_range per Adam step: updates erase what was learned
SUFFICIENT_STEP = 0.01  # of initializer_range per step: large enough, so a small total change means too few steps
MIN_FINETUNE_CHANGE = 0.05  # of initializer_range over a whole fine-tuning run: below it the weights are unchanged
SAFE_STEP = 0.05  # of initializer_range per step: safe to try
LEARNED_LOSS_RATIO = 0.6  # of the initial loss; the unigram baseline is at about 0.65
MIN_COUNT, GRAD_NORM_GROWTH = 3, 5.0  # rows or skipped updates; factor between the second and the last quarter
MIN_CONTEXT_GAIN = 0.05  # relative to the unigram loss: a smaller gain does not show use of context
UNMASKED_FRACTION = 0.1  # of the targets are left unchanged and can be copied, which lowers the training loss by that
LR_TOO_HIGH, LR_TOO_LOW = "learning rate too high", "learning rate too low"


def check_overfitting(log: TrainingLog, run: RunSettings, card: dict[str, Any] | None) -> Iterator[Finding]:
    """Validation loss that rises or is far above the training loss, or too many epochs."""
    split, eval_losses, steps = log.eval_losses()
    epochs = count_epochs(log, card)
    has_risen = (
        len(eval_losses) > 1
        and not run.train_setting("early_stopping_patience")
        and eval_losses[-1] > (1 + MAX_EVAL_LOSS_RISE) * eval_losses.min() + 0.01
    )
    has_gap = (
        len(eval_losses) > 0
        and split == "valid"
        and eval_losses[-1] - log.final_loss > max(MIN_LOSS_GAP, MAX_LOSS_GAP_RATIO * log.final_loss)
    )
    epochs_note = f", after {format_number(epochs)} epochs" if epochs else ""
    if (has_risen or has_gap) and log.final_loss <= eval_losses[-1]:
        best = int(eval_losses.argmin())
        last = eval_losses[-1]
        rise = f"validation loss rose from {eval_losses[best]:.3f} at step {steps[best]:,} to {last:.3f}" if has_risen else ""
        gap = f"training loss is {log.final_loss:.3f}, validation loss {last:.3f}" if has_gap else ""
        # Another validation corpus may be harder by nature, and fine-tuning often improves accuracy while the loss rises.
        is_note = run.stage == "finetune" or (bool((run.recipe or {}).get("valid")) and not has_risen)
        yield Finding(
            "overfitting", "note" if is_note else "problem", f"{'; '.join(filter(None, (rise, gap)))}{epochs_note}",
            "the model memorizes the training data and does not improve on other data",
            "stop at the best evaluation, or use more text, a smaller model or more dropout",
            f"train.steps={steps[best]}" if has_risen else "model.hidden_dropout_prob=0.1",
        )  # fmt: skip
    elif epochs and epochs > MAX_EPOCHS:
        yield Finding(
            "too many epochs", "note", f"{log.tokens:,} tokens, of a corpus of {card['tokens'] if card else 0:,}: "
            f"{format_number(epochs)} epochs",
            "after a few dozen epochs a model gains little from the same text; BERT was trained for 40",
            "use more text, or stop earlier", f"train.epochs={MAX_EPOCHS // 2}",
        )  # fmt: skip


def check_lr_too_high(log: TrainingLog, run: RunSettings) -> Iterator[Finding]:
    """Skipped updates, rising loss, growing gradients, or steps that are large relative to the initial weights."""
    signs = [*describe_divergence(log), *filter(None, [_describe_large_steps(log, run)])]
    if not signs:
        return
    peak, safe_lr = (
        run.train_setting("learning_rate") or log.peak_lr,
        SAFE_STEP * max(run.initializer_range, DEFAULT_INITIALIZER_RANGE),
    )
    is_minor = (
        signs == [_describe_skipped_updates(log)]
        and 0 < len(log.skip_reasons) < MIN_COUNT
        and not log.rollbacks
        and not _has_nan(log)
    )
    lowered = min(peak / 10, safe_lr) if run.optimizer in ADAM_OPTIMIZERS else peak / 10
    suggested = peak / 3 if is_minor else lowered
    yield Finding(
        LR_TOO_HIGH, "note" if is_minor else "problem", f"peak learning rate {peak:.3g}: {'; '.join(signs)}",
        "a few skipped updates do no harm" if is_minor else
        "the updates are too large: the loss does not fall, and weights may become NaN or lose what was learned",
        "if it happens again, lower the learning rate" if is_minor else
        "lower the learning rate, lengthen the warmup (train.warmup_steps=0.1), keep train.max_grad_norm=1; "
        "if always the same batch causes it, check its text",
        f"train.learning_rate={format_number(suggested)}",
    )  # fmt: skip


def describe_divergence(log: TrainingLog) -> list[str]:
    """Signs of a run that diverges: skipped updates, rising loss, growing gradients."""
    return list(filter(None, (_describe_skipped_updates(log), _describe_loss_rise(log), _describe_grad_growth(log))))


def check_lr_too_low(log: TrainingLog, run: RunSettings) -> Iterator[Finding]:
    """By the sum of the learning rates over steps, which bounds how far Adam can move a weight, whatever its gradient."""
    if run.optimizer not in ADAM_OPTIMIZERS or len(log.losses) < MIN_COUNT or list(check_lr_too_high(log, run)):
        return
    min_change = run.initializer_range * (1 if run.is_random_init else MIN_FINETUNE_CHANGE)
    loss_decrease = (log.losses[0] - log.final_loss) / max(abs(log.losses[0]), 1e-9)
    if log.lr_sum >= min_change or (not run.is_random_init and loss_decrease >= MIN_FINETUNE_CHANGE):
        return
    is_too_short = log.peak_lr >= SUFFICIENT_STEP * run.initializer_range and run.is_random_init
    factor = min(10 * min_change / max(log.lr_sum, 1e-12), 1e4)
    yield Finding(
        "run too short" if is_too_short else LR_TOO_LOW, "problem",
        f"the loss went from {log.losses[0]:.3f} to {log.final_loss:.3f} in {log.steps:,} steps with learning rates up to "
        f"{log.peak_lr:.2g}, a sum of {log.lr_sum:.2g}; initial weights are about {run.initializer_range:.2g}",
        "Adam changes a weight by about the learning rate at each step: "
        + ("in this run hardly any weight can have changed by its initial size"
           if run.is_random_init else "the model has hardly changed in this run"),
        "train longer" if is_too_short else "raise the learning rate, or train longer",
        f"train.steps={_round_up(log.steps * factor)}" if is_too_short else
        f"train.learning_rate={format_number(log.peak_lr * factor)}",
    )  # fmt: skip


def check_unigram_baseline(
    log: TrainingLog | None,
    run: RunSettings,
    probe: Probe | None,
    unigram_entropy: float | None,
    findings: Sequence[Finding],
) -> Iterator[Finding]:
    """An MLM loss no better than the unigram baseline; `findings` are those of earlier checks, its likely causes."""
    measured = _measure_mlm_loss(probe) or _read_logged_loss(log, unigram_entropy)
    if measured is None:
        return
    loss, baseline, observation = measured
    if loss < (1 - MIN_CONTEXT_GAIN) * baseline:
        return
    causes = ", ".join(dict.fromkeys(finding.name for finding in findings if finding.severity == "problem"))
    suggestion, setting = _suggest_fix(log, run)
    yield Finding(
        "loss at the unigram baseline", "problem", observation,
        "the model has learned token frequencies at most, and nothing yet from context",
        f"fix these findings first: {causes}" if causes else suggestion, None if causes else setting,
    )  # fmt: skip


def compute_unigram_loss(probe: Probe) -> float:
    """Mean NLL in nats of the probe's masked targets under the unigram distribution of the corpus (add-one smoothed)."""
    counts = count_unigrams(probe.corpus.tokens, len(probe.corpus.tokenizer)) + 1.0
    targets = probe.batch.target_ids[probe.masked_targets]
    return float(-np.log(counts[targets] / counts.sum()).mean())


def count_epochs(log: TrainingLog, card: dict[str, Any] | None) -> float | None:
    """Epochs, as tokens read per token of the corpus; None where the corpus is unknown."""
    return log.tokens / card["tokens"] if card and card.get("tokens") else None


def is_loss_falling(log: TrainingLog) -> bool:
    """Whether the mean loss of the last quarter is below that of the quarter before by more than noise."""
    losses = log.losses
    if len(losses) < 8:
        return True
    third, last = losses[-len(losses) // 2 : -len(losses) // 4], losses[-len(losses) // 4 :]
    return float(third.mean() - last.mean()) > 2 * _noise(losses) / np.sqrt(len(last)) + 0.002 * abs(float(last.mean()))


def _describe_skipped_updates(log: TrainingLog) -> str | None:
    if not log.skip_reasons and not log.rollbacks:
        return None
    rollback_note = f", and the run was rolled back {log.rollbacks} times" if log.rollbacks else ""
    reason = f" (the first: {log.skip_reasons[0]})" if log.skip_reasons else ""
    return f"{len(log.skip_reasons):,} updates were skipped{reason}{rollback_note}"


def _has_nan(log: TrainingLog) -> bool:
    return any("nan" in reason or "inf" in reason for reason in log.skip_reasons)


def _describe_loss_rise(log: TrainingLog) -> str | None:
    losses = log.losses
    if len(losses) < 8:
        return None
    window = smoothing_window(len(losses))
    smoothed = np.median(np.lib.stride_tricks.sliding_window_view(losses, window), axis=1)
    min_loss = float(smoothed.min())
    min_rise = max(0.1, 0.1 * (losses[0] - min_loss), 3 * _noise(losses))
    if log.final_loss <= min_loss + min_rise:
        return None
    return f"the loss rose from {min_loss:.3f} to {log.final_loss:.3f}"


def _describe_grad_growth(log: TrainingLog) -> str | None:
    norms, losses = log.column("grad_norm"), log.losses
    if len(norms) < 12 or len(losses) < 12:
        return None
    early_norm, late_norm = _quarter_medians(norms)
    early_loss, late_loss = _quarter_medians(losses)
    if late_norm <= GRAD_NORM_GROWTH * early_norm or late_loss < 0.98 * early_loss:
        return None
    losses_range = f"({early_loss:.3f} to {late_loss:.3f})"
    return f"the gradient norm grew from {early_norm:.3g} to {late_norm:.3g} while the loss did not fall {losses_range}"


def _describe_large_steps(log: TrainingLog, run: RunSettings) -> str | None:
    """Only where the loss hardly fell, since large steps may work well."""
    weight_std, losses = max(run.initializer_range, DEFAULT_INITIALIZER_RANGE), log.losses
    if (
        run.optimizer not in ADAM_OPTIMIZERS
        or not run.is_random_init
        or log.peak_lr <= LARGE_STEP * weight_std
        or not len(losses)
    ):
        return None
    if log.final_loss < LEARNED_LOSS_RATIO * losses[0]:
        return None
    ratio = log.peak_lr / weight_std
    return f"a step of Adam changes a weight by up to {ratio:.1f} times its initial size ({weight_std:.2g})"


def _quarter_medians(values: np.ndarray) -> tuple[float, float]:
    """Medians of the second and of the last quarter; the first is warmup."""
    size = len(values) // 4
    return float(np.median(values[size : 2 * size])), float(np.median(values[-size:]))


def _noise(values: np.ndarray) -> float:
    """Median absolute difference of consecutive values."""
    return float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else 0.0


def _round_up(value: float) -> int:
    """Up to two significant digits."""
    size = 10 ** max(0, len(str(int(value))) - 2)
    return int(-(-value // size) * size)


def _measure_mlm_loss(probe: Probe | None) -> tuple[float, float, str] | None:
    """(MLM loss, unigram loss, observation) of the probe."""
    if probe is None or not probe.has_mlm:
        return None
    loss, baseline = probe.compute_mlm_loss(probe.forward_outputs[0]), compute_unigram_loss(probe)
    observation = (
        f"MLM loss of {len(probe.masked_targets):,} masked tokens is {loss:.3f}; the unigram baseline has {baseline:.3f}"
    )
    return loss, baseline, observation


def _read_logged_loss(log: TrainingLog | None, unigram_entropy: float | None) -> tuple[float, float, str] | None:
    """(loss, baseline, observation) by the log: pseudo-log-likelihood, or else the training loss."""
    if log is None or unigram_entropy is None or not len(log.losses):
        return None
    if (pseudo_nll := log.pseudo_nll()) is not None:
        observation = (
            f"pseudo-log-likelihood loss of validation text is {pseudo_nll:.3f}; the unigram baseline has {unigram_entropy:.3f}"
        )
        return pseudo_nll, unigram_entropy, observation
    baseline = unigram_entropy
    if log.loss_column == MLM_LOSS:
        baseline *= (1 - UNMASKED_FRACTION) / (1 - MIN_CONTEXT_GAIN)
    observation = (
        f"training loss is {log.final_loss:.3f} after {log.steps:,} steps; the unigram baseline has {unigram_entropy:.3f}"
    )
    return log.final_loss, baseline, observation


def _suggest_fix(log: TrainingLog | None, run: RunSettings) -> tuple[str, str | None]:
    """(advice, setting) by the trend of the loss and the size of the steps."""
    if log is None or not log.peak_lr:
        return "train the model on this corpus", None
    more_steps = f"train.steps={4 * log.steps}"
    if is_loss_falling(log):
        return (
            "the loss is still falling: train longer; small models stay at this loss for a while before they use context",
            more_steps,
        )
    relative_step = log.peak_lr / run.initializer_range if run.optimizer in ADAM_OPTIMIZERS else 0.0
    if relative_step > 0.05:
        return (
            "the loss is flat and the learning rate high relative to the initial weights: lower it",
            f"train.learning_rate={format_number(log.peak_lr / 5)}",
        )
    if run.optimizer in ADAM_OPTIMIZERS and relative_step < 0.01:
        return (
            "the loss is flat and the learning rate low relative to the initial weights: raise it",
            f"train.learning_rate={format_number(log.peak_lr * 3)}",
        )
    return (
        "train longer, with more tokens per update (train.gradient_accumulation_steps), or with a larger "
        "model.initializer_range",
        more_steps,
    )
