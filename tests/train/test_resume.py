"""A run that was killed, stopped or damaged ends with the same bytes as one that was not."""

import json
import signal
import time

import msgspec
import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig

from . import toy_objective as toy

SAME = ("metrics.jsonl", *(f"state/step-12/{name}.safetensors" for name in ("model", "optimizer", "carry")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    toy.trainer(folder).fit(toy.Data())
    return folder


def assert_same(folder, whole):
    for name in SAME:
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_dropout_and_carry_matter_to_the_toy(whole, tmp_path):
    """Otherwise the tests below would show too little."""
    toy.trainer(tmp_path / "dry", model=toy.Model(dropout=0.0)).fit(toy.Data())
    toy.trainer(tmp_path / "blank", objective=toy.Forgetful()).fit(toy.Data())
    for other in ("dry", "blank"):
        assert (tmp_path / other / SAME[1]).read_bytes() != (whole / SAME[1]).read_bytes()


@pytest.mark.parametrize(("death", "resumed"), [("run_and_die({!r}, 7)", 4), ("run_and_die_saving({!r}, 8)", 4)])
def test_a_killed_run_goes_on_as_if_it_had_not_been(death, resumed, whole, tmp_path):
    assert toy.child(death.format(str(tmp_path))).returncode == 9
    summary = toy.trainer(tmp_path).fit(toy.Data())
    assert summary["resumed_at"] == resumed
    assert_same(tmp_path, whole)
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["step-12", "step-8"]


def test_a_run_may_die_at_every_step(whole, tmp_path):
    folder = tmp_path / "run"
    every = msgspec.structs.replace(toy.RECIPE, save_every=1)
    for _ in range(11):
        with pytest.raises(toy.Died):
            toy.trainer(folder, every, on_step=toy.fail_at(1)).fit(toy.Data())
    toy.trainer(folder, every).fit(toy.Data())
    assert_same(folder, whole)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(name, whole, tmp_path, capsys):
    toy.trainer(tmp_path).fit(toy.Data())
    flip(tmp_path / "state" / "step-12" / name)
    summary = toy.trainer(tmp_path).fit(toy.Data())
    warning = capsys.readouterr().err
    assert summary["resumed_at"] == 8
    assert str(tmp_path / "state" / "step-12") in warning and "going back" in warning
    assert name == "manifest.json" or name in warning
    assert_same(tmp_path, whole)


def test_when_no_checkpoint_is_whole_the_damaged_file_is_named(tmp_path):
    toy.trainer(tmp_path).fit(toy.Data())
    for step in (8, 12):
        flip(tmp_path / "state" / f"step-{step}" / "model.safetensors")
    with pytest.raises(UserError, match=r"no checkpoint .* is whole: .*step-12/model\.safetensors is damaged.*remove"):
        toy.trainer(tmp_path)


def test_a_finished_run_is_not_trained_again(whole):
    before = (whole / "metrics.jsonl").read_bytes()
    data = toy.Data()
    summary = toy.trainer(whole).fit(data)
    assert data.asked == []
    assert (summary["step"], summary["resumed_at"]) == (12, 12)
    assert summary["loss"] > 0 and summary["trials"]["dev"]["loss"] > 0
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_another_recipe_does_not_go_on_in_the_same_folder(tmp_path):
    toy.trainer(tmp_path, fingerprint="a1").fit(toy.Data())
    with pytest.raises(UserError, match=r"another recipe \(a1, not b2\); choose another out, or remove"):
        toy.trainer(tmp_path, fingerprint="b2")


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    toy.trainer(tmp_path).fit(toy.Data())
    with pytest.raises(UserError, match=r"model\.safetensors does not fit this model"):
        toy.trainer(tmp_path, model=torch.nn.Linear(2, 2))


def test_checkpoints_hold_the_progress_and_only_the_newest_stay(tmp_path):
    toy.trainer(tmp_path, fingerprint="a1").fit(toy.Data())
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["step-12", "step-8"]
    progress = json.loads((tmp_path / "state" / "step-12" / "progress.json").read_text())
    assert (progress["step"], progress["fingerprint"], progress["rollbacks"]) == (12, "a1", 0)
    assert not list((tmp_path / "state").rglob("*.p[tk]*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(number, tmp_path):
    process = toy.child(f"run_slowly({str(tmp_path)!r})", wait=False)
    rows = tmp_path / "metrics.jsonl"
    for _ in range(1200):
        if rows.exists() and rows.stat().st_size > 500:
            break
        time.sleep(0.05)
    process.send_signal(number)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 3, words
    step = len(rows.read_text().splitlines())
    assert f"stopped at step {step}" in words and "same command again" in words
    assert (tmp_path / "state" / f"step-{step}" / "manifest.json").exists()
    config = TrainConfig(steps=100_000, rate=1e-3, save_every=100_000, log_every=1, device="cpu")
    assert toy.trainer(tmp_path, config).progress.step == step


def test_the_handlers_of_signals_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    toy.trainer(tmp_path).fit(toy.Data())
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
