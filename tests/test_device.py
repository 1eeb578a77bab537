"""Devices by name; errors name the recipe key."""

import pytest
import torch

from bertsmith.device import copy_to_device, resolve_device
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from bertsmith.train.objective import Batch


def fake_gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("name", ["gpu", "1", "", "cuda:", "cuda:-1", "cuda:1x", "cuda:٣", "CPU", "cpu\n", 0, None])
def test_device_unknown_names_are_refused(monkeypatch, name):
    fake_gpus(monkeypatch, 8)
    with pytest.raises(UserError, match="is not a device; set auto, cpu, cuda or cuda:N") as caught:
        resolve_device(name, "train.device")
    assert str(caught.value).startswith(f"train.device={name!r} ")


@pytest.mark.parametrize(("name", "meant"), [(0, "cuda:0"), ("2", "cuda:2"), (-1, "cpu"), ("gpu", "cuda"), ("CPU", "cpu")])
def test_device_of_a_pipeline_is_answered_with_ours(name, meant):
    with pytest.raises(UserError, match=f"did you mean device={meant}\\?$"):
        resolve_device(name)


@pytest.mark.parametrize(
    ("name", "index", "expected"),
    [("auto", 0, "cuda:0"), ("auto", 1, "cuda:1"), ("cuda", 1, "cuda:1"), ("cuda:0", 1, "cuda:0"), ("cpu", 5, "cpu")],
)
def test_device_number_in_the_name_wins_over_the_rank(monkeypatch, name, index, expected):
    fake_gpus(monkeypatch, 2)
    assert resolve_device(name, index=index) == torch.device(expected)


def test_device_auto_is_the_cpu_without_a_gpu(monkeypatch):
    fake_gpus(monkeypatch, 0)
    assert resolve_device("auto", index=3) == torch.device("cpu")


@pytest.mark.parametrize(
    ("count", "name", "index", "message"),
    [
        (0, "cuda", 0, "cuda:0 does not exist, this machine has no CUDA device; set device=cpu or auto"),
        (1, "cuda:1", 0, "cuda:1 does not exist, this machine has 1 CUDA device; set device=cpu or auto"),
        (2, "auto", 2, "cuda:2 does not exist, this machine has 2 CUDA devices; start at most 2 processes"),
    ],
)
def test_device_missing_gpu_suggests_a_fix(monkeypatch, count, name, index, message):
    fake_gpus(monkeypatch, count)
    with pytest.raises(UserError) as caught:
        resolve_device(name, index=index)
    assert str(caught.value) == f"device={name}: {message}"


def test_copies_to_the_host_are_not_pinned(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", None)
    tensor = torch.arange(3)
    assert copy_to_device(tensor, "cpu") is tensor


@pytest.mark.gpu
def test_every_tensor_of_a_batch_is_copied_from_pinned_memory(monkeypatch):
    copied, to = [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kwargs: copied.append(self) or to(self, *args, **kwargs))
    inputs = Inputs(torch.arange(5), Layout.from_lengths([2, 3]), torch.zeros(5, dtype=torch.long))
    batch = Batch(inputs, {"label": torch.tensor([0, 1])}, {"task": 2}).to("cuda")
    assert len(copied) >= 5 and all(tensor.is_pinned() for tensor in copied)
    assert batch.inputs.input_ids.tolist() == [0, 1, 2, 3, 4] and batch.targets["label"].is_cuda
