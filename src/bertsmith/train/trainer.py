"""The training loop of pre-training and fine-tuning, which differ only in their objective."""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import astuple
from torch import Tensor

from .. import runs
from ..errors import UserError
from ..runs import Run
from ..signals import catch_stop_signals
from . import checkpoint, param_groups, schedule
from .anomaly import AnomalyDetector
from .logging import MetricsLogger, MetricSums, ProgressDisplay, format_metrics, list_losses
from .objective import Batch, Objective
from .progress import Clock, TimeProgress, TrainProgress, parse_progress, progress_to_dict
from .setup import TrainSetup, isolate_torch_state
from .status import RunStatus, read_memory
from .step import StepResult, UpdateStep, evaluate

MAX_ROLLBACKS = 3  # after which training is given up
MAX_STEPS_WITHOUT_TARGETS = 10  # from the start of a run

BatchFn = Callable[[int, float], Batch[Any]]  # (index of the micro-batch, fraction of the run done)
SeededBatches = list[tuple[int, Batch[Any]]]  # (dropout seed, micro-batch)
StepCallback = Callable[[int, dict[str, float]], None]
LogCheck = Callable[[float], Iterable[str]]  # fraction of the run done -> warnings


@dataclass(frozen=True)
class Validation:
    """What the weights are evaluated on, and what their loss is compared with.

    eval_sets: batches by split.
    score_fn: score of the current weights, higher is better, for early stopping; by default minus the loss on the first
        split.
    baseline: (name of a loss, its unigram baseline), shown next to the loss.
    """

    eval_sets: Mapping[str, Callable[[], Iterable[Batch[Any]]]] = field(default_factory=dict)
    score_fn: Callable[[], float] | None = None
    baseline: tuple[str, float] | None = None


