"""Text learnt by heart: held-out loss that rises or lies far above training's, and text read too often."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..corpus.card import count_unigrams
from .finding import Finding, format_number
from .probe import Probe
from .run_log import ADAM_OPTIMIZERS, DEFAULT_INITIALIZER_RANGE, RunSettings, TrainingLog, smoothing_window

MAX_EVAL_LOSS_RISE = 0.02  # of the lowest held-out loss
MAX_LOSS_GAP_RATIO, MIN_LOSS_GAP = 0.2, 0.2  # of the training loss, and in nats
MAX_EPOCHS = 100  # BERT read its text 40 times, with masks that came again


def check_overfitting(log: TrainingLog, run: RunSettings, card: dict[str, Any] | None) -> Iterator[Finding]:
    name, held, steps = log.eval_losses()
    read = count_epochs(log, card)
    risen = len(held) > 1 and not run.train_setting("stop") and held[-1] > (1 + MAX_EVAL_LOSS_RISE) * held.min() + 0.01
    apart = (
        len(held) > 0 and name == "valid" and held[-1] - log.final_loss > max(MIN_LOSS_GAP, MAX_LOSS_GAP_RATIO * log.final_loss)
    )
    often = f", the text read {format_number(read)} times" if read else ""
    if (risen or apart) and log.final_loss <= held[-1]:
        best = int(held.argmin())
        told = f"held-out loss was {held[best]:.3f} at step {steps[best]:,} and is {held[-1]:.3f}" if risen else ""
        gap = f"loss in training is {log.final_loss:.3f}, on held-out text {held[-1]:.3f}" if apart else ""
        # Another corpus may be harder by nature, and fine-tuned answers often get better while their loss gets worse.
        elsewhere = run.stage == "finetune" or (bool((run.recipe or {}).get("valid")) and not risen)
        yield Finding(
            "overfitting", "note" if elsewhere else "problem", f"{'; '.join(filter(None, (told, gap)))}{often}",
            "the model learns its text by heart, and gets no better, or gets worse, at any other",
            "stop at the best evaluation, read more text fewer times, or take a smaller model or more dropout",
            f"train.steps={steps[best]}" if risen else "model.dropout=0.1",
        )  # fmt: skip
    elif read and read > MAX_EPOCHS:
        yield Finding(
            "too many epochs", "note", f"{log.tokens:,} tokens were read of a text of {card['tokens'] if card else 0:,}: "
            f"{format_number(read)} times over",
            "after the first few dozen readings the same text teaches little more; BERT read its own 40 times",
            "gather more text, or stop sooner", f"train.epochs={MAX_EPOCHS // 2}",
        )  # fmt: skip


def count_epochs(log: TrainingLog, card: dict[str, Any] | None) -> float | None:
    """How often a run read its text; none, where the text is not known."""
    return log.tokens / card["tokens"] if card and card.get("tokens") else None


LR_TOO_HIGH, LR_TOO_LOW = "learning rate too high", "learning rate too low"
LARGE_STEP = 0.3  # of a weight's first size, moved by a single step of Adam: what was learnt is thrown away as fast
SUFFICIENT_STEP = 0.01  # of it: a step that is large enough, so that a short way means few steps
MIN_FINETUNE_CHANGE = 0.05  # of it, moved over a whole run that began with trained weights: they are still what they were
SAFE_STEP = 0.05  # of it, in a step: what is safe to try
LEARNED_LOSS_RATIO = 0.6  # of the first loss: knowing only frequencies leaves about 0.65 of it
MIN_COUNT, GRAD_NORM_GROWTH = 3, 5.0


def check_lr_too_high(log: TrainingLog, run: RunSettings) -> Iterator[Finding]:
    signs = [
        sign
        for sign in (
            _describe_skipped_updates(log),
            _describe_loss_rise(log),
            _describe_grad_growth(log),
            _describe_large_steps(log, run),
        )
        if sign
    ]
    if not signs:
        return
    peak, gentle = run.train_setting("rate") or log.peak_lr, SAFE_STEP * max(run.initializer_range, DEFAULT_INITIALIZER_RANGE)
    few = (
        signs == [_describe_skipped_updates(log)]
        and 0 < len(log.skip_reasons) < MIN_COUNT
        and not log.rollbacks
        and not _has_nan(log)
    )
    yield Finding(
        LR_TOO_HIGH, "note" if few else "problem", f"at a peak rate of {peak:.3g}, {'; '.join(signs)}",
        "a few updates were thrown away, which costs little" if few else
        "steps are longer than the valley is wide: weights jump about, and at worst become NaN or forget all they knew",
        "keep an eye on it; if it comes again, lower the rate" if few else
        "lower the rate, lengthen the warm-up (train.warmup=0.1), keep train.clip=1; if one batch does it, look at its text",
        f"train.rate={format_number(peak / 3 if few else min(peak / 10, gentle) if run.optimizer in ADAM_OPTIMIZERS else peak / 10)}",
    )  # fmt: skip


def check_lr_too_low(log: TrainingLog, run: RunSettings) -> Iterator[Finding]:
    """By the sum of the rates, which no weight can be moved much further than, whatever its gradient."""
    if run.optimizer not in ADAM_OPTIMIZERS or len(log.losses) < MIN_COUNT or list(check_lr_too_high(log, run)):
        return
    reach = run.initializer_range * (1 if run.is_random_init else MIN_FINETUNE_CHANGE)
    share = (log.losses[0] - log.final_loss) / max(abs(log.losses[0]), 1e-9)
    if log.lr_sum >= reach or (not run.is_random_init and share >= MIN_FINETUNE_CHANGE):
        return
    brisk = log.peak_lr >= SUFFICIENT_STEP * run.initializer_range and run.is_random_init
    wanted = min(10 * reach / max(log.lr_sum, 1e-12), 1e4)
    yield Finding(
        "run too short" if brisk else LR_TOO_LOW, "problem",
        f"the loss went from {log.losses[0]:.3f} to {log.final_loss:.3f} in {log.steps:,} steps at rates up to "
        f"{log.peak_lr:.2g}; these add up to {log.lr_sum:.2g}, and weights begin at about {run.initializer_range:.2g}",
        "Adam moves a weight by about the rate at each step: in this run hardly any weight can have moved by its own size"
        if run.is_random_init else "Adam moves a weight by about the rate at each step: the model is still what it was before this run",
        "train longer" if brisk else "raise the rate, or train longer",
        f"train.steps={_round_up(log.steps * wanted)}" if brisk else f"train.rate={format_number(log.peak_lr * wanted)}",
    )  # fmt: skip


def is_loss_falling(log: TrainingLog) -> bool:
    """The last quarter is clearly below the one before it."""
    some = log.losses
    if len(some) < 8:
        return True
    third, last = some[-len(some) // 2 : -len(some) // 4], some[-len(some) // 4 :]
    return float(third.mean() - last.mean()) > 2 * _noise(some) / np.sqrt(len(last)) + 0.002 * abs(float(last.mean()))


def _describe_skipped_updates(log: TrainingLog) -> str | None:
    if not log.skip_reasons and not log.rollbacks:
        return None
    back = f", and the run went back to a checkpoint {log.rollbacks} times" if log.rollbacks else ""
    first = f", the first since {log.skip_reasons[0]}" if log.skip_reasons else ""
    return f"{len(log.skip_reasons):,} updates were skipped{first}{back}"


def _has_nan(log: TrainingLog) -> bool:
    return any("nan" in why or "inf" in why for why in log.skip_reasons)


def _describe_loss_rise(log: TrainingLog) -> str | None:
    some = log.losses
    if len(some) < 8:
        return None
    size = smoothing_window(len(some))
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(some, size), axis=1)
    low = float(smooth.min())
    least = max(0.1, 0.1 * (some[0] - low), 3 * _noise(some))
    if log.final_loss <= low + least:
        return None
    return f"the loss rose from {low:.3f} to {log.final_loss:.3f}"


def _describe_grad_growth(log: TrainingLog) -> str | None:
    norms, losses = log.column("norm"), log.losses
    if len(norms) < 12 or len(losses) < 12:
        return None
    early, late = _quarter_medians(norms)
    before, after = _quarter_medians(losses)
    if late <= GRAD_NORM_GROWTH * early or after < 0.98 * before:
        return None
    return f"gradients grew from {early:.3g} to {late:.3g} while the loss did not fall ({before:.3f} to {after:.3f})"


def _describe_large_steps(log: TrainingLog, run: RunSettings) -> str | None:
    """A sign only where little was learnt: it may go well all the same."""
    size, some = max(run.initializer_range, DEFAULT_INITIALIZER_RANGE), log.losses
    if run.optimizer not in ADAM_OPTIMIZERS or not run.is_random_init or log.peak_lr <= LARGE_STEP * size or not len(some):
        return None
    if log.final_loss < LEARNED_LOSS_RATIO * some[0]:
        return None
    return f"a step of Adam moves a weight by up to {log.peak_lr / size:.1f} of the size that weights begin with ({size:.2g})"


def _quarter_medians(values: np.ndarray) -> tuple[float, float]:
    """The medians of the second and of the last: the first is warm-up."""
    size = len(values) // 4
    return float(np.median(values[size : 2 * size])), float(np.median(values[-size:]))


def _noise(values: np.ndarray) -> float:
    """How far neighbours lie apart."""
    return float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else 0.0


def _round_up(value: float) -> int:
    """To a number somebody would type."""
    size = 10 ** max(0, len(str(int(value))) - 2)
    return int(-(-value // size) * size)


MIN_CONTEXT_GAIN = 0.05  # of what words cost by frequency: less saved than that is no use of context
UNMASKED_FRACTION = 0.1  # of the words asked for stand in sight and are copied, so that a training loss lies lower by that


def check_unigram_baseline(log: TrainingLog | None, run: RunSettings, probe: Probe | None, unigram_entropy: float | None,
          findings: Sequence[Finding]) -> Iterator[Finding]:  # fmt: skip
    """`others` are the problems found before: one of them is likely the cause."""
    found = _measure_mlm_loss(probe) or _read_logged_loss(log, unigram_entropy)
    if found is None:
        return
    loss, baseline, told = found
    if loss < (1 - MIN_CONTEXT_GAIN) * baseline:
        return
    causes = ", ".join(dict.fromkeys(one.name for one in findings if one.severity == "problem"))
    way_out, setting = _suggest_fix(log, run)
    yield Finding(
        "loss at the unigram entropy", "problem", told,
        "it has learnt how frequent words are, if that, and nothing yet from the words around them",
        f"mend first what was found above: {causes}" if causes else way_out, None if causes else setting,
    )  # fmt: skip


def compute_unigram_loss(probe: Probe) -> float:
    """Nats for each hidden word of the probe, to one who knows only how frequent the pieces are."""
    counts = count_unigrams(probe.corpus.tokens, len(probe.corpus.tokenizer)) + 1.0
    words = probe.batch.target_ids[probe.masked_targets]
    return float(-np.log(counts[words] / counts.sum()).mean())


def _measure_mlm_loss(probe: Probe | None) -> tuple[float, float, str] | None:
    if probe is None or not probe.has_mlm:
        return None
    loss, baseline = probe.compute_mlm_loss(probe.forward_outputs[0]), compute_unigram_loss(probe)
    told = f"{len(probe.masked_targets):,} hidden words cost {loss:.3f} nats each; knowing only frequencies, {baseline:.3f}"
    return loss, baseline, told


def _read_logged_loss(log: TrainingLog | None, unigram_entropy: float | None) -> tuple[float, float, str] | None:
    if log is None or unigram_entropy is None or not len(log.losses):
        return None
    if (alone := log.pseudo_nll()) is not None:
        told = f"held-out words, each hidden alone, cost {alone:.3f} nats; knowing only frequencies, {unigram_entropy:.3f}"
        return alone, unigram_entropy, told
    baseline = (1 - UNMASKED_FRACTION) * unigram_entropy / (1 - MIN_CONTEXT_GAIN)
    told = f"the loss is {log.final_loss:.3f} after {log.steps:,} steps; the unigram entropy is {unigram_entropy:.3f}"
    return log.final_loss, baseline, told


def _suggest_fix(log: TrainingLog | None, run: RunSettings) -> tuple[str, str | None]:
    if log is None or not log.peak_lr:
        return "train the model on this text", None
    longer = f"train.steps={4 * log.steps}"
    if is_loss_falling(log):
        return "the loss still falls: train longer; small models stay here a while before they begin to use context", longer
    step = log.peak_lr / run.initializer_range if run.optimizer in ADAM_OPTIMIZERS else 0.0
    if step > 0.05:
        return (
            "the loss is flat, the rate high for weights of this size: lower it",
            f"train.rate={format_number(log.peak_lr / 5)}",
        )
    if run.optimizer in ADAM_OPTIMIZERS and step < 0.01:
        return (
            "the loss is flat, the rate low for weights of this size: raise it",
            f"train.rate={format_number(log.peak_lr * 3)}",
        )
    return "train longer, with more tokens in an update (train.accumulate); larger first weights wake attention sooner", longer
