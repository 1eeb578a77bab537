"""The training loop of pre-training, fine-tuning and distillation, which differ only in their objective."""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import Interrupted, UserError
from . import checkpoint, distributed, optim, param_groups, precision, progress, schedule, signals
from .anomaly import AnomalyDetector
from .config import TrainConfig
from .logging import MetricsLogger, MetricSums, ProgressDisplay, format_metrics, list_losses
from .loss import BatchLike, Objective
from .progress import Clock, TrainProgress
from .step import UpdateStep, evaluate

MAX_ROLLBACKS = 3  # after which training is given up

BatchFn = Callable[[int, float], BatchLike]  # (index of the micro-batch, fraction of the run done)
SeededBatches = list[tuple[int, BatchLike]]  # (dropout seed, micro-batch)
EvalSets = Mapping[str, Callable[[], Iterable[BatchLike]]]
StepCallback = Callable[[int, dict[str, float]], None]
ScoreFn = Callable[[], float]


class Trainer:
    """Trains a model and writes checkpoints, metrics and progress.

    Step n depends only on (seed, n) and the weights, so a run that is killed and resumed gives the same result bit for bit.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        config: TrainConfig,
        folder: Path,
        *,
        seed: int,
        eval_sets: EvalSets | None = None,
        score_fn: ScoreFn | None = None,
        param_schedule: param_groups.ParamScheduleFn = param_groups.uniform_schedule,
        on_step: StepCallback = lambda step, report: None,
        quiet: bool = False,
        baseline: tuple[str, float] | None = None,
        fingerprint: str = "",
    ) -> None:
        """Resumes from the newest checkpoint in `folder/state`; its `fingerprint` must be the same.

        eval_sets: batches to evaluate on, by name.
        score_fn: score of the current weights, higher is better, for early stopping; by default minus the loss on the first
            eval set.
        param_schedule: learning rate scale and unfreezing by parameter name.
        on_step: called after each step with its number and metrics.
        baseline: (name of a loss, its unigram baseline), shown next to the loss.
        """
        config.check()
        if config.epochs is not None:
            raise UserError("train.epochs must first be converted to steps, by TrainConfig.resolve_epochs(batches_per_epoch)")
        if config.early_stopping_patience and not eval_sets and not score_fn:
            raise UserError("train.early_stopping_patience needs evaluation data; give a dev file, or set validation_split")
        self.config, self.folder, self.seed, self.on_step = config, folder, seed, on_step
        self.objective, self.eval_sets, self.score_fn = objective, eval_sets or {}, score_fn
        self.prepared = precision.prepare_model(model, config)
        self.model = self.prepared.model
        self.dist_state = distributed.init_distributed(self.prepared.device, config.gradient_accumulation_steps)
        self.display = ProgressDisplay(self.dist_state.is_main_process, quiet, baseline)
        self.metrics = MetricsLogger(folder, self.dist_state.is_main_process, config.tensorboard)
        self.optimizer = config.optimizer.build(
            optim.build_param_groups(self.model, config.weight_decay, param_schedule), config.learning_rate
        )
        self.update_step = UpdateStep(objective, self.prepared, self.dist_state, self.optimizer, config.max_grad_norm)
        self.progress = TrainProgress(fingerprint=fingerprint)
        self.anomaly_detector = AnomalyDetector(config.grad_spike_factor, config.max_bad_steps)
        self.recurrent_state: tuple[Tensor, ...] = ()
        self._prefetched: tuple[int, list[BatchLike]] | None = None  # (index of the first micro-batch, micro-batches)
        self.resumed_at: int | None = None
        self.clock = Clock()
        self._warmup_fraction = schedule.resolve_warmup(config.warmup_steps, config.steps)
        self._recent_losses: deque[float] = deque(maxlen=8)  # for the error message of a failed run
        self._resume()

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.dist_state.is_main_process

    def fit(self, get_batch: BatchFn) -> dict[str, Any]:
        """Trains to the end and returns a summary; the weights are in the model and in the last checkpoint.

        `get_batch(k, fraction_done)` returns micro-batch k, a pure function of k; fraction_done in [0, 1) is the fraction of
        the run done. After Ctrl-C or SIGTERM, saves a checkpoint and raises Interrupted.
        """
        tokens_before = self.progress.tokens
        with signals.catch_stop_signals() as stop_requested, self.display:
            self._start()
            while not self._is_finished():
                with self.clock.time_step():
                    row = self._step(get_batch)
                if self.anomaly_detector.should_roll_back:
                    self._roll_back()
                else:
                    self._after_step(row)
                self.on_step(self.progress.step, row)
                if self.dist_state.any_rank(bool(stop_requested)) and not self._is_finished():
                    self._save_and_stop()
            self._finish()
            self._load_best()
            self._load_average()
        return self._summary(self.progress.tokens - tokens_before)

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        c, (fraction_done, step_fraction) = self.config, self._run_fractions()
        return (
            c.learning_rate
            * self.progress.lr_scale
            * schedule.lr_factor(c.lr_scheduler_type, fraction_done, self._warmup_fraction, c.decay_fraction, step_fraction)
        )

    # -- one step

    def _step(self, get_batch: BatchFn) -> dict[str, float]:
        p, lr, (fraction_done, _) = self.progress, self.learning_rate(), self._run_fractions()
        param_groups.unfreeze(self.optimizer, fraction_done)
        pending = self.update_step.compute_grads(self._micro_batches(get_batch, p.step, fraction_done), self.recurrent_state)
        if self.update_step.optimizer_can_skip:
            self.update_step.apply_unless_anomalous(pending, lr, self.anomaly_detector.spike_threshold)
        self._prefetch(get_batch, p.step + 1)
        result = self.update_step.fetch_result(pending)
        p.step, p.tokens, p.learning_rate, p.is_finished = p.step + 1, p.tokens + result.tokens, lr, False
        means = {"loss": 0.0, **result.metrics.means()}
        self._recent_losses.append(means["loss"])
        if reason := self._skip_reason(means):
            self.update_step.skip()  # the recurrent state is not updated either: it may be non-finite, too
            self._record_skip(reason)
        else:
            if not self.update_step.optimizer_can_skip:
                self.update_step.apply(lr)
            self.recurrent_state = result.recurrent_state
            self._add_to_interval(result.metrics)
        return {**means, "learning_rate": lr, "tokens": result.tokens}

    def _micro_batches(self, get_batch: BatchFn, step: int, fraction_done: float) -> SeededBatches:
        """(dropout seed, micro-batch) of this rank for a step, on the device; prefetched ones if they are of this step."""
        first, local_indices = (
            (self.progress.batch_offset + step) * self.config.gradient_accumulation_steps,
            self.dist_state.local_micro_batches(self.config.gradient_accumulation_steps),
        )
        if self._prefetched is None or self._prefetched[0] != first:
            self._prefetched = first, [get_batch(first + i, fraction_done).to(self.prepared.device) for i in local_indices]
        return [(dropout_seed(self.seed, step, i), batch) for i, batch in zip(local_indices, self._prefetched[1], strict=True)]

    def _prefetch(self, get_batch: BatchFn, step: int) -> None:
        """Fetches the micro-batches of the next step, if there is one, while the device computes."""
        steps = self.config.steps
        if steps is None or step < steps:
            self._micro_batches(get_batch, step, self._run_fractions()[0] if steps is None else step / steps)

    def _skip_reason(self, means: dict[str, float]) -> str | None:
        if self.update_step.has_overflowed(means["loss"], means["grad_norm"]):
            return "fp16 overflow, the loss scale is halved"
        return self.anomaly_detector.check(means["loss"], means["grad_norm"])

    def _record_skip(self, reason: str) -> None:
        self.progress.skipped_steps += 1
        self.metrics.log(self.progress.step, skip_reason=reason)
        self.display.warn(f"step {self.progress.step}: update skipped: {reason}")

    def _add_to_interval(self, metrics: MetricSums) -> None:
        interval = MetricSums(self.progress.metric_sums)
        interval.add(metrics.drop_nonfinite())
        self.progress.metric_sums = interval.sums

    def _run_fractions(self) -> tuple[float, float]:
        """The fraction of the run done, and the fraction one step takes."""
        c, p = self.config, self.progress
        if c.steps is not None:
            return p.step / c.steps, 1 / c.steps
        budget = 60 * (c.minutes or 0)
        usable_seconds = max(budget - p.startup_seconds, 1e-9)
        fraction_done = max(p.seconds - p.startup_seconds, 0.0) / usable_seconds
        return min(fraction_done, 1 - 1e-9), p.step_seconds / usable_seconds

    def _seconds_left(self) -> float:
        """Estimated seconds to the end, without evaluations."""
        c, p = self.config, self.progress
        return (
            (c.steps - p.step) * self.clock.step_seconds if c.steps is not None else 60 * (c.minutes or 0) - self.clock.elapsed
        )

    def _is_finished(self) -> bool:
        c, p = self.config, self.progress
        if c.early_stopping_patience and p.evals_since_best >= c.early_stopping_patience:
            return True
        if c.steps is not None:
            return p.step >= c.steps
        p.seconds, p.step_seconds, p.startup_seconds = self.dist_state.broadcast(
            (self.clock.elapsed, self.clock.step_seconds, self.clock.startup_seconds)
        )
        return p.step > 0 and p.seconds + p.step_seconds > 60 * (c.minutes or 0)

    # -- between steps

    def _after_step(self, row: dict[str, float]) -> None:
        c, step = self.config, self.progress.step
        if step % c.log_every == 0:
            self._log()
        if c.eval_every and step % c.eval_every == 0:
            self._evaluate()
        if step % c.save_every == 0 and step != c.steps and not self.anomaly_detector.bad_steps:  # _finish saves the last step
            self._save()
        speed = row["tokens"] / (self.clock.step_seconds or 1)
        self.display.update(
            self._run_fractions()[0],
            self._progress_text(),
            {**row, "tokens_per_second": speed, "seconds_left": self._seconds_left()},
        )

    def _log(self) -> None:
        p, means = self.progress, MetricSums(self.progress.metric_sums).means()
        if not means:
            return  # every update since the last row was skipped and logged by _record_skip
        p.loss, p.metric_sums = means.get("loss"), {}
        losses = {name: means[name] for name in list_losses(means)}
        state = {"learning_rate": p.learning_rate, "grad_norm": means["grad_norm"], "tokens": p.tokens}
        self.metrics.log(p.step, **{**losses, **state, **means})

    def _evaluate(self) -> None:
        p = self.progress
        p.evaluations, p.eval_step = {}, p.step
        for name, batches in self.eval_sets.items():
            means = evaluate(self.objective, batches(), self.prepared)
            p.evaluations[name] = dict(means)
            self.metrics.log(p.step, split=name, **means)
            self.display.info(f"step {p.step}: {name}: {format_metrics(means)}")
        if self.config.early_stopping_patience:
            self._update_best()

    def _update_best(self) -> None:
        """Saves the weights if their score is the best so far, for early stopping."""
        p = self.progress
        eval_loss = next(iter(p.evaluations.values()), {}).get("loss")
        score = self.score_fn() if self.score_fn else -(eval_loss if eval_loss is not None else float("inf"))
        score = self.dist_state.broadcast(score)
        score = -math.inf if math.isnan(score) else score
        if p.best_step >= 0 and not score > (-math.inf if p.best_score is None else p.best_score):  # JSON has no infinity
            p.evals_since_best += 1
            return
        p.best_score, p.best_step, p.evals_since_best = score, p.step, 0
        if self.is_main_process:
            checkpoint.save_best(self.folder / "state", p.step, self.model)

    def _load_best(self) -> None:
        """Loads the best weights if they are not those of the last step."""
        p = self.progress
        if p.best_step >= 0 and p.best_step != p.step:
            checkpoint.load_best(self.folder / "state", p.best_step, self.model)
            self.display.info(f"loaded the best weights, of step {p.best_step}")

    def _load_average(self) -> None:
        """Loads the mean of the last `train.average_checkpoints` checkpoints."""
        if self.config.average_checkpoints:
            self.dist_state.broadcast(None)  # barrier: the last checkpoint must be written before anyone reads it
            steps = checkpoint.load_average(
                self.folder / "state", self.config.average_checkpoints, self.progress.step, self.model
            )
            self.display.info(f"averaged the weights of steps {', '.join(map(str, steps))}")

    def _roll_back(self) -> None:
        """Restores the last checkpoint, skips the batches since then, and halves the learning rate."""
        old = self.progress
        if old.rollbacks == MAX_ROLLBACKS:
            self._give_up()
        saved = checkpoint.load_latest_checkpoint(self.folder / "state", self.display.warn)
        assert saved, "step 0 was saved"
        self._restore(saved)
        new = self.progress
        new.batch_offset = old.batch_offset + old.step - new.step
        new.lr_scale, new.rollbacks = old.lr_scale / 2, old.rollbacks + 1
        new.skipped_steps, new.tokens = old.skipped_steps, old.tokens
        new.seconds, new.step_seconds, new.startup_seconds = old.seconds, old.step_seconds, old.startup_seconds
        self.anomaly_detector.bad_steps = 0
        self.metrics.log(old.step, rollback_to=new.step, lr_scale=new.lr_scale, batch_offset=new.batch_offset)
        self.display.warn(
            f"step {old.step}: {self.config.max_bad_steps} updates in a row were skipped; rolled back to step {new.step}, "
            f"with the following batches and {new.lr_scale:g} times the learning rate"
        )

    def _give_up(self) -> None:
        losses = ", ".join(f"{loss:.4g}" for loss in self._recent_losses)
        raise UserError(
            f"training diverged at step {self.progress.step} after {MAX_ROLLBACKS} rollbacks (last losses: {losses}); "
            f"lower train.learning_rate ({self.config.learning_rate:g}), raise train.warmup_steps "
            f"({self.config.warmup_steps:g}), or check the data"
        )

    def _save_and_stop(self) -> None:
        self._save()
        raise Interrupted(f"checkpoint saved at step {self.progress.step}; run the same command again to resume")

    # -- start, save, finish

    def _resume(self) -> None:
        fresh = self.progress
        if saved := checkpoint.load_latest_checkpoint(self.folder / "state", self.display.warn):
            saved_fingerprint = saved.metadata.get("fingerprint")
            if saved_fingerprint != fresh.fingerprint:
                raise UserError(
                    f"{self.folder} contains checkpoints of another recipe ({saved_fingerprint or '-'}, "
                    f"not {fresh.fingerprint or '-'}); choose another `out`, or remove {self.folder / 'state'} to start over"
                )
            self._restore(saved)
            self.resumed_at = self.progress.step
        self.dist_state.broadcast(None)  # barrier: nobody writes while other ranks still read

    def _start(self) -> None:
        p = self.progress
        self.clock = Clock(p.seconds, p.step_seconds, p.startup_seconds)
        self.model.train()
        if self.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics.truncate(p.metrics_bytes, p.step)
        if self.resumed_at is None:
            self.dist_state.broadcast_weights(self.model)
            self._save()  # step 0, for rollbacks; a full disk fails now
        elif p.step:
            prefix = "training is complete:" if p.is_finished and self._is_finished() else "resuming from"
            self.display.info(f"{prefix} {self._progress_text()} ({self.folder / 'state'})")

    def _finish(self) -> None:
        p = self.progress
        if p.is_finished:
            return
        self._log()
        if p.eval_step != p.step:
            self._evaluate()
        p.is_finished = True
        self._save()

    def _save(self) -> None:
        recurrent_states = self.dist_state.all_gather([tensor.cpu() for tensor in self.recurrent_state])
        p = self.progress
        p.grad_norms, p.bad_steps, p.grad_scaler = (
            list(self.anomaly_detector.grad_norms),
            self.anomaly_detector.bad_steps,
            self.prepared.scaler.state_dict(),
        )
        p.seconds, p.step_seconds, p.startup_seconds = self.clock.elapsed, self.clock.step_seconds, self.clock.startup_seconds
        if self.is_main_process:
            p.metrics_bytes = self.metrics.flush()
            tensors = checkpoint.collect_tensors(self.model, self.optimizer, recurrent_states)
            checkpoint.save_checkpoint(self.folder / "state" / f"step-{p.step}", tensors, progress.progress_to_dict(p))
            checkpoint.prune_checkpoints(
                self.folder / "state", max(self.config.save_total_limit, self.config.average_checkpoints), p.step
            )
            checkpoint.prune_best(self.folder / "state")
            if p.step:
                self.display.info(f"step {p.step}: checkpoint saved")

    def _restore(self, saved_checkpoint: checkpoint.Checkpoint) -> None:
        self.progress = p = progress.parse_progress(
            saved_checkpoint.metadata, str(saved_checkpoint.folder / checkpoint.PROGRESS_FILE)
        )
        checkpoint.restore_tensors(saved_checkpoint, self.model, self.optimizer)
        self.recurrent_state = checkpoint.restore_recurrent_state(
            saved_checkpoint, self.dist_state.rank, self.dist_state.world_size, self.prepared.device
        )
        if p.grad_scaler and self.prepared.scaler.is_enabled():
            self.prepared.scaler.load_state_dict(p.grad_scaler)
        self.anomaly_detector = AnomalyDetector(
            self.config.grad_spike_factor, self.config.max_bad_steps, p.grad_norms, p.bad_steps
        )

    def _progress_text(self) -> str:
        c, p = self.config, self.progress
        if c.steps:
            return f"step {p.step:>{len(str(c.steps))}}/{c.steps}"
        return f"step {p.step}, {self.clock.elapsed / 60:.1f}/{c.minutes:g} min"

    def _summary(self, tokens: int) -> dict[str, Any]:
        p = self.progress
        return {
            "step": p.step,
            "loss": p.loss,
            "seconds": p.seconds,
            "tokens": p.tokens,
            "tokens_per_second": tokens / self.clock.session_seconds if tokens else None,
            "evaluations": p.evaluations,
            "best_step": p.best_step if p.best_step >= 0 else p.step,
            "skipped_steps": p.skipped_steps,
            "rollbacks": p.rollbacks,
            "resumed_at": self.resumed_at,
        }


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Dropout seed of a micro-batch: a hash of (seed, step, micro_batch), independent of earlier steps."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{micro_batch}".encode(), digest_size=8).digest(), "big") >> 1