class Trainer:
    """Trains a model and writes checkpoints, metrics and progress.

    Step n depends only on (seed, n) and the weights, so a run that is killed and resumed gives the same result bit for bit.
    """

    def __init__(
        self,
        setup: TrainSetup,
        objective: Objective,
        run: Run,
        seed: int,
        *,
        validation: Validation | None = None,
        on_step: StepCallback = lambda step, report: None,
        check_log: LogCheck = lambda fraction_done: (),
        status: RunStatus | None = None,
    ) -> None:
        """on_step: called after each step with its number and metrics.

        check_log: called after each training row of metrics.jsonl, on the main process; what it returns is shown as warnings.
        status: where the progress is written for others to read.
        """
        setup.config.check()
        self.setup, self.config, self.model, self.run, self.seed = setup, setup.config, setup.model, run, seed
        self.objective, self.validation, self.on_step = objective, validation or Validation(), on_step
        self.check_log, self.status = check_log, status
        if self.config.epochs is not None:
            raise UserError("train.epochs must first be converted to steps, by TrainConfig.resolve_epochs(batches_per_epoch)")
        if self.config.early_stopping_patience and not self.validation.eval_sets and not self.validation.score_fn:
            raise UserError("train.early_stopping_patience needs evaluation data; give a dev file, or set validation_split")
        self.display = ProgressDisplay(self.is_main_process, run.console.quiet, self.validation.baseline)
        self.metrics = MetricsLogger(run.folder, self.is_main_process, self.config.tensorboard)
        self.update_step = UpdateStep(setup, objective)
        self.progress = TrainProgress()
        self.anomaly_detector = AnomalyDetector(self.config.grad_spike_factor, self.config.max_bad_steps)
        self.recurrent_state: tuple[Tensor, ...] = ()
        self._prefetched: tuple[int, list[Batch[Any]]] | None = None  # (index of the first micro-batch, micro-batches)
        self.resumed_at: int | None = None
        self.clock = Clock()
        self._warmup_fraction = schedule.resolve_warmup(self.config.warmup_steps, self.config.steps)
        self._recent_losses: deque[float] = deque(maxlen=8)  # for the error message of a failed run

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.setup.ranks.is_main_process

    def fit(self, get_batch: BatchFn) -> dict[str, Any]:
        """Trains to the end, from the newest checkpoint of the run if there is one, and returns a summary.

        The weights are in the model and in the last checkpoint. `get_batch(k, fraction_done)` returns micro-batch k, a pure
        function of k; fraction_done in [0, 1) is the fraction of the run done. After a stop signal, saves a checkpoint and
        raises Interrupted.
        """
        self.resume()
        tokens_before = self.progress.tokens
        with isolate_torch_state(self.setup), catch_stop_signals() as stop_requested, self.display:
            self._start()
            while not self._is_finished():
                with self.clock.time_step():
                    row = self._step(get_batch)
                if self.anomaly_detector.should_roll_back:
                    self._roll_back()
                else:
                    self._after_step(row)
                self.on_step(self.progress.step, row)
                if self.setup.ranks.any_rank(bool(stop_requested)) and not self._is_finished():
                    self._save()
                    raise self.run.interrupted(f"step {self.progress.step}")
            self._check_trained()
            self._finish()
            if self.setup.ranks.any_rank(bool(stop_requested)):
                raise self.run.interrupted(f"step {self.progress.step}")
            self._load_best()
            self._load_average()
        return self._summary(self.progress.tokens - tokens_before)

    def resume(self) -> None:
        """Loads the newest checkpoint of the run, if there is one."""
        if saved := self.run.load_latest_checkpoint(self.display.warn):
            self._restore(saved)
            self.resumed_at = self.progress.step
        self.setup.ranks.broadcast(None)  # barrier: nobody writes while other ranks still read

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        c, (fraction_done, step_fraction) = self.config, self._run_fractions()
        return (
            c.learning_rate
            * self.progress.anomalies.lr_scale
            * schedule.lr_factor(c.lr_scheduler_type, fraction_done, self._warmup_fraction, c.decay_fraction, step_fraction)
        )

    # -- one step

    def _step(self, get_batch: BatchFn) -> dict[str, float]:
        p, lr, (fraction_done, _) = self.progress, self.learning_rate(), self._run_fractions()
        param_groups.unfreeze(self.setup.optimizer, fraction_done)
        batches = self._micro_batches(get_batch, p.step, fraction_done)
        prefetch = lambda: self._prefetch(get_batch, p.step + 1)
        result = self.update_step(batches, lr, self.recurrent_state, self.anomaly_detector, prefetch)
        p.step, p.tokens, p.log.learning_rate, p.is_finished = p.step + 1, p.tokens + result.tokens, lr, False
        self.recurrent_state = result.recurrent_state
        self._record(result)
        return {**result.means(), "learning_rate": lr, "tokens": result.tokens}

    def _micro_batches(self, get_batch: BatchFn, step: int, fraction_done: float) -> SeededBatches:
        """(dropout seed, micro-batch) of this rank for a step, on the device; prefetched ones if they are of this step."""
        first, local_indices = (
            (self.progress.anomalies.batch_offset + step) * self.config.gradient_accumulation_steps,
            self.setup.ranks.local_micro_batches(self.config.gradient_accumulation_steps),
        )
        if self._prefetched is None or self._prefetched[0] != first:
            self._prefetched = first, [get_batch(first + i, fraction_done).to(self.setup.device) for i in local_indices]
        return [(dropout_seed(self.seed, step, i), batch) for i, batch in zip(local_indices, self._prefetched[1], strict=True)]

    def _prefetch(self, get_batch: BatchFn, step: int) -> None:
        """Fetches the micro-batches of the next step, if there is one, while the device computes."""
        steps = self.config.steps
        if steps is None or step < steps:
            self._micro_batches(get_batch, step, self._run_fractions()[0] if steps is None else step / steps)

    def _record(self, result: StepResult) -> None:
        """Adds the metrics to those of the next row of metrics.jsonl, or logs why the update was skipped."""
        p = self.progress
        self._recent_losses.append(result.means()["loss"])
        if result.skip_reason:
            p.anomalies.skipped_steps += 1
            self.metrics.log(p.step, skip_reason=result.skip_reason)
            self.display.warn(f"step {p.step}: update skipped: {result.skip_reason}")
            return
        interval = MetricSums(p.log.metric_sums)
        interval.add(result.metrics.drop_nonfinite())
        p.log.metric_sums = interval.sums

    def _run_fractions(self) -> tuple[float, float]:
        """The fraction of the run done, and the fraction one step takes."""
        c, p = self.config, self.progress
        if c.steps is not None:
            return p.step / c.steps, 1 / c.steps
        budget, time = 60 * (c.minutes or 0), p.time
        usable_seconds = max(budget - time.startup_seconds, 1e-9)
        fraction_done = max(time.seconds - time.startup_seconds, 0.0) / usable_seconds
        return min(fraction_done, 1 - 1e-9), time.step_seconds / usable_seconds

    def _seconds_left(self) -> float:
        """Estimated seconds to the end, without evaluations."""
        c, p = self.config, self.progress
        return (
            (c.steps - p.step) * self.clock.step_seconds if c.steps is not None else 60 * (c.minutes or 0) - self.clock.elapsed
        )

    def _is_finished(self) -> bool:
        c, p = self.config, self.progress
        if c.early_stopping_patience and p.evaluation.evals_since_best >= c.early_stopping_patience:
            return True
        if c.steps is not None:
            return p.step >= c.steps
        p.time = TimeProgress(*self.setup.ranks.gather_floats(astuple(self.clock.read()))[0])
        return p.step > 0 and p.time.seconds + p.time.step_seconds > 60 * (c.minutes or 0)

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
        if self.status:
            self.status.update(self._describe_status(speed), is_last=step == c.steps)
        self.display.update(
            self._run_fractions()[0],
            self._progress_text(),
            {**row, "tokens_per_second": speed, "seconds_left": self._seconds_left()},
        )

    def _describe_status(self, tokens_per_second: float) -> dict[str, Any]:
        """Where the run is; `next_batch` is the number of the micro-batch that the next step reads first."""
        p, c = self.progress, self.config
        return {
            "step": p.step, "steps": c.steps, "fraction_done": self._run_fractions()[0], "tokens": p.tokens,
            "tokens_per_second": tokens_per_second, "seconds": self.clock.elapsed, "seconds_left": self._seconds_left(),
            "memory": read_memory(self.setup.device), "device": str(self.setup.device), "learning_rate": p.log.learning_rate,
            "next_batch": (p.anomalies.batch_offset + p.step) * c.gradient_accumulation_steps,
            "batch_tokens": c.batch_tokens, "gradient_accumulation_steps": c.gradient_accumulation_steps,
        }  # fmt: skip

    def _log(self) -> None:
        p, log, means = self.progress, self.progress.log, MetricSums(self.progress.log.metric_sums).means()
        if not means:
            return  # every update since the last row was skipped, and logged by _record
        log.loss, log.metric_sums = means.get("loss", log.loss), {}
        if log.loss is None and (p.step >= MAX_STEPS_WITHOUT_TARGETS or self._is_finished()):
            raise UserError(
                f"the batches of the first {p.step:,} updates have no target, so that there is no loss: the objective selects "
                "nothing in these texts; check its settings, and that the tokenizer knows the texts' words"
            )
        losses = {name: means[name] for name in list_losses(means)}
        state = {"learning_rate": log.learning_rate, "grad_norm": means["grad_norm"], "tokens": p.tokens}
        self.metrics.log(p.step, **{**losses, **state, **means})
        if self.is_main_process:
            for warning in self.check_log(self._run_fractions()[0]):
                self.display.warn(f"warning: {warning}")

    def _evaluate(self) -> None:
        step, latest = self.progress.step, self.progress.evaluation
        latest.metrics, latest.step = {}, step
        for name, batches in self.validation.eval_sets.items():
            means = evaluate(self.setup, self.objective, batches())
            latest.metrics[name] = dict(means)
            self.metrics.log(step, split=name, **means)
            self.display.info(f"step {step}: {name}: {format_metrics(means)}")
        if self.config.early_stopping_patience:
            self._update_best()

    def _update_best(self) -> None:
        """Saves the weights if their score is the best so far, for early stopping."""
        step, best = self.progress.step, self.progress.evaluation
        eval_loss = next(iter(best.metrics.values()), {}).get("loss")
        score_fn = self.validation.score_fn
        score = score_fn() if score_fn else -(eval_loss if eval_loss is not None else float("inf"))
        score = self.setup.ranks.broadcast(score)
        score = -math.inf if math.isnan(score) else score
        if best.best_step >= 0 and not score > (-math.inf if best.best_score is None else best.best_score):  # JSON has no inf
            best.evals_since_best += 1
            return
        best.best_score, best.best_step, best.evals_since_best = score, step, 0
        if self.is_main_process:
            checkpoint.save_best(self.run.state, step, self.model)

    def _load_best(self) -> None:
        """Loads the best weights if they are not those of the last step. Rank 0 alone reads the file, which it will remove."""
        best_step = self.progress.evaluation.best_step
        if best_step >= 0 and best_step != self.progress.step:
            if self.is_main_process:
                checkpoint.load_best(self.run.state, best_step, self.model)
            self.setup.ranks.broadcast_weights(self.model)
            self.display.info(f"loaded the best weights, of step {best_step}")

    def _load_average(self) -> None:
        """Loads the mean of the last `train.average_checkpoints` checkpoints."""
        if self.config.average_checkpoints:
            if self.is_main_process:
                steps = checkpoint.load_average(self.run.state, self.config.average_checkpoints, self.progress.step, self.model)
                self.display.info(f"averaged the weights of steps {', '.join(map(str, steps))}")
            self.setup.ranks.broadcast_weights(self.model)

    def _roll_back(self) -> None:
        """Restores the last checkpoint, skips the batches since then, and halves the learning rate."""
        old = self.progress
        if old.anomalies.rollbacks == MAX_ROLLBACKS:
            self._give_up()
        saved = self.run.load_latest_checkpoint(self.display.warn)
        assert saved, "step 0 was saved"
        self._restore(saved)
        new, anomalies = self.progress, self.progress.anomalies
        anomalies.batch_offset = old.anomalies.batch_offset + old.step - new.step
        anomalies.lr_scale, anomalies.rollbacks = old.anomalies.lr_scale / 2, old.anomalies.rollbacks + 1
        anomalies.skipped_steps, new.tokens, new.time = old.anomalies.skipped_steps, old.tokens, old.time
        self.anomaly_detector.bad_steps = 0
        self.metrics.log(old.step, rollback_to=new.step, lr_scale=anomalies.lr_scale, batch_offset=anomalies.batch_offset)
        self.display.warn(
            f"step {old.step}: {self.config.max_bad_steps} updates in a row were skipped; rolled back to step {new.step}, "
            f"with the following batches and {anomalies.lr_scale:g} times the learning rate"
        )

    def _give_up(self) -> None:
        losses = ", ".join(f"{loss:.4g}" for loss in self._recent_losses)
        raise UserError(
            f"training diverged at step {self.progress.step} after {MAX_ROLLBACKS} rollbacks (last losses: {losses}); "
            f"lower train.learning_rate ({self.config.learning_rate:g}), raise train.warmup_steps "
            f"({self.config.warmup_steps:g}), or check the data"
        )

    def _check_trained(self) -> None:
        """A run whose every update was skipped has its initial weights, which are no result."""
        if self.progress.step and not self.anomaly_detector.grad_norms:
            raise UserError(
                f"each of the {self.progress.step:,} updates was skipped, because the loss or its gradient was not finite: "
                "nothing was trained; check the labels and texts for extreme values, or lower train.learning_rate"
            )

    # -- start, save, finish

    def _start(self) -> None:
        p = self.progress
        self.clock = Clock(p.time)
        self.model.train()
        if self.is_main_process:
            self.run.folder.mkdir(parents=True, exist_ok=True)
        self.metrics.truncate(p.log.metrics_bytes, p.step)
        if self.resumed_at is None:
            self.setup.ranks.broadcast_weights(self.model)
            self._save()  # step 0, for rollbacks; a full disk fails now
        elif p.step:
            prefix = "training is complete:" if p.is_finished and self._is_finished() else "resuming from"
            self.display.info(f"{prefix} {self._progress_text()} ({self.run.state})")

    def _finish(self) -> None:
        p = self.progress
        if p.is_finished:
            return
        self._log()
        if p.evaluation.step != p.step:
            self._evaluate()
        p.is_finished = True
        self._save()

    def _save(self) -> None:
        recurrent_states = self.setup.ranks.all_gather([tensor.cpu() for tensor in self.recurrent_state])
        p, detector, config = self.progress, self.anomaly_detector, self.config
        p.anomalies.grad_norms, p.anomalies.bad_steps = list(detector.grad_norms), detector.bad_steps
        p.grad_scaler, p.time = self.setup.scaler.state_dict(), self.clock.read()
        if self.is_main_process:
            p.log.metrics_bytes = self.metrics.flush()
            tensors = checkpoint.collect_tensors(self.model, self.setup.optimizer, recurrent_states)
            save_total_limit = max(config.save_total_limit, config.average_checkpoints)
            self.run.save_checkpoint(p.step, tensors, progress_to_dict(p), save_total_limit)
            checkpoint.prune_best(self.run.state)
            if p.step:
                self.display.info(f"step {p.step}: checkpoint saved")

    def _restore(self, saved: runs.Checkpoint) -> None:
        self.progress = p = parse_progress(saved.progress, str(saved.folder / runs.PROGRESS_FILE))
        checkpoint.restore_tensors(saved, self.model, self.setup.optimizer)
        ranks = self.setup.ranks
        self.recurrent_state = checkpoint.restore_recurrent_state(saved, ranks.rank, ranks.world_size, self.setup.device)
        if p.grad_scaler and self.setup.scaler.is_enabled():
            self.setup.scaler.load_state_dict(p.grad_scaler)
        self.anomaly_detector = AnomalyDetector(
            self.config.grad_spike_factor, self.config.max_bad_steps, p.anomalies.grad_norms, p.anomalies.bad_steps
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
            "loss": p.log.loss,
            "seconds": p.time.seconds,
            "tokens": p.tokens,
            "tokens_per_second": tokens / self.clock.session_seconds if tokens else None,
            "evaluations": p.evaluation.metrics,
            "best_step": p.evaluation.best_step if p.evaluation.best_step >= 0 else p.step,
            "skipped_steps": p.anomalies.skipped_steps,
            "rollbacks": p.anomalies.rollbacks,
            "resumed_at": self.resumed_at,
        }


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """Dropout seed of a micro-batch: a hash of (seed, step, micro_batch), independent of earlier steps."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{micro_batch}".encode(), digest_size=8).digest(), "big") >> 1
