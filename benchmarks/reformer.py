"""LSH attention against transformers' Reformer, forward and backward, and the memory of reversible layers by depth.

python -m benchmarks reformer [device=cuda] [lengths=4096,16384] [batch_tokens=32768] [num_hidden_layers=12]
                              [hidden_size=768] [num_attention_heads=12]
                              [depths=6,12,24,48] [depth_length=4096]

Both sides have the same buckets, hash rounds and chunks: 4 rounds, chunks of 64, two buckets for each chunk. Theirs is
always reversible. `depths` are the numbers of layers at which memory is measured, at a length of `depth_length`.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import scaling
from .inputs import BenchmarkInputs
from .scaling import INT_OPTIONS, Row, build_our_step

NUM_HASHES, CHUNK_LENGTH = 4, 64


def run(bench: BenchmarkInputs) -> list[Row]:
    rows = []
    for length in _int_list(bench, "lengths", "4096,16384"):
        spec = _build_spec(bench, length)
        peer = scaling.measure_in_process(spec, build_their_step)
        for reversible in (0, 1):
            result = scaling.measure_in_process(
                spec | {"mixer": _mixer_settings(length), "reversible": reversible}, build_our_step
            )
            rows.append(_format_row(f"reformer at {length:,}{', reversible' * reversible}", result, peer, "3x"))
    for layers in _int_list(bench, "depths", "6,12,24,48"):
        spec = _build_spec(bench, bench.int_option("depth_length", 4096)) | {
            "num_hidden_layers": layers,
            "mixer": _mixer_settings(bench.int_option("depth_length", 4096)),
        }
        result, plain = (
            scaling.measure_in_process(spec | {"reversible": 1}, build_our_step),
            scaling.measure_in_process(spec, build_our_step),
        )
        rows.append(_format_row(f"{layers} layers, reversible against not reversible", result, plain, ""))
    return rows


def _int_list(bench: BenchmarkInputs, name: str, default: str) -> list[int]:
    return [int(item) for item in bench.options.get(name, default).split(",") if item]


def _build_spec(bench: BenchmarkInputs, length: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        name: bench.int_option(name, default) for name, default in (INT_OPTIONS | {"num_hidden_layers": 12}).items()
    }
    spec |= {
        "batch_tokens": bench.int_option("batch_tokens", 32_768),
        "length": length,
        "hidden_dropout_prob": 0.0,
        "kind": "reformer",
    }
    return spec | {"device": bench.options.get("device", "cuda")}


def _num_buckets(length: int) -> list[int]:
    """Two buckets per chunk, factorized where they are many, as transformers sets them."""
    exponent = (2 * length // CHUNK_LENGTH).bit_length() - 1
    return [2**exponent] if 2**exponent <= 2 * CHUNK_LENGTH else [2 ** (exponent // 2), 2 ** (exponent - exponent // 2)]


def _mixer_settings(length: int) -> dict[str, Any]:
    return {"num_buckets": _num_buckets(length), "num_hashes": NUM_HASHES, "bucket_window": CHUNK_LENGTH}


def build_their_step(spec: dict[str, Any]) -> Callable[[], None]:
    from transformers import ReformerConfig, ReformerModel

    length, batch_size = spec["length"], max(1, spec["batch_tokens"] // spec["length"])
    buckets = _num_buckets(length)
    config = ReformerConfig(
        attn_layers=["lsh"] * spec["num_hidden_layers"], hidden_size=spec["hidden_size"],
        num_attention_heads=spec["num_attention_heads"], feed_forward_size=4 * spec["hidden_size"], vocab_size=30_522,
        attention_head_size=spec["hidden_size"] // spec["num_attention_heads"],
        num_hashes=NUM_HASHES, num_buckets=buckets if len(buckets) > 1 else buckets[0], lsh_attn_chunk_length=CHUNK_LENGTH,
        lsh_num_chunks_after=0, axial_pos_embds=False, max_position_embeddings=length, hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0, is_decoder=False,
    )  # fmt: skip
    model = ReformerModel(config).to(spec["device"]).train()
    input_ids = torch.randint(5, 30_000, (batch_size, length), device=spec["device"])
    return scaling.build_forward_backward(lambda: model(input_ids).last_hidden_state, list(model.parameters()), spec["device"])


def _format_row(label: str, result: dict[str, float] | None, peer: dict[str, float] | None, goal: str) -> Row:
    ratio = f"{peer['seconds'] / result['seconds']:.1f}x" if result and peer else "-"
    ours, theirs = (scaling.format_result(each) if each else "out of memory" for each in (result, peer))
    row = label, ours, theirs, ratio, goal
    print(*row, sep="  ", flush=True)
    return row
