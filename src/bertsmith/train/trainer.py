"""The one loop: pre-training, fine-tuning and distillation differ only in the objective it is given."""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import Interrupted, UserError
from . import checkpoint, distributed, optim, param_groups, precision, progress, schedule, signals
from . import checkpoint as average
from . import checkpoint as best
from . import checkpoint as state
from . import step as trial
from .anomaly import AnomalyDetector
from .config import TrainConfig
from .logging import LOSS_PREFIX, MetricsLogger, MetricSums, ProgressDisplay, format_metrics
from .loss import BatchLike, Objective
from .progress import Clock, TrainProgress
from .step import UpdateStep

MAX_ROLLBACKS = 3  # after that, the run is not unlucky but wrong

BatchFn = Callable[[int, float], BatchLike]
SeededBatches = list[tuple[int, BatchLike]]  # with the seed of each one's dropout
EvalSets = Mapping[str, Callable[[], Iterable[BatchLike]]]
StepCallback = Callable[[int, dict[str, float]], None]
ScoreFn = Callable[[], float]


class Trainer:
    """What happens at step n depends on (seed, n) and the weights alone, so a killed run goes on as if it had not been."""

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
        """Takes up what `folder/state` holds, if it is of the same `fingerprint`.

        `trials` are evaluated; `score` is what the best weights have most of (if none, the least loss of the first
        trial); `paces` says by name which weights learn slower or later than others; `baseline` names
        a part of the loss and what knowing only frequencies would cost there.
        """
        config.check()
        if config.epochs is not None:
            raise UserError("train.epochs must be counted in steps first: Train.resolved(batches_per_epoch)")
        if config.stop and not eval_sets and not score_fn:
            raise UserError("train.stop needs something to be judged on: give a dev file, or hold some text out")
        self.config, self.folder, self.seed, self.on_step = config, folder, seed, on_step
        self.objective, self.eval_sets, self.score_fn = objective, eval_sets or {}, score_fn
        self.prepared = precision.prepare_model(model, config)
        self.model = self.prepared.model
        self.dist_state = distributed.init_distributed(self.prepared.device, config.accumulate)
        self.display = ProgressDisplay(self.dist_state.is_main_process, quiet, baseline)
        self.metrics = MetricsLogger(folder, self.dist_state.is_main_process, config.tensorboard)
        self.optimizer = config.optimizer.build(optim.build_param_groups(self.model, config.decay, param_schedule), config.rate)
        self.update_step = UpdateStep(objective, self.prepared, self.dist_state, self.optimizer, config.clip)
        self.progress = TrainProgress(fingerprint=fingerprint)
        self.anomaly_detector = AnomalyDetector(config.spike, config.patience)
        self.recurrent_state: tuple[Tensor, ...] = ()
        self._prefetched: tuple[int, list[BatchLike]] | None = None  # the number of the first, and the micro-batches
        self.resumed_at: int | None = None
        self.clock = Clock()
        self._warmup_fraction = schedule.resolve_warmup(config.warmup, config.steps)
        self._recent_losses: deque[float] = deque(maxlen=8)  # losses, to explain a failure with
        self._resume()

    @property
    def is_main_process(self) -> bool:
        """Whether this process, of several, is the one that writes."""
        return self.dist_state.is_main_process

    def fit(self, get_batch: BatchFn) -> dict[str, Any]:
        """Trains to the end and says how it went; the last checkpoint in `folder/state` is the result.

        `batch(k, done)` is the k-th micro-batch, whoever asks and whenever; `done` in [0, 1) tells how much of the
        run lies behind. Raises Stopped, with everything saved, after Ctrl-C or SIGTERM.
        """
        before = self.progress.tokens
        with signals.catch_stop_signals() as asked, self.display:
            self._start()
            while not self._is_finished():
                with self.clock.time_step():
                    row = self._step(get_batch)
                if self.anomaly_detector.should_roll_back:
                    self._roll_back()
                else:
                    self._after_step(row)
                self.on_step(self.progress.step, row)
                if self.dist_state.any_rank(bool(asked)) and not self._is_finished():
                    self._save_and_stop()
            self._finish()
            self._load_best()
            self._load_average()
        return self._summary(self.progress.tokens - before)

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        c, (done, one) = self.config, self._run_fractions()
        return c.rate * self.progress.rate_factor * schedule.lr_factor(c.schedule, done, self._warmup_fraction, c.cooldown, one)

    # one step

    def _step(self, get_batch: BatchFn) -> dict[str, float]:
        p, rate, (done, _) = self.progress, self.learning_rate(), self._run_fractions()
        param_groups.unfreeze(self.optimizer, done)
        pending = self.update_step.compute_grads(self._micro_batches(get_batch, p.step, done), self.recurrent_state)
        if self.update_step.optimizer_can_skip:
            self.update_step.apply_unless_anomalous(pending, rate, self.anomaly_detector.spike_threshold)
        self._prefetch(get_batch, p.step + 1)
        outcome = self.update_step.fetch_result(pending)
        p.step, p.tokens, p.rate, p.done = p.step + 1, p.tokens + outcome.tokens, rate, False
        means = {"loss": 0.0, **outcome.metrics.means()}
        self._recent_losses.append(means["loss"])
        if reason := self._skip_reason(means):
            self.update_step.skip()  # and the carry stays as it was, too: it may be as bad as the gradient
            self._record_skip(reason)
        else:
            if not self.update_step.optimizer_can_skip:
                self.update_step.apply(rate)
            self.recurrent_state = outcome.recurrent_state
            self._add_to_interval(outcome.metrics)
        return {**means, "rate": rate, "tokens": outcome.tokens}

    def _micro_batches(self, get_batch: BatchFn, step: int, fraction_done: float) -> SeededBatches:
        """The micro-batches of a step, on the device: those fetched while the last step ran, if they are of this one."""
        first, own = (
            (self.progress.jump + step) * self.config.accumulate,
            self.dist_state.local_micro_batches(self.config.accumulate),
        )
        if self._prefetched is None or self._prefetched[0] != first:
            self._prefetched = first, [get_batch(first + i, fraction_done).to(self.prepared.device) for i in own]
        return [(dropout_seed(self.seed, step, i), made) for i, made in zip(own, self._prefetched[1], strict=True)]

    def _prefetch(self, get_batch: BatchFn, step: int) -> None:
        """What the next step will want, if there is one."""
        steps = self.config.steps
        if steps is None or step < steps:
            self._micro_batches(get_batch, step, self._run_fractions()[0] if steps is None else step / steps)

    def _skip_reason(self, means: dict[str, float]) -> str | None:
        if self.update_step.has_overflowed(means["loss"], means["norm"]):
            return "fp16 overflowed, its scale is halved"
        return self.anomaly_detector.check(means["loss"], means["norm"])

    def _record_skip(self, reason: str) -> None:
        self.progress.skipped += 1
        self.metrics.log(self.progress.step, skipped=reason)
        self.display.warn(f"step {self.progress.step}: skipped, {reason}")

    def _add_to_interval(self, metrics: MetricSums) -> None:
        interval = MetricSums(self.progress.interval)
        interval.add(metrics.drop_nonfinite())
        self.progress.interval = interval.sums

    def _run_fractions(self) -> tuple[float, float]:
        """The share of the run that is done, and the share one step takes."""
        c, p = self.config, self.progress
        if c.steps is not None:
            return p.step / c.steps, 1 / c.steps
        budget = 60 * (c.minutes or 0)
        left = max(budget - p.lost, 1e-9)
        return min(max(p.elapsed - p.lost, 0.0) / left, 1 - 1e-9), p.pace / left

    def _seconds_left(self) -> float:
        """Seconds to the end, evaluations not counted."""
        c, p = self.config, self.progress
        return (
            (c.steps - p.step) * self.clock.step_seconds if c.steps is not None else 60 * (c.minutes or 0) - self.clock.elapsed
        )

    def _is_finished(self) -> bool:
        c, p = self.config, self.progress
        if c.stop and p.stale >= c.stop:
            return True
        if c.steps is not None:
            return p.step >= c.steps
        p.elapsed, p.pace, p.lost = self.dist_state.broadcast(
            (self.clock.elapsed, self.clock.step_seconds, self.clock.startup_seconds)
        )
        return p.step > 0 and p.elapsed + p.pace > 60 * (c.minutes or 0)

    # between steps

    def _after_step(self, row: dict[str, float]) -> None:
        c, step = self.config, self.progress.step
        if step % c.log_every == 0:
            self._log()
        if c.eval_every and step % c.eval_every == 0:
            self._evaluate()
        if step % c.save_every == 0 and step != c.steps and not self.anomaly_detector.bad_steps:  # the last is saved by _finish
            self._save()
        speed = row["tokens"] / (self.clock.step_seconds or 1)
        self.display.update(
            self._run_fractions()[0], self._progress_text(), {**row, "speed": speed, "left": self._seconds_left()}
        )

    def _log(self) -> None:
        p, means = self.progress, MetricSums(self.progress.interval).means()
        if not means:
            return  # every update since the last row was skipped, and has a row of its own
        p.loss, p.interval = means.get("loss"), {}
        parts = {name: mean for name, mean in means.items() if name == "loss" or name.startswith(LOSS_PREFIX)}
        facts = {"rate": p.rate, "norm": means["norm"], "tokens": p.tokens}
        self.metrics.log(p.step, **{**parts, **facts, **means})

    def _evaluate(self) -> None:
        p = self.progress
        p.trials, p.judged_at = {}, p.step
        for name, batches in self.eval_sets.items():
            means = trial.evaluate(self.objective, batches(), self.prepared)
            p.trials[name] = dict(means)
            self.metrics.log(p.step, trial=name, **means)
            self.display.info(f"step {p.step}: {name}: {format_metrics(means)}")
        if self.config.stop:
            self._update_best()

    def _update_best(self) -> None:
        """Keeps the weights if they are the best so far."""
        p = self.progress
        first = next(iter(p.trials.values()), {}).get("loss")
        found = self.score_fn() if self.score_fn else -(first if first is not None else float("inf"))
        found = self.dist_state.broadcast(found)
        found = -math.inf if math.isnan(found) else found
        if p.best_step >= 0 and not found > (-math.inf if p.best is None else p.best):  # JSON holds no infinity
            p.stale += 1
            return
        p.best, p.best_step, p.stale = found, p.step, 0
        if self.is_main_process:
            best.save_best(self.folder / "state", p.step, self.model)

    def _load_best(self) -> None:
        """The best weights, where they are not the last."""
        p = self.progress
        if p.best_step >= 0 and p.best_step != p.step:
            best.load_best(self.folder / "state", p.best_step, self.model)
            self.display.info(f"the best weights are those of step {p.best_step}")

    def _load_average(self) -> None:
        """The mean of the last checkpoints, in place of the last weights alone."""
        if self.config.average:
            self.dist_state.broadcast(None)  # nobody reads while the last is still being written
            steps = average.load_average(self.folder / "state", self.config.average, self.progress.step, self.model)
            self.display.info(f"the weights are the mean of those of steps {', '.join(map(str, steps))}")

    def _roll_back(self) -> None:
        """Back to the last checkpoint, past the batches that led here, at half the rate."""
        old = self.progress
        if old.rollbacks == MAX_ROLLBACKS:
            self._give_up()
        saved = state.load_latest_checkpoint(self.folder / "state", self.display.warn)
        assert saved, "a run begins with a checkpoint"
        self._restore(saved)
        new = self.progress
        new.jump = old.jump + old.step - new.step
        new.rate_factor, new.rollbacks = old.rate_factor / 2, old.rollbacks + 1
        new.skipped, new.tokens = old.skipped, old.tokens
        new.elapsed, new.pace, new.lost = old.elapsed, old.pace, old.lost
        self.anomaly_detector.bad_steps = 0
        self.metrics.log(old.step, rollback=new.step, rate_factor=new.rate_factor, jump=new.jump)
        self.display.warn(
            f"step {old.step}: {self.config.patience} bad updates in a row; back to step {new.step}, "
            f"past the batches between, at {new.rate_factor:g} of the rate"
        )

    def _give_up(self) -> None:
        losses = ", ".join(f"{loss:.4g}" for loss in self._recent_losses)
        raise UserError(
            f"training failed at step {self.progress.step} after {MAX_ROLLBACKS} rollbacks: the last losses were {losses}; lower "
            f"train.rate ({self.config.rate:g}), raise train.warmup ({self.config.warmup:g}), or look at the data there"
        )

    def _save_and_stop(self) -> None:
        self._save()
        raise Interrupted(f"stopped at step {self.progress.step}, which is saved; run the same command again to go on")

    # begin, save, end

    def _resume(self) -> None:
        given = self.progress
        if saved := state.load_latest_checkpoint(self.folder / "state", self.display.warn):
            theirs = saved.metadata.get("fingerprint")
            if theirs != given.fingerprint:
                raise UserError(
                    f"{self.folder} was started by another recipe ({theirs or '-'}, not {given.fingerprint or '-'}); "
                    f"choose another out, or remove {self.folder / 'state'} to begin anew"
                )
            self._restore(saved)
            self.resumed_at = self.progress.step
        self.dist_state.broadcast(None)  # nobody writes while others still read

    def _start(self) -> None:
        p = self.progress
        self.clock = Clock(p.elapsed, p.pace, p.lost)
        self.model.train()
        if self.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics.truncate(p.metrics_bytes, p.step)
        if self.resumed_at is None:
            self.dist_state.broadcast_weights(self.model)
            self._save()  # something to go back to, and a full disk is met now
        elif p.step:
            words = "nothing left to train:" if p.done and self._is_finished() else "going on from"
            self.display.info(f"{words} {self._progress_text()}, saved in {self.folder / 'state'}")

    def _finish(self) -> None:
        p = self.progress
        if p.done:
            return
        self._log()
        if p.judged_at != p.step:
            self._evaluate()
        p.done = True
        self._save()

    def _save(self) -> None:
        carries = self.dist_state.all_gather([tensor.cpu() for tensor in self.recurrent_state])
        p = self.progress
        p.norms, p.bad, p.scaler = (
            list(self.anomaly_detector.grad_norms),
            self.anomaly_detector.bad_steps,
            self.prepared.scaler.state_dict(),
        )
        p.elapsed, p.pace, p.lost = self.clock.elapsed, self.clock.step_seconds, self.clock.startup_seconds
        if self.is_main_process:
            p.metrics_bytes = self.metrics.flush()
            tensors = checkpoint.collect_tensors(self.model, self.optimizer, carries)
            state.save_checkpoint(self.folder / "state" / f"step-{p.step}", tensors, progress.progress_to_dict(p))
            state.prune_checkpoints(self.folder / "state", max(self.config.keep, self.config.average), p.step)
            best.prune_best(self.folder / "state")
            if p.step:
                self.display.info(f"step {p.step}: saved")

    def _restore(self, saved_checkpoint: state.Checkpoint) -> None:
        self.progress = p = progress.parse_progress(
            saved_checkpoint.metadata, str(saved_checkpoint.folder / state.PROGRESS_FILE)
        )
        checkpoint.restore_tensors(saved_checkpoint, self.model, self.optimizer)
        self.recurrent_state = checkpoint.restore_recurrent_state(
            saved_checkpoint, self.dist_state.rank, self.dist_state.world_size, self.prepared.device
        )
        if p.scaler and self.prepared.scaler.is_enabled():
            self.prepared.scaler.load_state_dict(p.scaler)
        self.anomaly_detector = AnomalyDetector(self.config.spike, self.config.patience, p.norms, p.bad)

    def _progress_text(self) -> str:
        c, p = self.config, self.progress
        return f"step {p.step}/{c.steps}" if c.steps else f"step {p.step}, {self.clock.elapsed / 60:.1f}/{c.minutes:g} min"

    def _summary(self, tokens: int) -> dict[str, Any]:
        p = self.progress
        return {
            "step": p.step,
            "loss": p.loss,
            "seconds": p.elapsed,
            "tokens": p.tokens,
            "tokens_per_second": tokens / self.clock.session_seconds if tokens else None,
            "trials": p.trials,
            "best_step": p.best_step if p.best_step >= 0 else p.step,
            "skipped": p.skipped,
            "rollbacks": p.rollbacks,
            "resumed_at": self.resumed_at,
        }


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """The seed of dropout in a micro-batch: a function of where it stands, not of what came before."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{micro_batch}".encode(), digest_size=8).digest(), "big") >> 1
