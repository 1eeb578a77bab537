"""Learning rate schedules, and the validation of TrainConfig."""

import pytest

from bertsmith.errors import UserError
from bertsmith.recipes import read_recipe
from bertsmith.train import TrainConfig
from bertsmith.train.optim import Lamb
from bertsmith.train.schedule import lr_factor, resolve_warmup

SCHEDULES = ("linear", "cosine", "constant", "warmup_stable_decay")


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedule_warmup_is_linear(kind):
    factors = [lr_factor(kind, step / 100, 0.1, step_fraction=1 / 100) for step in range(100)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(factors) == 1
    assert lr_factor(kind, 0, 0) == 1  # without warm-up


def test_schedule_decay_shapes():
    factor = lambda kind, done: lr_factor(kind, done, 0.2)
    assert [factor("linear", done) for done in (0.2, 0.6, 1.0)] == pytest.approx([1, 0.5, 0])
    assert [factor("cosine", done) for done in (0.2, 0.4, 0.6, 1.0)] == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, 0])
    assert [factor("constant", done) for done in (0.2, 0.6, 1.0)] == [1, 1, 1]
    assert [factor("warmup_stable_decay", done) for done in (0.2, 0.7, 0.85, 1.0)] == pytest.approx([1, 1, 0.5, 0])
    assert lr_factor("warmup_stable_decay", 0.85, 0.2, decay_fraction=0.6) == pytest.approx(0.25)


@pytest.mark.parametrize("kind", ["linear", "cosine", "warmup_stable_decay"])
def test_schedule_last_step_is_small_but_not_zero(kind):
    assert 0 < lr_factor(kind, 999 / 1000, 0.01, step_fraction=1 / 1000) < 0.005


def test_resolve_warmup_takes_fraction_or_steps():
    assert (resolve_warmup(0.25, 100), resolve_warmup(25, 100), resolve_warmup(1, 100), resolve_warmup(0.25, None)) == (
        0.25,
        0.25,
        0.01,
        0.25,
    )
    with pytest.raises(UserError, match="minutes"):
        resolve_warmup(25, None)
    with pytest.raises(UserError, match="more than the 100 steps of the run"):
        resolve_warmup(101, 100)


def test_resolve_epochs_converts_to_steps():
    assert TrainConfig(epochs=3).resolve_epochs(100).steps == 300
    assert TrainConfig(epochs=0.5, gradient_accumulation_steps=4).resolve_epochs(101).steps == 13
    assert TrainConfig(epochs=0.001).resolve_epochs(10).steps == 1
    assert TrainConfig(epochs=3).resolve_epochs(100).epochs is None
    assert TrainConfig(steps=7).resolve_epochs(100) == TrainConfig(steps=7)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TrainConfig(), "no duration is set; give one of train.steps, train.epochs and train.minutes"),
        (TrainConfig(steps=3, minutes=1), "train.steps and train.minutes are both set"),
        (TrainConfig(steps=0), "train.steps = 0"),
        (TrainConfig(steps=5, learning_rate=-1), "train.learning_rate = -1"),
        (TrainConfig(steps=5, save_total_limit=0), "train.save_total_limit"),
        (TrainConfig(steps=5, max_grad_norm=-1), "train.max_grad_norm"),
        (TrainConfig(minutes=1, warmup_steps=10), "minutes"),
    ],
)
def test_invalid_train_config_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        config.check()


def test_recipe_selects_optimizer_by_kind():
    assert read_recipe(TrainConfig, overrides=["optimizer=lamb", "optimizer.eps=1e-5", "steps=4"]).optimizer == Lamb(eps=1e-5)


@pytest.mark.parametrize(("hidden_size", "warmup"), [(512, 40), (64, 7)])
def test_inverse_sqrt_schedule_matches_transformer_paper(hidden_size, warmup):
    peak, steps = (hidden_size * warmup) ** -0.5, 200
    for step in range(steps):
        expected = hidden_size**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
        assert peak * lr_factor("inverse_sqrt", step / steps, warmup / steps, step_fraction=1 / steps) == pytest.approx(
            expected
        )


def test_inverse_sqrt_schedule_needs_warmup():
    with pytest.raises(UserError, match="warmup"):
        TrainConfig(steps=10, warmup_steps=0, lr_scheduler_type="inverse_sqrt").check()
