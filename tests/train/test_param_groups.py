"""Weights that learn slower or later than others, and runs that end when nothing gets better."""

import msgspec
import pytest
import torch

from bertsmith import tensors
from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from bertsmith.train.param_groups import ParamSchedule
from bertsmith.train.schedule import lr_factor

from . import toy_objective as toy


def of_the_head(name):
    return ParamSchedule(1.0, 0.0) if name.startswith(("words", "next")) else ParamSchedule(0.1, 0.5)


def weights(folder, step):
    return tensors.load_tensors(folder / f"state/step-{step}/model.safetensors")


def test_what_sleeps_does_not_move_until_its_time(tmp_path):
    config = msgspec.structs.replace(toy.RECIPE, save_every=1, keep=20)
    toy.trainer(tmp_path, config, paces=of_the_head).fit(toy.Data())
    first, half, last = (weights(tmp_path, step) for step in (0, 6, 12))
    assert torch.equal(first["inner.weight"], half["inner.weight"])
    assert not torch.equal(half["inner.weight"], last["inner.weight"])
    assert not torch.equal(first["words.weight"], half["words.weight"])


def test_a_slower_weight_takes_smaller_steps(tmp_path):
    config = TrainConfig(steps=1, rate=1e-2, warmup=0, decay=0, device="cpu")
    moved = {}
    for pace in (1.0, 0.1):
        run = toy.trainer(tmp_path / str(pace), config, toy.Model(), paces=lambda name, pace=pace: ParamSchedule(pace))
        before = run.model.inner.weight.detach().clone()
        run.fit(toy.Data())
        moved[pace] = (run.model.inner.weight - before).abs().max().item()
    assert moved[0.1] == pytest.approx(moved[1.0] / 10, rel=1e-3)  # Adam's first step is as long as the rate


def test_a_killed_run_with_paces_goes_on_as_if_it_had_not_been(tmp_path):
    def run(folder, **more):
        return toy.trainer(folder, paces=of_the_head, **more).fit(toy.Data())

    run(tmp_path / "whole")
    for at in (4, 9):  # before anything woke, and after
        with pytest.raises(toy.Died):
            run(tmp_path / f"{at}", on_step=toy.fail_at(at))
        run(tmp_path / f"{at}")
        for name in ("model", "optimizer"):
            same = [
                (folder / f"state/step-12/{name}.safetensors").read_bytes()
                for folder in (tmp_path / "whole", tmp_path / f"{at}")
            ]
            assert same[0] == same[1]


@pytest.mark.parametrize(("done", "share"), [(0.0, 1 / 32), (0.05, 0.515625), (0.1, 1.0), (0.55, 0.515625), (1.0, 1 / 32)])
def test_a_slanted_triangle_rises_quickly_and_falls_slowly(done, share):
    assert lr_factor("slanted", done, warmup_fraction=0.1) == pytest.approx(share)


STOPPING = msgspec.structs.replace(toy.RECIPE, eval_every=2, stop=2)


def scored(*values):
    """A score for every evaluation, in order."""
    left = iter(values)
    return lambda: next(left)


def test_a_run_ends_when_nothing_gets_better_and_the_best_weights_stay(tmp_path):
    config = msgspec.structs.replace(STOPPING, save_every=2, keep=20)
    run = toy.trainer(tmp_path, config, score=scored(0.1, 0.5, 0.4, 0.5, 0.9, 0.9))
    summary = run.fit(toy.Data())
    assert (summary["step"], summary["best_step"]) == (8, 4)
    assert all(torch.equal(value, run.model.state_dict()[name]) for name, value in weights(tmp_path, 4).items())
    kept = {path.name for path in (tmp_path / "state").glob("best-*")}
    assert kept == {"best-2.safetensors", "best-4.safetensors"}  # those that a kept checkpoint speaks of


def test_stopping_by_loss_and_being_killed_on_the_way_end_the_same(tmp_path):
    def run(folder, **more):
        made = toy.trainer(folder, STOPPING, **more)
        return made.fit(toy.Data()), made.model.state_dict()

    whole, best = run(tmp_path / "whole")
    with pytest.raises(toy.Died):
        run(tmp_path / "killed", on_step=toy.fail_at(7))
    again, same = run(tmp_path / "killed")
    assert (again["step"], again["best_step"]) == (whole["step"], whole["best_step"])
    assert all(torch.equal(value, same[name]) for name, value in best.items())


def test_a_finished_run_recalls_its_best_weights_when_asked_again(tmp_path):
    first = toy.trainer(tmp_path, STOPPING, score=scored(0.5, 0.4, 0.3))
    first.fit(toy.Data())
    again = toy.trainer(tmp_path, STOPPING, score=scored())
    assert again.fit(toy.Data())["best_step"] == 2
    assert all(torch.equal(value, first.model.state_dict()[name]) for name, value in again.model.state_dict().items())


def test_stopping_without_anything_to_judge_by_is_refused(tmp_path):
    with pytest.raises(UserError, match="judged on"):
        toy.trainer(tmp_path, STOPPING, trials=None)


def test_a_run_that_may_stop_is_judged_each_epoch():
    assert TrainConfig(epochs=3, stop=1).resolve_epochs(10).eval_every == 10
    assert TrainConfig(epochs=3, stop=1, eval_every=4).resolve_epochs(10).eval_every == 4


def test_a_score_that_is_no_number_is_never_the_best(tmp_path):
    config = msgspec.structs.replace(STOPPING, save_every=2, keep=20, stop=4)
    summary = toy.trainer(tmp_path, config, score=scored(float("nan"), 0.5, 0.6, 0.4, 0.3, 0.2)).fit(toy.Data())
    assert summary["best_step"] == 6
