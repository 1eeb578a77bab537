"""Several processes make the same update as one."""

import json
import socket

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig

from . import toy_objective as toy


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_two_interrupted_processes_of_two_micro_batches_equal_one_of_four(tmp_path):
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    ranks = [toy.child(f"run_shared({str(shared)!r})", wait=False, RANK=str(r), LOCAL_RANK=str(r), **place) for r in (0, 1)]
    for process in ranks:
        _, words = process.communicate(timeout=120)
        assert process.returncode == 0, words
    toy.trainer(alone, toy.SHARED, toy.Model(), objective=toy.Forgetful()).fit(toy.Data())
    both = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (alone, shared)]
    assert len(both[0]) == len(both[1]) == 6
    for one, two in zip(*both, strict=True):
        assert one.pop("trial", None) == two.pop("trial", None)
        assert two == pytest.approx(one, rel=1e-6)
    for name in ("model", "optimizer"):
        one, two = (load_file(folder / "state" / "step-5" / f"{name}.safetensors") for folder in (alone, shared))
        assert one.keys() == two.keys()
        for key, tensor in one.items():
            torch.testing.assert_close(two[key], tensor, rtol=1e-6, atol=1e-6)


def test_micro_batches_that_cannot_be_shared_evenly_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError, match=r"train\.accumulate = 3 .* 2 processes; make it a multiple of 2, such as 4"):
        toy.trainer(tmp_path, TrainConfig(steps=1, accumulate=3, device="cpu"))
