"""A device by name: the same words for training and for answers, and an error that names the person's own key."""

import pytest
import torch

from bertsmith.device import resolve_device
from bertsmith.errors import UserError


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("name", ["gpu", "1", "", "cuda:", "cuda:-1", "cuda:1x", "cuda:٣", "CPU", "cpu\n", 0, None])
def test_what_names_no_device_is_refused(monkeypatch, name):
    gpus(monkeypatch, 8)
    with pytest.raises(UserError, match="is not known; write auto, cpu, cuda or cuda:0") as found:
        resolve_device(name, "train.device")
    assert str(found.value).startswith(f"train.device={name!r} ")


@pytest.mark.parametrize(
    ("name", "number", "wanted"),
    [("auto", 0, "cuda:0"), ("auto", 1, "cuda:1"), ("cuda", 1, "cuda:1"), ("cuda:0", 1, "cuda:0"), ("cpu", 5, "cpu")],
)
def test_a_number_in_the_name_wins_over_that_of_the_process(monkeypatch, name, number, wanted):
    gpus(monkeypatch, 2)
    assert resolve_device(name, index=number) == torch.device(wanted)


def test_without_a_gpu_auto_is_the_cpu_for_every_process(monkeypatch):
    gpus(monkeypatch, 0)
    assert resolve_device("auto", index=3) == torch.device("cpu")


@pytest.mark.parametrize(
    ("count", "name", "number", "says"),
    [
        (0, "cuda", 0, "no such device as cuda:0, with no CUDA device here; write device=cpu, or auto"),
        (1, "cuda:1", 0, "no such device as cuda:1, with 1 CUDA device here; write device=cpu, or auto"),
        (2, "auto", 2, "no such device as cuda:2, with 2 CUDA devices here; start no more than 2 processes"),
    ],
)
def test_a_device_that_is_not_here_is_named_with_the_way_out(monkeypatch, count, name, number, says):
    gpus(monkeypatch, count)
    with pytest.raises(UserError) as found:
        resolve_device(name, index=number)
    assert str(found.value) == f"device={name}: {says}"
