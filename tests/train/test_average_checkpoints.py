"""Averaging of the last checkpoints is exact and reproducible."""

import msgspec
import pytest
import torch

from bertsmith import tensors
from bertsmith.errors import UserError
from bertsmith.recipes import read_recipe
from bertsmith.train import TrainConfig
from bertsmith.train.checkpoint import load_average
from tests.support import toy_objective as toy

CONFIG = msgspec.structs.replace(toy.CONFIG, save_every=2, save_total_limit=1, average_checkpoints=3)


def copy_weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_average_checkpoints_is_mean_of_last_checkpoints(tmp_path):
    trainer = toy.build_trainer(tmp_path, CONFIG)
    trainer.fit(toy.Data())
    saved = [tensors.load_tensors(tmp_path / "state" / f"step-{step}" / "model.safetensors") for step in (8, 10, 12)]
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["step-10", "step-12", "step-8"]
    for name, value in copy_weights(trainer.model).items():
        expected = torch.stack([checkpoint[name].double() for checkpoint in saved]).mean(0).float()
        assert torch.equal(value.cpu(), expected), name
    assert not torch.equal(copy_weights(trainer.model)["inner.weight"].cpu(), saved[-1]["inner.weight"])


def test_average_checkpoints_of_finished_run_is_reproducible(tmp_path):
    first = toy.build_trainer(tmp_path, CONFIG)
    first.fit(toy.Data())
    again = toy.build_trainer(tmp_path, CONFIG)
    again.fit(toy.Data())
    assert all(torch.equal(value, copy_weights(again.model)[name]) for name, value in copy_weights(first.model).items())


def test_load_average_excludes_step_0_and_later_steps(tmp_path):
    model = torch.nn.Linear(2, 1)
    for step, value in ((0, 100.0), (3, 1.0), (6, 2.0), (9, 6.0), (12, 500.0)):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        filled = {name: torch.full_like(weight, value) for name, weight in model.state_dict().items()}
        tensors.save_tensors(filled, folder / "model.safetensors")
    assert load_average(tmp_path, 5, 9, model) == [3, 6, 9]
    assert model.weight.tolist() == [[3.0, 3.0]]
    assert load_average(tmp_path, 2, 9, model) == [6, 9] and model.bias.item() == 4.0


def test_average_checkpoints_excludes_early_stopping():
    with pytest.raises(UserError, match=r"train.early_stopping_patience .* train.average_checkpoints"):
        read_recipe(TrainConfig, overrides=["steps=10", "average_checkpoints=3", "early_stopping_patience=2"]).check()
