"""Estimates of parameters, memory and disk equal what torch then allocates and saves, to the byte where possible."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.profiler import ProfilerActivity, profile

from bertsmith.commands.plan import Recipe
from bertsmith.config import from_dict
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import NextSentenceMLM
from bertsmith.planning import disk, memory
from bertsmith.planning import memory as parameters
from bertsmith.planning import step as batches
from bertsmith.planning.machines import Machine
from bertsmith.planning.memory import TensorSpec, measure_optimizer_state
from bertsmith.planning.step import build_meta_model
from bertsmith.recipes import read_recipe
from bertsmith.train import optim
from bertsmith.train.anomaly import AnomalyDetector
from bertsmith.train.config import TrainConfig
from bertsmith.train.setup import prepare
from bertsmith.train.step import UpdateStep

GPU_LIKE = Machine("a device that writes no checkpoints itself", memory=1, is_gpu=True)
OPTIMIZERS = [{"kind": "adamw"}, {"kind": "bert-adam"}, {"kind": "lamb"}, {"kind": "muon"}]
SETTINGS = """
train.max_grad_norm=1 train.precision=bf16 train.gradient_checkpointing=true train.gradient_accumulation_steps=3
train.optimizer=lamb train.optimizer=bert-adam train.optimizer=muon model.norm=pre
model.mixer.rope_theta=10000 model.feedforward.glu=true model.mixer.attention_dropout=0.1
objective=mlm model.num_hidden_groups=1 model.embedding_size=16
""".split()  # noqa: SIM905


def small_config(**changes: object) -> ModelConfig:
    values = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "mixer": {"kind": "attention", "num_attention_heads": 2},
        "feedforward": {"intermediate_size": 128},
        **changes,
    }
    return ModelConfig(encoder=from_dict(EncoderConfig, values), vocab_size=300, heads=NextSentenceMLM().heads())


@pytest.mark.parametrize(("preset", "count"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_count_parameters_matches_published_bert_sizes(preset, count):
    config = ModelConfig(encoder=EncoderConfig.presets()[preset], vocab_size=30_522, heads=NextSentenceMLM().heads())
    parts = parameters.count_parameters(build_meta_model(config))
    assert parameters.sum_parameters(parts, "encoder") == count
    assert parts["encoder.word_embeddings"] == 30_522 * config.encoder.hidden_size


def test_count_parameters_counts_each_once():
    config = small_config(num_hidden_groups=1, embedding_size=16)
    assert sum(parameters.count_parameters(build_meta_model(config)).values()) == sum(
        p.numel() for p in build_model(config, 0).parameters()
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_estimated_peak_memory_matches_profiler(setting):
    """Peak above weights and optimizer state during one update, by torch's profiler."""
    settings = [
        "model=bert-tiny",
        "model.num_hidden_layers=3",
        "max_length=32",
        "train.batch_tokens=512",
        "train.steps=4",
        setting,
    ]
    recipe = read_recipe(Recipe, None, settings)
    config = ModelConfig(encoder=recipe.model, vocab_size=300, heads=recipe.objective.heads())
    batch = batches.make_synthetic_batch(recipe.objective, 512, 32, 300)
    estimate = memory.estimate_memory(config, recipe.objective, batch, recipe.train, GPU_LIKE).memory
    assert estimate.peak - estimate.parameters - estimate.optimizer == pytest.approx(
        measure_peak(config, recipe, batch), rel=0.05
    )


def measure_peak(config: ModelConfig, recipe: Recipe, batch: object) -> int:
    train, model = recipe.train, build_model(config, 0)
    model.encoder.stack.gradient_checkpointing = train.gradient_checkpointing
    update, detector = UpdateStep(prepare(model, train), recipe.objective), AnomalyDetector(0.0, 1)
    for _ in range(2):  # the first allocates the optimizer state
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            update([(i, batch) for i in range(train.gradient_accumulation_steps)], 1e-4, (), detector)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind["kind"])
def test_optimizer_state_matches_real_optimizer(kind):
    config, train = small_config(), from_dict(TrainConfig, {"steps": 1, "optimizer": kind})
    model = build_model(config, 0)
    optimizer = train.optimizer.build(optim.build_param_groups(model, train.weight_decay), train.learning_rate)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    expected = {
        name: TensorSpec(tuple(value.shape), value.dtype)
        for name, value in optim.optimizer_state_by_name(optimizer, model).items()
    }
    assert measure_optimizer_state(config, train).tensors == expected


