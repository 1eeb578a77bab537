"""The one loop: pre-training, fine-tuning and distillation differ only in the objective it is given."""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import BadInput, Stopped
from . import checkpoint, distributed, optim, param_groups, precision, progress, schedule, signals
from . import checkpoint as average
from . import checkpoint as best
from . import checkpoint as state
from . import step as trial
from .anomaly import Guard
from .config import Train
from .logging import PART, Display, Metrics, Tally, spoken
from .loss import Batch, Objective
from .progress import Clock, Progress
from .step import Update

ROLLBACKS = 3  # after that, the run is not unlucky but wrong

Batches = Callable[[int, float], Batch]
Held = list[tuple[int, Batch]]  # with the seed of each one's dropout
Trials = Mapping[str, Callable[[], Iterable[Batch]]]
Hook = Callable[[int, dict[str, float]], None]
Score = Callable[[], float]


class Trainer:
    """What happens at step n depends on (seed, n) and the weights alone, so a killed run goes on as if it had not been."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        config: Train,
        folder: Path,
        *,
        seed: int,
        trials: Trials | None = None,
        score: Score | None = None,
        paces: param_groups.Paces = param_groups.alike,
        on_step: Hook = lambda step, report: None,
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
            raise BadInput("train.epochs must be counted in steps first: Train.resolved(batches_per_epoch)")
        if config.stop and not trials and not score:
            raise BadInput("train.stop needs something to be judged on: give a dev file, or hold some text out")
        self.config, self.folder, self.seed, self.on_step = config, folder, seed, on_step
        self.objective, self.trials, self.score = objective, trials or {}, score
        self.prepared = precision.prepare(model, config)
        self.model = self.prepared.model
        self.ranks = distributed.joined(self.prepared.device, config.accumulate)
        self.display = Display(self.ranks.leader, quiet, baseline)
        self.metrics = Metrics(folder, self.ranks.leader, config.tensorboard)
        self.optimizer = config.optimizer.build(optim.groups(self.model, config.decay, paces), config.rate)
        self.update = Update(objective, self.prepared, self.ranks, self.optimizer, config.clip)
        self.progress = Progress(fingerprint=fingerprint)
        self.guard = Guard(config.spike, config.patience)
        self.carry: tuple[Tensor, ...] = ()
        self._ahead: tuple[int, list[Batch]] | None = None  # the number of the first, and the micro-batches
        self.resumed_at: int | None = None
        self.clock = Clock()
        self._warm = schedule.warm_share(config.warmup, config.steps)
        self._recent: deque[float] = deque(maxlen=8)  # losses, to explain a failure with
        self._resume()

    @property
    def leader(self) -> bool:
        """Whether this process, of several, is the one that writes."""
        return self.ranks.leader

    def fit(self, batch: Batches) -> dict[str, Any]:
        """Trains to the end and says how it went; the last checkpoint in `folder/state` is the result.

        `batch(k, done)` is the k-th micro-batch, whoever asks and whenever; `done` in [0, 1) tells how much of the
        run lies behind. Raises Stopped, with everything saved, after Ctrl-C or SIGTERM.
        """
        before = self.progress.tokens
        with signals.watched() as asked, self.display:
            self._begin()
            while not self._over():
                with self.clock.step():
                    row = self._step(batch)
                if self.guard.tired:
                    self._roll_back()
                else:
                    self._record(row)
                self.on_step(self.progress.step, row)
                if self.ranks.any(bool(asked)) and not self._over():
                    self._stop()
            self._finish()
            self._recall()
            self._average()
        return self._summary(self.progress.tokens - before)

    def rate(self) -> float:
        """The learning rate of the next step."""
        c, (done, one) = self.config, self._place()
        return c.rate * self.progress.rate_factor * schedule.factor(c.schedule, done, self._warm, c.cooldown, one)

    # one step

    def _step(self, batch: Batches) -> dict[str, float]:
        p, rate, (done, _) = self.progress, self.rate(), self._place()
        param_groups.wake(self.optimizer, done)
        pending = self.update.gradients(self._batches(batch, p.step, done), self.carry)
        if self.update.decides:
            self.update.attempt(pending, rate, self.guard.limit)
        self._fetch(batch, p.step + 1)
        outcome = self.update.read(pending)
        p.step, p.tokens, p.rate, p.done = p.step + 1, p.tokens + outcome.tokens, rate, False
        means = {"loss": 0.0, **outcome.tally.means()}
        self._recent.append(means["loss"])
        if reason := self._objection(means):
            self.update.skip()  # and the carry stays as it was, too: it may be as bad as the gradient
            self._tell_skip(reason)
        else:
            if not self.update.decides:
                self.update.apply(rate)
            self.carry = outcome.carry
            self._add(outcome.tally)
        return {**means, "rate": rate, "tokens": outcome.tokens}

    def _batches(self, batch: Batches, step: int, done: float) -> Held:
        """The micro-batches of a step, on the device: those fetched while the last step ran, if they are of this one."""
        first, own = (self.progress.jump + step) * self.config.accumulate, self.ranks.own(self.config.accumulate)
        if self._ahead is None or self._ahead[0] != first:
            self._ahead = first, [batch(first + i, done).to(self.prepared.device) for i in own]
        return [(dice(self.seed, step, i), made) for i, made in zip(own, self._ahead[1], strict=True)]

    def _fetch(self, batch: Batches, step: int) -> None:
        """What the next step will want, if there is one."""
        steps = self.config.steps
        if steps is None or step < steps:
            self._batches(batch, step, self._place()[0] if steps is None else step / steps)

    def _objection(self, means: dict[str, float]) -> str | None:
        if self.update.overflowed(means["loss"], means["norm"]):
            return "fp16 overflowed, its scale is halved"
        return self.guard.judge(means["loss"], means["norm"])

    def _tell_skip(self, reason: str) -> None:
        self.progress.skipped += 1
        self.metrics.row(self.progress.step, skipped=reason)
        self.display.warn(f"step {self.progress.step}: skipped, {reason}")

    def _add(self, tally: Tally) -> None:
        interval = Tally(self.progress.interval)
        interval.add(tally.finite())
        self.progress.interval = interval.entries

    def _place(self) -> tuple[float, float]:
        """The share of the run that is done, and the share one step takes."""
        c, p = self.config, self.progress
        if c.steps is not None:
            return p.step / c.steps, 1 / c.steps
        budget = 60 * (c.minutes or 0)
        left = max(budget - p.lost, 1e-9)
        return min(max(p.elapsed - p.lost, 0.0) / left, 1 - 1e-9), p.pace / left

    def _left(self) -> float:
        """Seconds to the end, evaluations not counted."""
        c, p = self.config, self.progress
        return (c.steps - p.step) * self.clock.pace if c.steps is not None else 60 * (c.minutes or 0) - self.clock.elapsed

    def _over(self) -> bool:
        c, p = self.config, self.progress
        if c.stop and p.stale >= c.stop:
            return True
        if c.steps is not None:
            return p.step >= c.steps
        p.elapsed, p.pace, p.lost = self.ranks.first((self.clock.elapsed, self.clock.pace, self.clock.lost))
        return p.step > 0 and p.elapsed + p.pace > 60 * (c.minutes or 0)

    # between steps

    def _record(self, row: dict[str, float]) -> None:
        c, step = self.config, self.progress.step
        if step % c.log_every == 0:
            self._log()
        if c.eval_every and step % c.eval_every == 0:
            self._evaluate()
        if step % c.save_every == 0 and step != c.steps and not self.guard.bad:  # the last is saved by _finish
            self._save()
        speed = row["tokens"] / (self.clock.pace or 1)
        self.display.show(self._place()[0], self._where(), {**row, "speed": speed, "left": self._left()})

    def _log(self) -> None:
        p, means = self.progress, Tally(self.progress.interval).means()
        if not means:
            return  # every update since the last row was skipped, and has a row of its own
        p.loss, p.interval = means.get("loss"), {}
        parts = {name: mean for name, mean in means.items() if name == "loss" or name.startswith(PART)}
        facts = {"rate": p.rate, "norm": means["norm"], "tokens": p.tokens}
        self.metrics.row(p.step, **{**parts, **facts, **means})

    def _evaluate(self) -> None:
        p = self.progress
        p.trials, p.judged_at = {}, p.step
        for name, batches in self.trials.items():
            means = trial.judged(self.objective, batches(), self.prepared)
            p.trials[name] = dict(means)
            self.metrics.row(p.step, trial=name, **means)
            self.display.say(f"step {p.step}: {name}: {spoken(means)}")
        if self.config.stop:
            self._compare()

    def _compare(self) -> None:
        """Keeps the weights if they are the best so far."""
        p = self.progress
        first = next(iter(p.trials.values()), {}).get("loss")
        found = self.score() if self.score else -(first if first is not None else float("inf"))
        found = self.ranks.first(found)
        found = -math.inf if math.isnan(found) else found
        if p.best_step >= 0 and not found > (-math.inf if p.best is None else p.best):  # JSON holds no infinity
            p.stale += 1
            return
        p.best, p.best_step, p.stale = found, p.step, 0
        if self.leader:
            best.save_best(self.folder / "state", p.step, self.model)

    def _recall(self) -> None:
        """The best weights, where they are not the last."""
        p = self.progress
        if p.best_step >= 0 and p.best_step != p.step:
            best.load_best(self.folder / "state", p.best_step, self.model)
            self.display.say(f"the best weights are those of step {p.best_step}")

    def _average(self) -> None:
        """The mean of the last checkpoints, in place of the last weights alone."""
        if self.config.average:
            self.ranks.first(None)  # nobody reads while the last is still being written
            steps = average.load_average(self.folder / "state", self.config.average, self.progress.step, self.model)
            self.display.say(f"the weights are the mean of those of steps {', '.join(map(str, steps))}")

    def _roll_back(self) -> None:
        """Back to the last checkpoint, past the batches that led here, at half the rate."""
        old = self.progress
        if old.rollbacks == ROLLBACKS:
            self._give_up()
        saved = state.newest(self.folder / "state", self.display.warn)
        assert saved, "a run begins with a checkpoint"
        self._restore(saved)
        new = self.progress
        new.jump = old.jump + old.step - new.step
        new.rate_factor, new.rollbacks = old.rate_factor / 2, old.rollbacks + 1
        new.skipped, new.tokens = old.skipped, old.tokens
        new.elapsed, new.pace, new.lost = old.elapsed, old.pace, old.lost
        self.guard.bad = 0
        self.metrics.row(old.step, rollback=new.step, rate_factor=new.rate_factor, jump=new.jump)
        self.display.warn(
            f"step {old.step}: {self.config.patience} bad updates in a row; back to step {new.step}, "
            f"past the batches between, at {new.rate_factor:g} of the rate"
        )

    def _give_up(self) -> None:
        losses = ", ".join(f"{loss:.4g}" for loss in self._recent)
        raise BadInput(
            f"training failed at step {self.progress.step} after {ROLLBACKS} rollbacks: the last losses were {losses}; lower "
            f"train.rate ({self.config.rate:g}), raise train.warmup ({self.config.warmup:g}), or look at the data there"
        )

    def _stop(self) -> None:
        self._save()
        raise Stopped(f"stopped at step {self.progress.step}, which is saved; run the same command again to go on")

    # begin, save, end

    def _resume(self) -> None:
        given = self.progress
        if saved := state.newest(self.folder / "state", self.display.warn):
            theirs = saved.facts.get("fingerprint")
            if theirs != given.fingerprint:
                raise BadInput(
                    f"{self.folder} was started by another recipe ({theirs or '-'}, not {given.fingerprint or '-'}); "
                    f"choose another out, or remove {self.folder / 'state'} to begin anew"
                )
            self._restore(saved)
            self.resumed_at = self.progress.step
        self.ranks.first(None)  # nobody writes while others still read

    def _begin(self) -> None:
        p = self.progress
        self.clock = Clock(p.elapsed, p.pace, p.lost)
        self.model.train()
        if self.leader:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.metrics.cut(p.metrics_bytes, p.step)
        if self.resumed_at is None:
            self.ranks.align(self.model)
            self._save()  # something to go back to, and a full disk is met now
        elif p.step:
            words = "nothing left to train:" if p.done and self._over() else "going on from"
            self.display.say(f"{words} {self._where()}, saved in {self.folder / 'state'}")

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
        carries = self.ranks.gathered([tensor.cpu() for tensor in self.carry])
        p = self.progress
        p.norms, p.bad, p.scaler = list(self.guard.norms), self.guard.bad, self.prepared.scaler.state_dict()
        p.elapsed, p.pace, p.lost = self.clock.elapsed, self.clock.pace, self.clock.lost
        if self.leader:
            p.metrics_bytes = self.metrics.settled()
            tensors = checkpoint.collect_tensors(self.model, self.optimizer, carries)
            state.save(self.folder / "state" / f"step-{p.step}", tensors, progress.plain(p))
            state.prune(self.folder / "state", max(self.config.keep, self.config.average), p.step)
            best.prune_best(self.folder / "state")
            if p.step:
                self.display.say(f"step {p.step}: saved")

    def _restore(self, saved: state.Saved) -> None:
        self.progress = p = progress.read(saved.facts, str(saved.folder / state.PROGRESS))
        checkpoint.restore_tensors(saved, self.model, self.optimizer)
        self.carry = checkpoint.carried(saved, self.ranks.rank, self.ranks.count, self.prepared.device)
        if p.scaler and self.prepared.scaler.is_enabled():
            self.prepared.scaler.load_state_dict(p.scaler)
        self.guard = Guard(self.config.spike, self.config.patience, p.norms, p.bad)

    def _where(self) -> str:
        c, p = self.config, self.progress
        return f"step {p.step}/{c.steps}" if c.steps else f"step {p.step}, {self.clock.elapsed / 60:.1f}/{c.minutes:g} min"

    def _summary(self, tokens: int) -> dict[str, Any]:
        p = self.progress
        return {
            "step": p.step,
            "loss": p.loss,
            "seconds": p.elapsed,
            "tokens": p.tokens,
            "tokens_per_second": tokens / self.clock.sitting if tokens else None,
            "trials": p.trials,
            "best_step": p.best_step if p.best_step >= 0 else p.step,
            "skipped": p.skipped,
            "rollbacks": p.rollbacks,
            "resumed_at": self.resumed_at,
        }


def dice(seed: int, step: int, i: int) -> int:
    """The seed of dropout in a micro-batch: a function of where it stands, not of what came before."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}/{i}".encode(), digest_size=8).digest(), "big") >> 1
