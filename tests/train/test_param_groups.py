"""Learning rate scale and gradual unfreezing by parameter, and early stopping."""

import msgspec
import pytest
import torch

from bertsmith import tensors
from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from bertsmith.train.param_groups import ParamSchedule
from bertsmith.train.schedule import lr_factor
from tests.support import toy_objective as toy


def head_first_schedule(name):
    return ParamSchedule(1.0, 0.0) if name.startswith(("words", "next")) else ParamSchedule(0.1, 0.5)


def load_weights(folder, step):
    return tensors.load_tensors(folder / f"state/step-{step}/model.safetensors")


def test_gradual_unfreezing_freezes_until_unfreeze_at(tmp_path):
    config = msgspec.structs.replace(toy.CONFIG, save_every=1, save_total_limit=20)
    toy.build_trainer(tmp_path, config, param_schedule=head_first_schedule).fit(toy.Data())
    first, half, last = (load_weights(tmp_path, step) for step in (0, 6, 12))
    assert torch.equal(first["inner.weight"], half["inner.weight"])
    assert not torch.equal(half["inner.weight"], last["inner.weight"])
    assert not torch.equal(first["words.weight"], half["words.weight"])


def test_lr_scale_scales_update(tmp_path):
    config = TrainConfig(steps=1, learning_rate=1e-2, warmup_steps=0, weight_decay=0, device="cpu")
    change = {}
    for lr_scale in (1.0, 0.1):
        trainer = toy.build_trainer(
            tmp_path / str(lr_scale),
            config,
            toy.Model(),
            param_schedule=lambda name, lr_scale=lr_scale: ParamSchedule(lr_scale),
        )
        before = trainer.model.inner.weight.detach().clone()
        trainer.fit(toy.Data())
        change[lr_scale] = (trainer.model.inner.weight - before).abs().max().item()
    assert change[0.1] == pytest.approx(change[1.0] / 10, rel=1e-3)  # the size of Adam's first step is the learning rate


def test_param_schedule_run_resumes_exactly(tmp_path):
    def run(folder, **more):
        return toy.build_trainer(folder, param_schedule=head_first_schedule, **more).fit(toy.Data())

    run(tmp_path / "whole")
    for step in (4, 9):  # before and after unfreezing
        with pytest.raises(toy.SimulatedCrash):
            run(tmp_path / f"{step}", on_step=toy.crash_at(step))
        run(tmp_path / f"{step}")
        for name in ("model", "optimizer"):
            contents = [
                (folder / f"state/step-12/{name}.safetensors").read_bytes()
                for folder in (tmp_path / "whole", tmp_path / f"{step}")
            ]
            assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("fraction_done", "expected"), [(0.0, 1 / 32), (0.05, 0.515625), (0.1, 1.0), (0.55, 0.515625), (1.0, 1 / 32)]
)
def test_slanted_triangular_schedule(fraction_done, expected):
    assert lr_factor("slanted_triangular", fraction_done, warmup_fraction=0.1) == pytest.approx(expected)


EARLY_STOPPING = msgspec.structs.replace(toy.CONFIG, eval_every=2, early_stopping_patience=2)


def scores(*values):
    """A score_fn that returns these values in order."""
    remaining = iter(values)
    return lambda: next(remaining)


def test_early_stopping_restores_best_weights(tmp_path):
    config = msgspec.structs.replace(EARLY_STOPPING, save_every=2, save_total_limit=20)
    trainer = toy.build_trainer(tmp_path, config, score_fn=scores(0.1, 0.5, 0.4, 0.5, 0.9, 0.9))
    summary = trainer.fit(toy.Data())
    assert (summary["step"], summary["best_step"]) == (8, 4)
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in load_weights(tmp_path, 4).items())
    files = {path.name for path in (tmp_path / "state").glob("best-*")}
    assert files == {"best-2.safetensors", "best-4.safetensors"}  # those that a remaining checkpoint refers to


def test_early_stopping_by_loss_resumes_exactly(tmp_path):
    def run(folder, **more):
        trainer = toy.build_trainer(folder, EARLY_STOPPING, **more)
        return trainer.fit(toy.Data()), trainer.model.state_dict()

    expected_summary, expected_weights = run(tmp_path / "whole")
    with pytest.raises(toy.SimulatedCrash):
        run(tmp_path / "killed", on_step=toy.crash_at(7))
    summary, weights = run(tmp_path / "killed")
    assert (summary["step"], summary["best_step"]) == (expected_summary["step"], expected_summary["best_step"])
    assert all(torch.equal(value, weights[name]) for name, value in expected_weights.items())


def test_early_stopping_of_finished_run_loads_best_weights(tmp_path):
    first = toy.build_trainer(tmp_path, EARLY_STOPPING, score_fn=scores(0.5, 0.4, 0.3))
    first.fit(toy.Data())
    resumed = toy.build_trainer(tmp_path, EARLY_STOPPING, score_fn=scores())
    assert resumed.fit(toy.Data())["best_step"] == 2
    assert all(torch.equal(value, first.model.state_dict()[name]) for name, value in resumed.model.state_dict().items())


def test_early_stopping_needs_eval_set_or_score(tmp_path):
    with pytest.raises(UserError, match="needs evaluation data"):
        toy.build_trainer(tmp_path, EARLY_STOPPING, eval_sets={})


def test_early_stopping_evaluates_each_epoch_by_default():
    assert TrainConfig(epochs=3, early_stopping_patience=1).resolve_epochs(10).eval_every == 10
    assert TrainConfig(epochs=3, early_stopping_patience=1, eval_every=4).resolve_epochs(10).eval_every == 4


def test_early_stopping_ignores_nan_scores(tmp_path):
    config = msgspec.structs.replace(EARLY_STOPPING, save_every=2, save_total_limit=20, early_stopping_patience=4)
    summary = toy.build_trainer(tmp_path, config, score_fn=scores(float("nan"), 0.5, 0.6, 0.4, 0.3, 0.2)).fit(toy.Data())
    assert summary["best_step"] == 6
