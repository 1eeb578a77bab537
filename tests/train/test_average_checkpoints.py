"""The mean of the last checkpoints is exact, is what a run leaves, and survives a kill."""

import msgspec
import pytest
import torch

from bertsmith import tensors
from bertsmith.config import read_recipe
from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from bertsmith.train.checkpoint import load_average

from . import toy_objective as toy

EVERY = msgspec.structs.replace(toy.RECIPE, save_every=2, keep=1, average=3)


def weights(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_the_result_is_the_mean_of_the_last_checkpoints(tmp_path):
    trainer = toy.trainer(tmp_path, EVERY)
    trainer.fit(toy.Data())
    saved = [tensors.load_tensors(tmp_path / "state" / f"step-{step}" / "model.safetensors") for step in (8, 10, 12)]
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["step-10", "step-12", "step-8"]
    for name, value in weights(trainer.model).items():
        exact = torch.stack([one[name].double() for one in saved]).mean(0).float()
        assert torch.equal(value.cpu(), exact), name
    assert not torch.equal(weights(trainer.model)["inner.weight"].cpu(), saved[-1]["inner.weight"])


def test_a_run_that_is_done_gives_the_same_mean_again(tmp_path):
    first = toy.trainer(tmp_path, EVERY)
    first.fit(toy.Data())
    again = toy.trainer(tmp_path, EVERY)
    again.fit(toy.Data())
    assert all(torch.equal(value, weights(again.model)[name]) for name, value in weights(first.model).items())


def test_weights_before_the_first_step_and_after_a_rollback_are_left_out(tmp_path):
    model = torch.nn.Linear(2, 1)
    for step, value in ((0, 100.0), (3, 1.0), (6, 2.0), (9, 6.0), (12, 500.0)):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        filled = {name: torch.full_like(weight, value) for name, weight in model.state_dict().items()}
        tensors.save_tensors(filled, folder / "model.safetensors")
    assert load_average(tmp_path, 5, 9, model) == [3, 6, 9]
    assert model.weight.tolist() == [[3.0, 3.0]]
    assert load_average(tmp_path, 2, 9, model) == [6, 9] and model.bias.item() == 4.0


def test_the_best_and_the_mean_are_not_asked_for_together():
    with pytest.raises(UserError, match=r"train.stop .* train.average"):
        read_recipe(TrainConfig, overrides=["steps=10", "average=3", "stop=2"]).check()
