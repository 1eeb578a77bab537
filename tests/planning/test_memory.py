"""What is counted without running is what torch then allocates, saves and learns, to the byte where it can be."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.profiler import ProfilerActivity, profile

from bertsmith.commands.plan import Recipe
from bertsmith.config import from_dict, read_recipe
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import SentencePairMLM
from bertsmith.planning import disk, memory
from bertsmith.planning import memory as parameters
from bertsmith.planning import step as batches
from bertsmith.planning.machines import Machine
from bertsmith.planning.memory import TensorSpec, measure_optimizer_state
from bertsmith.planning.step import build_meta_model
from bertsmith.train import optim, precision
from bertsmith.train.config import TrainConfig
from bertsmith.train.distributed import DistributedState
from bertsmith.train.step import UpdateStep

APART = Machine("a device that writes no checkpoints itself", memory=1, is_gpu=True)
OPTIMIZERS = [{"kind": "adamw"}, {"kind": "bert-adam"}, {"kind": "lamb"}, {"kind": "muon"}]
WAYS = """
train.clip=1 train.precision=bf16 train.recompute=true train.accumulate=3 train.optimizer=lamb train.optimizer=bert-adam
train.optimizer=muon model.norm=before model.mixer.rotary=10000 model.feedforward.gated=true model.mixer.dropout=0.1
objective=masked model.groups=1 model.embedding=16
""".split()  # noqa: SIM905


def small(**changes: object) -> ModelConfig:
    values = {"layers": 2, "width": 64, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 128}, **changes}
    return ModelConfig(encoder=from_dict(EncoderConfig, values), vocabulary=300, heads=SentencePairMLM().heads())


@pytest.mark.parametrize(("preset", "count"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_the_published_sizes_are_counted(preset, count):
    config = ModelConfig(encoder=EncoderConfig.presets[preset], vocabulary=30_522, heads=SentencePairMLM().heads())
    parts = parameters.count_parameters(build_meta_model(config))
    assert parameters.sum_parameters(parts, "encoder") == count
    assert parts["encoder.tokens"] == 30_522 * config.encoder.width


def test_every_parameter_of_a_built_model_is_counted_once():
    config = small(groups=1, embedding=16)
    assert sum(parameters.count_parameters(build_meta_model(config)).values()) == sum(
        p.numel() for p in build_model(config, 0).parameters()
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_peak_is_what_torch_allocates(way):
    """Beside weights and state, over one update, by torch's own account of its memory."""
    settings = ["model=bert-tiny", "model.layers=3", "length=32", "train.batch_tokens=512", "train.steps=4", way]
    recipe = read_recipe(Recipe, None, settings)
    config = ModelConfig(encoder=recipe.model, vocabulary=300, heads=recipe.objective.heads())
    batch = batches.make_synthetic_batch(recipe.objective, 512, 32, 300)
    found = memory.estimate_memory(config, recipe.objective, batch, recipe.train, APART).memory
    assert found.peak - found.weights - found.optimizer == pytest.approx(allocated(config, recipe, batch), rel=0.05)


def allocated(config: ModelConfig, recipe: Recipe, batch: object) -> int:
    train, model = recipe.train, build_model(config, 0)
    model.encoder.stack.gradient_checkpointing = train.recompute
    moved = train.optimizer.build(optim.build_param_groups(model, train.decay), train.rate)
    update = UpdateStep(recipe.objective, precision.prepare_model(model, train), DistributedState(), moved, train.clip)
    for _ in range(2):  # the first makes the state
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            update.compute_grads([(i, batch) for i in range(train.accumulate)], ())
            update.apply(1e-4)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind["kind"])
def test_an_optimizer_is_asked_what_it_keeps(kind):
    config, train = small(), from_dict(TrainConfig, {"steps": 1, "optimizer": kind})
    model = build_model(config, 0)
    moved = train.optimizer.build(optim.build_param_groups(model, train.decay), train.rate)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    moved.step()
    real = {
        name: TensorSpec(tuple(value.shape), value.dtype) for name, value in optim.optimizer_state_by_name(moved, model).items()
    }
    assert measure_optimizer_state(config, train).tensors == real


def test_the_optimizer_that_copies_weights_while_it_moves_them_is_seen_to():
    config = small(width=256, feedforward={"inner": 1024})
    weights = sum(weight.nbytes for weight in build_meta_model(config).parameters())
    needs = {
        kind["kind"]: measure_optimizer_state(config, from_dict(TrainConfig, {"steps": 1, "optimizer": kind})).update_bytes
        for kind in OPTIMIZERS
    }
    assert needs["adamw"] == 0 and 0.9 < needs["lamb"] / weights < 2.5


def test_the_size_of_a_safetensors_file_is_known_to_the_byte(tmp_path):
    tensors = {"b.weight": torch.zeros(7, 130), "a/exp_avg": torch.zeros(3), "词": torch.zeros(()), "z": torch.ones(9)}
    for some in (tensors, {"x": torch.zeros(1000)}, {}):
        save_file(some, tmp_path / "some.safetensors")
        slots = {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in some.items()}
        assert disk.safetensors_bytes(slots) == (tmp_path / "some.safetensors").stat().st_size


def test_checkpoints_are_counted_as_they_come_and_go():
    config, train = small(), from_dict(TrainConfig, {"steps": 50, "save_every": 10, "keep": 2})
    found = disk.estimate_disk(build_meta_model(config), measure_optimizer_state(config, train), train, 50, 0, 0)
    assert (
        3 * found.checkpoint <= found.most < 3.1 * found.checkpoint + disk.METRICS_ROW_BYTES * 5
    )  # one is written before the oldest goes
    short = disk.estimate_disk(build_meta_model(config), measure_optimizer_state(config, train), train, 5, 0, 0)
    assert short.most < 2 * found.checkpoint  # the first has no state, and only the last follows


@pytest.mark.parametrize("steps", [3, 24])
def test_the_disk_of_a_run_is_as_planned(corpus, tmp_path, steps):
    from bertsmith.commands import plan
    from bertsmith.pretraining.run import pretrain
    from bertsmith.pretraining.setup import PretrainRecipe

    settings = f"""corpus={corpus} out={tmp_path / "bert"} model=bert-tiny model.width=64 model.mixer.heads=2 length=32
        train.batch_tokens=256 train.steps={steps} train.save_every=5 train.keep=2 eval_tokens=512 held_out=0.1""".split()
    planned = plan.run(read_recipe(Recipe, None, [*settings, "machine=h200"]), quiet=True)["disk"]
    assert planned["corpus"] == used(corpus) and not (tmp_path / "bert").exists()
    seen: list[int] = []
    watched = lambda step, row: seen.append(max([used(p) for p in (tmp_path / "bert" / "state").glob("step-*")], default=0))
    pretrain(read_recipe(PretrainRecipe, None, settings), True, watched)
    assert planned["weights"] == (tmp_path / "bert" / "model.safetensors").stat().st_size
    assert planned["left"] == pytest.approx(used(tmp_path / "bert"), rel=0.05)
    if steps > 5:
        assert planned["checkpoint"] == pytest.approx(max(seen), rel=0.02)


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_where_checkpoints_are_written_from_the_same_memory_their_copies_count():
    config, train, batch = (
        small(),
        from_dict(TrainConfig, {"steps": 1}),
        batches.make_synthetic_batch(SentencePairMLM(), 32, 32, 300),
    )
    here, apart = (
        memory.estimate_memory(config, SentencePairMLM(), batch, train, one).memory
        for one in (Machine("a CPU", 1, False), APART)
    )
    assert here.peak == 2 * (here.weights + here.optimizer) > apart.peak
