"""BERT's pre-training step on one GPU against transformers': MLM and NSP, forward, backward, clipping, AdamW, in bf16.

python -m benchmarks gpu_pretrain [model=bert-base] [batch_tokens=65536] [steps=20] [cases=128,512,mixed-128,mixed-512]
                                  [peer=sdpa,compile] [trace=FILE]

Both sides get the same random ids (vocabulary 30,528) in the same sequences; speed counts tokens without padding. `mixed`
lengths are uniform from an eighth of the longest up. `trace` writes a profile of our step by kernel, for the first case.
"""

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from bertsmith.corpus.collate import NumpyBatch
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import NextSentenceMLM
from bertsmith.train.anomaly import AnomalyDetector
from bertsmith.train.config import TrainConfig
from bertsmith.train.setup import prepare
from bertsmith.train.step import UpdateStep

from .inputs import BenchmarkInputs

VOCAB_SIZE, GOALS = 30_528, {"128": 1000, "512": 900, "mixed-128": 950, "mixed-512": 850}

Row = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Speed:
    """Speed and peak memory of a step."""

    tokens_per_second: float  # without padding
    peak_gigabytes: float

    def __str__(self) -> str:
        return f"{self.tokens_per_second / 1000:,.0f}k tokens/s, {self.peak_gigabytes:.1f} GB"


def run(bench: BenchmarkInputs) -> list[Row]:
    peers = [name for name in bench.options.get("peer", "sdpa").split(",") if name]
    rows = []
    for index, case in enumerate(bench.options.get("cases", ",".join(GOALS)).split(",")):
        arrays = _random_arrays(case, bench.int_option("batch_tokens", 65_536))
        name, trace = bench.options.get("model", "bert-base"), bench.options.get("trace") if index == 0 else None
        ours = _measure_speed(_build_our_step(arrays, name), arrays, bench.int_option("steps", 20), trace)
        label = f"{name}, {len(arrays.input_ids):,} tokens, lengths {case}"
        goal = f"{GOALS[case]}k" if name == "bert-base" and case in GOALS else ""
        for peer in peers or [""]:
            theirs = (
                _measure_speed(_build_their_step(arrays, name, peer), arrays, bench.int_option("steps", 20)) if peer else None
            )
            ratio = f"{ours.tokens_per_second / theirs.tokens_per_second:.2f}x" if theirs else ""
            rows.append((label, str(ours), f"transformers, {peer}: {theirs}" if theirs else "", ratio, goal))
            print(*rows[-1], sep="  ", flush=True)
    return rows


def _random_arrays(case: str, num_tokens: int) -> NumpyBatch:
    """Random ids in sequences of one length, or of mixed lengths."""
    rng, max_length = np.random.default_rng(0), int(case.split("-")[-1])
    lengths = np.full(num_tokens // max_length, max_length)
    if case.startswith("mixed"):
        random_lengths = rng.integers(max_length // 8, max_length + 1, 16 * num_tokens // max_length)
        lengths = random_lengths[: int(np.searchsorted(random_lengths.cumsum(), num_tokens))]
    input_ids = rng.integers(1000, VOCAB_SIZE, int(lengths.sum()))
    first_token = np.concatenate([[0], lengths.cumsum()[:-1]])
    input_ids[first_token] = 101
    positions = np.arange(len(input_ids)) - np.repeat(first_token, lengths)
    masked_indices = np.flatnonzero((rng.random(len(input_ids)) < 0.15) & (positions > 0))
    segments = (positions >= np.repeat(lengths // 2, lengths)).astype(np.int64)
    return NumpyBatch(input_ids, lengths, segments, masked_indices, input_ids[masked_indices], rng.integers(0, 2, len(lengths)))


def _build_our_step(arrays: NumpyBatch, name: str) -> Callable[[], Any]:
    """A step as the trainer does it, including the transfer of the losses."""
    objective, train = NextSentenceMLM(), TrainConfig(steps=1, precision="bf16", device="cuda")
    model = build_model(ModelConfig(encoder=EncoderConfig.presets()[name], vocab_size=VOCAB_SIZE, heads=objective.heads()), 0)
    setup = prepare(model.train(), train)
    update, detector = UpdateStep(setup, objective), AnomalyDetector(0.0, 1)
    batch = objective.to_batch(arrays).to(setup.device)

    def step() -> None:
        update([(0, batch)], 1e-4, (), detector)

    return step


def _build_their_step(arrays: NumpyBatch, name: str, peer: str) -> Callable[[], Any]:
    from transformers import BertConfig, BertForPreTraining

    encoder = EncoderConfig.presets()[name]
    sizes = {"hidden_size": encoder.hidden_size, "num_hidden_layers": encoder.num_hidden_layers,
             "num_attention_heads": encoder.mixer.num_attention_heads,
             "intermediate_size": encoder.feedforward.intermediate_size}  # fmt: skip
    config = BertConfig(vocab_size=VOCAB_SIZE, attention_probs_dropout_prob=0.0, attn_implementation="sdpa", **sizes)
    model = BertForPreTraining(config).cuda().train()
    if peer == "compile":
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs = _pad_inputs(arrays)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def _pad_inputs(arrays: NumpyBatch) -> dict[str, torch.Tensor]:
    """The same sequences padded to (batch, max length); no attention mask where there is no padding."""
    layout, labels = NextSentenceMLM().to_batch(arrays).inputs.layout, np.full(len(arrays.input_ids), -100)
    labels[arrays.output_indices] = arrays.target_ids
    assert arrays.token_type_ids is not None and arrays.labels is not None
    padding_mask = layout.padding_mask()
    flat_inputs = {"input_ids": arrays.input_ids, "token_type_ids": arrays.token_type_ids, "labels": labels}
    inputs = {name: layout.pad(torch.from_numpy(values)) for name, values in flat_inputs.items()}
    inputs["labels"] = inputs["labels"].masked_fill(~padding_mask, -100)
    inputs["next_sentence_label"] = torch.from_numpy(arrays.labels)
    if not layout.is_uniform:
        inputs["attention_mask"] = padding_mask.long()
    return {name: values.cuda() for name, values in inputs.items()}


def _measure_speed(step: Callable[[], Any], arrays: NumpyBatch, steps: int, trace_path: str | None = None) -> Speed:
    """Median step time by CUDA events, after three warm-up steps."""
    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    milliseconds = statistics.median(a.elapsed_time(b) for a, b in pairwise(events))
    peak = torch.cuda.max_memory_allocated() / 1e9
    if trace_path:
        _write_trace(step, trace_path)
    del step
    gc.collect()
    torch.cuda.empty_cache()
    return Speed(len(arrays.input_ids) / milliseconds * 1000, peak)


def _write_trace(step: Callable[[], Any], path: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
    with open(path, "w", encoding="utf-8") as out:
        out.write(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=90))
