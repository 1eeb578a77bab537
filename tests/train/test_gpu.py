"""What only a CUDA device can show: fp16 and its scale, fused steps, and how often the host waits."""

import json
import warnings

import msgspec
import pytest
import torch

from bertsmith.train.optim import BertAdam, Lamb

from . import toy_objective as toy

pytestmark = pytest.mark.gpu

CUDA = msgspec.structs.replace(toy.RECIPE, device="auto")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_killed_run_goes_on_exactly_on_the_device_too(precision, tmp_path):
    config = msgspec.structs.replace(CUDA, precision=precision)
    data = toy.Data(wild=frozenset({5}), scale=1e5)  # fp16 overflows here, and halves its scale
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    toy.trainer(whole, config).fit(data)
    with pytest.raises(toy.Died):
        toy.trainer(killed, config, on_step=toy.fail_at(7)).fit(data)
    trainer = toy.trainer(killed, config)
    trainer.fit(data)
    for name in ("metrics.jsonl", "state/step-12/model.safetensors", "state/step-12/optimizer.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    scaler = json.loads((killed / "state/step-12/progress.json").read_text())["scaler"]
    assert bool(scaler) == (precision == "fp16")
    assert trainer.prepared.device.type == "cuda"
    if scaler:
        assert scaler["scale"] < 65536 and "overflowed" in (killed / "metrics.jsonl").read_text()


def test_the_device_takes_the_steps_the_cpu_takes(tmp_path):
    models = {}
    for optimizer in (toy.RECIPE.optimizer, BertAdam(), Lamb()):
        for device in ("cpu", "cuda"):
            config = msgspec.structs.replace(toy.RECIPE, device=device, optimizer=optimizer)
            folder = tmp_path / f"{type(optimizer).__name__}-{device}"
            models[device] = toy.trainer(folder, config, toy.Model())
            models[device].fit(toy.Data())
        for one, two in zip(models["cpu"].model.parameters(), models["cuda"].model.parameters(), strict=True):
            torch.testing.assert_close(one, two.cpu(), rtol=1e-3, atol=1e-4)


def test_a_step_waits_for_the_device_once(tmp_path):
    trainer = toy.trainer(tmp_path, CUDA, trials={})
    batches = [(k, toy.Data()(k, 0.0).to("cuda")) for k in range(2)]
    trainer.update_step.apply_unless_anomalous(
        trainer.update_step.compute_grads(batches, ()), 1e-3, 100.0
    )  # the first step makes its state
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            pending = trainer.update_step.compute_grads(batches, ())
            trainer.update_step.apply_unless_anomalous(pending, 1e-3, 100.0)
            trainer.update_step.fetch_result(pending)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([wait for wait in waits if "called a synchronizing" in str(wait.message)]) == 1


def test_a_compiled_model_trains(tmp_path):
    config = msgspec.structs.replace(CUDA, compile=True, precision="bf16")
    summary = toy.trainer(tmp_path, config).fit(toy.Data())
    assert summary["step"] == 12 and "inner.weight" in toy.trainer(tmp_path, config).model.state_dict()
