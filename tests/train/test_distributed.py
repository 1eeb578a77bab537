"""Data-parallel training gives the same updates as one process."""

import json
import os
import socket
from multiprocessing import get_context

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.errors import UserError
from bertsmith.train import TrainConfig
from bertsmith.train.distributed import join_ranks
from tests.support import toy_objective as toy


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start_two_ranks(call):
    """Evaluates `toy.{call}` in each of two processes."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2"}
    return [toy.run_in_subprocess(call, wait=False, RANK=str(r), LOCAL_RANK=str(r), **environment) for r in (0, 1)]


def run_two_ranks(call):
    for process in start_two_ranks(call):
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr


def test_two_interrupted_ranks_match_one_process(tmp_path):
    distributed_folder, single_folder = tmp_path / "shared", tmp_path / "alone"
    run_two_ranks(f"run_distributed({str(distributed_folder)!r})")
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


def test_a_rank_beside_a_dead_one_ends_in_one_line(tmp_path):
    survivor, dead = start_two_ranks(f"run_rank_beside_a_dead_one({str(tmp_path)!r})")
    _, stderr = survivor.communicate(timeout=120)
    assert dead.wait(120) == 9 and survivor.returncode == 1
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "another process of this run has ended" in errors[0] and "Traceback" not in stderr
    assert "run the same command again to resume" in errors[0]


def test_distributed_requires_divisible_gradient_accumulation(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(
        UserError, match=r"train\.gradient_accumulation_steps = 3 .* 2 processes; set it to a multiple of 2, such as 4"
    ):
        toy.build_trainer(tmp_path, TrainConfig(steps=1, gradient_accumulation_steps=3, device="cpu"))


@pytest.mark.parametrize("config", ["EARLY_STOPPING_CONFIG", "AVERAGING_CONFIG"])
def test_final_weights_are_read_by_rank_0_alone(config, tmp_path):
    run_two_ranks(f"run_distributed_to_weights({str(tmp_path / 'shared')!r}, {config!r})")
    toy.run_distributed_to_weights(str(tmp_path / "alone"), config)
    alone, *ranks = (torch.load(tmp_path / f"weights-{name}.pt") for name in ("alone", 0, 1))
    for name, weights in alone.items():
        assert torch.equal(ranks[0][name], ranks[1][name]), name
        torch.testing.assert_close(ranks[0][name], weights, rtol=1e-6, atol=1e-6)


def test_steps_exchange_numbers_and_pickle_nothing(tmp_path):
    run_two_ranks(f"count_pickled_gathers({str(tmp_path / 'run')!r})")


def exchange(rank, port, results):
    """Rank `rank` of two: ranks with different names, and then a new name on one of them."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)}
    ranks = join_ranks(torch.device("cpu"), 2)
    sums = [{"a": (0.1, 1.0)}, {"b": (0.2, 2.0), "a": (0.3, 3.0)}]
    first = ranks.gather_sums("kind", sums[rank])
    second = ranks.gather_sums("kind", {"a": (float("nan"), 1.0)} if rank else {"c": (1e300, 2.0)})
    results.put((rank, first, repr(second), ranks.any_rank(rank == 1), ranks.any_rank(False), ranks.gather_floats([rank, 0.5])))


def test_sums_of_ranks_with_different_names():
    context = get_context("spawn")
    results, port = context.Queue(), free_port()
    processes = [context.Process(target=exchange, args=(rank, port, results)) for rank in (0, 1)]
    for process in processes:
        process.start()
    answers = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert answers[0][1:] == answers[1][1:]
    _, first, second, *rest = answers[0]
    assert first == [{"a": (0.1, 1.0)}, {"b": (0.2, 2.0), "a": (0.3, 3.0)}]
    assert second == "[{'c': (1e+300, 2.0)}, {'a': (nan, 1.0)}]" and rest == [True, False, [[0.0, 0.5], [1.0, 0.5]]]