def test_lamb_update_needs_temporary_memory():
    config = small_config(hidden_size=256, feedforward={"intermediate_size": 1024})
    weight_bytes = sum(weight.nbytes for weight in build_meta_model(config).parameters())
    update_bytes = {
        kind["kind"]: measure_optimizer_state(config, from_dict(TrainConfig, {"steps": 1, "optimizer": kind})).update_bytes
        for kind in OPTIMIZERS
    }
    assert update_bytes["adamw"] == 0 and 0.9 < update_bytes["lamb"] / weight_bytes < 2.5


def test_safetensors_bytes_is_exact(tmp_path):
    tensors = {"b.weight": torch.zeros(7, 130), "a/exp_avg": torch.zeros(3), "词": torch.zeros(()), "z": torch.ones(9)}
    for file_tensors in (tensors, {"x": torch.zeros(1000)}, {}):
        save_file(file_tensors, tmp_path / "some.safetensors")
        specs = {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in file_tensors.items()}
        assert disk.safetensors_bytes(specs) == (tmp_path / "some.safetensors").stat().st_size


def test_estimate_disk_counts_kept_checkpoints():
    config, train = small_config(), from_dict(TrainConfig, {"steps": 50, "save_every": 10, "save_total_limit": 2})
    usage = disk.estimate_disk(build_meta_model(config), measure_optimizer_state(config, train), train, 50, 0, 0)
    assert (
        3 * usage.checkpoint <= usage.peak < 3.1 * usage.checkpoint + disk.METRICS_ROW_BYTES * 5
    )  # one is written before the oldest is removed
    short_usage = disk.estimate_disk(build_meta_model(config), measure_optimizer_state(config, train), train, 5, 0, 0)
    assert short_usage.peak < 2 * usage.checkpoint  # the first, without optimizer state, and the last


@pytest.mark.parametrize("steps", [3, 24])
def test_planned_disk_matches_run(corpus, tmp_path, steps):
    from bertsmith.commands import plan
    from bertsmith.pretraining.run import pretrain
    from bertsmith.pretraining.setup import PretrainRecipe

    settings = f"""corpus={corpus} out={tmp_path / "bert"} model=bert-tiny model.hidden_size=64
        model.mixer.num_attention_heads=2 max_length=32 train.batch_tokens=256 train.steps={steps} train.save_every=5
        train.save_total_limit=2 eval_tokens=512 validation_split=0.1""".split()
    planned = plan.run(read_recipe(Recipe, None, [*settings, "machine=h200"]), quiet=True)["disk"]
    assert planned["corpus"] == folder_bytes(corpus) and not (tmp_path / "bert").exists()
    checkpoint_sizes: list[int] = []
    on_step = lambda step, row: checkpoint_sizes.append(
        max([folder_bytes(p) for p in (tmp_path / "bert" / "state").glob("step-*")], default=0)
    )
    pretrain(read_recipe(PretrainRecipe, None, settings), True, on_step)
    assert planned["weights"] == (tmp_path / "bert" / "model.safetensors").stat().st_size
    assert planned["final"] == pytest.approx(folder_bytes(tmp_path / "bert"), rel=0.05)
    if steps > 5:
        assert planned["checkpoint"] == pytest.approx(max(checkpoint_sizes), rel=0.02)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_saving_counts_towards_peak_memory_on_cpu():
    config, train, batch = (
        small_config(),
        from_dict(TrainConfig, {"steps": 1}),
        batches.make_synthetic_batch(NextSentenceMLM(), 32, 32, 300),
    )
    cpu, gpu = (
        memory.estimate_memory(config, NextSentenceMLM(), batch, train, machine).memory
        for machine in (Machine("a CPU", 1, False), GPU_LIKE)
    )
    assert cpu.peak == 2 * (cpu.parameters + cpu.optimizer) > gpu.peak
