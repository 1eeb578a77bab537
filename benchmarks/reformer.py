"""Hashed attention against transformers' Reformer, there and back, and what depth costs a stack that runs backwards.

python -m benchmarks reformer [device=cuda] [lengths=4096,16384] [tokens=32768] [layers=12] [width=768] [heads=12]
                              [depths=6,12,24,48] [deep=4096]

Both sides have as many buckets, rounds and neighbours in sight: 4 rounds, chunks of 64, two buckets for each chunk. Theirs is
always reversible. `depths` are those at which memory is measured, at a length of `deep`.
"""

from collections.abc import Callable
from typing import Any

import torch

from . import scaling
from .material import Material
from .scaling import NUMBERS, Row, ours

ROUNDS, CHUNK = 4, 64


def run(stuff: Material) -> list[Row]:
    rows = []
    for length in _numbers(stuff, "lengths", "4096,16384"):
        asked = _asked(stuff, length)
        peer = scaling.here(asked, theirs)
        for reversible in (0, 1):
            told = scaling.here(asked | {"mixer": _mixer(length), "reversible": reversible}, ours)
            rows.append(_row(f"hashed at {length:,}{', reversible' * reversible}", told, peer, "3x"))
    for layers in _numbers(stuff, "depths", "6,12,24,48"):
        asked = _asked(stuff, stuff.number("deep", 4096)) | {"layers": layers, "mixer": _mixer(stuff.number("deep", 4096))}
        told, plain = scaling.here(asked | {"reversible": 1}, ours), scaling.here(asked, ours)
        rows.append(_row(f"{layers} layers, reversible; beside it plain", told, plain, ""))
    return rows


def _numbers(stuff: Material, name: str, usual: str) -> list[int]:
    return [int(one) for one in stuff.given.get(name, usual).split(",") if one]


def _asked(stuff: Material, length: int) -> dict[str, Any]:
    asked: dict[str, Any] = {name: stuff.number(name, usual) for name, usual in (NUMBERS | {"layers": 12}).items()}
    asked |= {"tokens": stuff.number("tokens", 32_768), "length": length, "dropout": 0.0, "kind": "hashed"}
    return asked | {"device": stuff.given.get("device", "cuda")}


def _buckets(length: int) -> list[int]:
    """Two for each chunk, in two factors where they are many: as transformers sets them."""
    power = (2 * length // CHUNK).bit_length() - 1
    return [2**power] if 2**power <= 2 * CHUNK else [2 ** (power // 2), 2 ** (power - power // 2)]


def _mixer(length: int) -> dict[str, Any]:
    return {"buckets": _buckets(length), "rounds": ROUNDS, "reach": CHUNK}


def theirs(asked: dict[str, Any]) -> Callable[[], None]:
    from transformers import ReformerConfig, ReformerModel

    length, texts = asked["length"], max(1, asked["tokens"] // asked["length"])
    buckets = _buckets(length)
    config = ReformerConfig(
        attn_layers=["lsh"] * asked["layers"], hidden_size=asked["width"], num_attention_heads=asked["heads"],
        attention_head_size=asked["width"] // asked["heads"], feed_forward_size=4 * asked["width"], vocab_size=30_522,
        num_hashes=ROUNDS, num_buckets=buckets if len(buckets) > 1 else buckets[0], lsh_attn_chunk_length=CHUNK,
        lsh_num_chunks_after=0, axial_pos_embds=False, max_position_embeddings=length, hidden_dropout_prob=0.0,
        lsh_attention_probs_dropout_prob=0.0, is_decoder=False,
    )  # fmt: skip
    model = ReformerModel(config).to(asked["device"]).train()
    words = torch.randint(5, 30_000, (texts, length), device=asked["device"])
    return scaling.there_and_back(lambda: model(words).last_hidden_state, list(model.parameters()), asked["device"])


def _row(what: str, told: dict[str, float] | None, peer: dict[str, float] | None, goal: str) -> Row:
    ratio = f"{peer['seconds'] / told['seconds']:.1f}x" if told and peer else "-"
    mine, other = (scaling.words(side) if side else "out of memory" for side in (told, peer))
    row = what, mine, other, ratio, goal
    print(*row, sep="  ", flush=True)
    return row
