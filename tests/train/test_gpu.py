"""Training on a CUDA device: fp16 loss scaling, fused optimizer steps, number of synchronizations."""

import json
import warnings

import msgspec
import pytest
import torch

from bertsmith.train.optim import BertAdam, Lamb
from tests.support import toy_objective as toy

pytestmark = pytest.mark.gpu

CUDA = msgspec.structs.replace(toy.CONFIG, device="auto")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gpu_run_resumes_exactly(precision, tmp_path):
    config = msgspec.structs.replace(CUDA, precision=precision)
    data = toy.Data(bad_batches=frozenset({5}), scale=1e5)  # fp16 overflows here and halves the loss scale
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    toy.build_trainer(uninterrupted, config).fit(data)
    with pytest.raises(toy.SimulatedCrash):
        toy.build_trainer(killed, config, on_step=toy.crash_at(7)).fit(data)
    trainer = toy.build_trainer(killed, config)
    trainer.fit(data)
    for name in ("metrics.jsonl", "state/step-12/model.safetensors", "state/step-12/optimizer.safetensors"):
        assert (uninterrupted / name).read_bytes() == (killed / name).read_bytes(), name
    scaler = json.loads((killed / "state/step-12/progress.json").read_text())["grad_scaler"]
    assert bool(scaler) == (precision == "fp16")
    assert trainer.setup.device.type == "cuda"
    if scaler:
        assert scaler["scale"] < 65536 and "fp16 overflow" in (killed / "metrics.jsonl").read_text()


def test_gpu_optimizer_steps_match_cpu(tmp_path):
    trainers = {}
    for optimizer in (toy.CONFIG.optimizer, BertAdam(), Lamb()):
        for device in ("cpu", "cuda"):
            config = msgspec.structs.replace(toy.CONFIG, device=device, optimizer=optimizer)
            folder = tmp_path / f"{type(optimizer).__name__}-{device}"
            trainers[device] = toy.build_trainer(folder, config, toy.Model())
            trainers[device].fit(toy.Data())
        for cpu_param, cuda_param in zip(trainers["cpu"].model.parameters(), trainers["cuda"].model.parameters(), strict=True):
            torch.testing.assert_close(cpu_param, cuda_param.cpu(), rtol=1e-3, atol=1e-4)


def test_gpu_step_synchronizes_once(tmp_path):
    trainer = toy.build_trainer(tmp_path, CUDA, eval_sets={})
    batches = [(k, toy.Data()(k, 0.0).to("cuda")) for k in range(2)]
    # the first step creates the optimizer state
    trainer.update_step(batches, 1e-3, (), trainer.anomaly_detector)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            trainer.update_step(batches, 1e-3, (), trainer.anomaly_detector)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([warning for warning in caught if "called a synchronizing" in str(warning.message)]) == 1


def test_gpu_compiled_model_trains(tmp_path):
    config = msgspec.structs.replace(CUDA, compile=True, precision="bf16")
    summary = toy.build_trainer(tmp_path, config).fit(toy.Data())
    assert summary["step"] == 12 and "inner.weight" in toy.build_trainer(tmp_path, config).model.state_dict()
