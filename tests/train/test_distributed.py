"""Data-parallel training gives the same updates as one process."""

import json
import socket

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from tests.support import toy_objective as toy


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_two_interrupted_ranks_match_one_process(tmp_path):
    distributed_folder, single_folder = tmp_path / "shared", tmp_path / "alone"
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    ranks = [
        toy.run_in_subprocess(
            f"run_distributed({str(distributed_folder)!r})", wait=False, RANK=str(r), LOCAL_RANK=str(r), **environment
        )
        for r in (0, 1)
    ]
    for process in ranks:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    toy.build_trainer(single_folder, toy.DISTRIBUTED_CONFIG, toy.Model(), objective=toy.StatelessObjective()).fit(toy.Data())
    metrics = [
        [json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()]
        for f in (single_folder, distributed_folder)
    ]
    assert len(metrics[0]) == len(metrics[1]) == 6
    for single, distributed in zip(*metrics, strict=True):
        assert single.pop("split", None) == distributed.pop("split", None)
        assert distributed == pytest.approx(single, rel=1e-6)
    for name in ("model", "optimizer"):
        single, distributed = (
            load_file(folder / "state" / "step-5" / f"{name}.safetensors") for folder in (single_folder, distributed_folder)
        )
        assert single.keys() == distributed.keys()
        for key, tensor in single.items():
            torch.testing.assert_close(distributed[key], tensor, rtol=1e-6, atol=1e-6)


def test_distributed_requires_divisible_gradient_accumulation(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        UserError, match=r"train\.gradient_accumulation_steps = 3 .* 2 processes; set it to a multiple of 2, such as 4"
    ):
        toy.build_trainer(tmp_path, TrainConfig(steps=1, gradient_accumulation_steps=3, device="cpu"))
