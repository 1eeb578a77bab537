"""Reformer's parts against transformers': attention in chunks, hashed or not, and positions by axes."""

import json

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.mixers import Reformer, ReformerChunked
from bertsmith.model.mixers.reformer.chunked import ChunkConfig
from bertsmith.model.packing import Layout
from bertsmith.model.positions import AxialPositionsConfig
from tests.conftest import PIECES
from tests.parity.huggingface_models import imported, transformers

reformer = transformers.models.reformer.modeling_reformer
SEED = 3


def config(**more):
    given = {"hidden_size": 32, "num_attention_heads": 4, "attention_head_size": 6, "lsh_attn_chunk_length": 8,
             "local_attn_chunk_length": 8, "num_buckets": 8, "num_hashes": 1, "hash_seed": SEED, "hidden_dropout_prob": 0.0,
             "lsh_attention_probs_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0, "max_position_embeddings": 64,
             "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (12, 20), "attn_layers": ["lsh"]}  # fmt: skip
    return transformers.ReformerConfig(**{**given, **more})


def pair(told):
    """One attention of theirs with its way out, and ours with the same weights."""
    torch.manual_seed(0)
    theirs = reformer.ReformerAttention(told, 0).eval()
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    near, hashed = (
        ChunkConfig(chunk=getattr(told, f"{word}_attn_chunk_length"), before=getattr(told, f"{word}_num_chunks_before"),
               after=getattr(told, f"{word}_num_chunks_after"))
        for word in ("local", "lsh")
    )  # fmt: skip
    buckets = told.num_buckets if isinstance(told.num_buckets, int) else tuple(told.num_buckets)
    kind = "near" if told.attn_layers[0] == "local" else "hashed"
    ours = ReformerChunked(heads=4, size=told.attention_head_size, layers=(kind,), near=near, hashed=hashed, buckets=buckets,
                   rounds=told.num_hashes, seed=SEED, causal=told.is_decoder).build(32).eval()  # fmt: skip
    inside = theirs.self_attention
    names = ("query", "key", "value") if kind == "near" else ("query_key", "value")
    with torch.no_grad():
        ours.project.weight.copy_(torch.cat([getattr(inside, name).weight for name in names]))
        ours.out.weight.copy_(theirs.output.dense.weight)
    return theirs, ours


SETTINGS = [
    {"attn_layers": ["local"]},
    {"attn_layers": ["local"], "local_num_chunks_after": 1},
    {"attn_layers": ["local"], "is_decoder": True},
    {},
    {"num_hashes": 3},
    {"num_hashes": 2, "lsh_num_chunks_after": 1, "num_buckets": [4, 4]},
    {"num_hashes": 4, "is_decoder": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("length", [8, 16, 40])
def test_attention_in_chunks(settings, length):
    theirs, ours = pair(config(**settings))
    x = torch.randn(1, length, 32)
    wanted = theirs(x).hidden_states[0]
    normed = theirs.layer_norm(x)[0]
    found, alone = (
        ours(normed, Layout.from_lengths([length])),
        1 if settings.get("is_decoder") and "num_hashes" in settings else 0,
    )
    assert_close(found[alone:], wanted[alone:], atol=1e-5, rtol=1e-5)
    # A first token, alone in a ring of rounds, has weights that sum to 1 here; theirs are exp(-1e5 - log) after rounding.
    assert_close(found[:alone], wanted[:alone], atol=0.02, rtol=0.02)
    beside = torch.randn(11, 32)  # packed with others it is the same
    packed = ours(torch.cat([beside, normed]), Layout.from_lengths([11, length]))
    assert_close(packed[11:], found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_one_bucket_is_their_attention_to_all(causal):
    """Within one chunk transformers does not hash: shared queries and keys, and oneself only if alone."""
    theirs, _ = pair(config(is_decoder=causal, lsh_attn_chunk_length=32, attention_head_size=8))
    ours, inside = Reformer(heads=4, buckets=1, causal=causal, bias=False).build(32).eval(), theirs.self_attention
    with torch.no_grad():
        ours.project.weight.copy_(torch.cat([inside.query_key.weight, inside.value.weight]))
        ours.out.weight.copy_(theirs.output.dense.weight)
    x = torch.randn(1, 30, 32)
    normed = theirs.layer_norm(x)[0]
    assert_close(ours(normed, Layout.from_lengths([30])), theirs(x).hidden_states[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [5, 64])
def test_axial_positions(length):
    theirs = reformer.AxialPositionEmbeddings(config()).eval()
    ours = AxialPositionsConfig(shape=(8, 8), widths=(12, 20)).build(64, 32)
    for number, weight in enumerate(theirs.weights):
        torch.nn.init.normal_(weight)
        ours.axes[number].weight = torch.nn.Parameter(weight.flatten(0, 1).clone())
    places = torch.arange(length)
    assert torch.equal(ours(places), theirs(places[None])[0])


WHOLE = {"attn_layers": ["local", "lsh", "local", "lsh"], "vocab_size": len(PIECES), "feed_forward_size": 40}


def folder_of(path, name, **settings):
    """A small random Reformer, saved with a vocabulary beside it."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(config(**{**WHOLE, **settings}))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return model.eval()


FOLDERS = [
    ("ReformerModel", {}),
    ("ReformerModel", {"axial_pos_embds": False, "attn_layers": ["local"] * 3}),
    ("ReformerForMaskedLM", {"num_hashes": 3, "chunk_size_feed_forward": 4}),
    ("ReformerForMaskedLM", {"num_buckets": [4, 4], "num_hashes": 2, "lsh_num_chunks_after": 1, "hash_seed": None}),
    ("ReformerModelWithLMHead", {"is_decoder": True, "hidden_act": "gelu"}),
]


@pytest.mark.parametrize(("name", "settings"), FOLDERS, ids=str)
def test_folders_come_in_and_answer_alike(name, settings, tmp_path):
    original = folder_of(tmp_path / "hf", name, **settings)
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours", check=True)
    assert result["family"] == "reformer" and max(result["differences"].values()) < 1e-5
    assert result["parameters"] == sum(weight.numel() for weight in original.parameters())
    assert sorted(result["heads"]) == ([] if name == "ReformerModel" else ["words"])
    if settings.get("hash_seed", SEED) is not None:
        tokens = torch.arange(5, 45)
        body = original if name == "ReformerModel" else original.reformer
        hidden = model(Inputs(tokens, Layout.from_lengths([40])))
        assert_close(hidden, body(tokens[None], use_cache=False).last_hidden_state[0], atol=1e-5, rtol=1e-5)


def test_an_imported_reformer_learns_as_transformers_does(tmp_path):
    original = folder_of(tmp_path / "hf", "ReformerModel", attn_layers=["local"] * 3).train()
    model = imported(tmp_path / "hf", tmp_path / "ours")[1].train()
    tokens, target = torch.arange(64) + 5, torch.randn(64, 64)
    (model(Inputs(tokens, Layout.from_lengths([64]))) * target).sum().backward()
    (original(tokens[None], use_cache=False).last_hidden_state[0] * target).sum().backward()
    for number, block in enumerate(model.encoder.stack.blocks):
        theirs = original.encoder.layers[number]
        assert_close(block.feedforward.up.weight.grad, theirs.feed_forward.dense.dense.weight.grad, atol=1e-3, rtol=1e-3)
        assert_close(block.mixer.out.weight.grad, theirs.attention.output.dense.weight.grad, atol=1e-3, rtol=1e-3)
    assert_close(model.encoder.tokens.weight.grad, original.embeddings.word_embeddings.weight.grad, atol=1e-3, rtol=1e-3)


def test_what_does_not_fit_is_named(tmp_path):
    folder_of(tmp_path / "hf", "ReformerModel")
    told = json.loads((tmp_path / "hf/config.json").read_text())
    for change, words in (
        ({"hidden_size": 36, "axial_pos_embds_dim": [12, 24]}, "promises"),
        ({"attn_layers": ["lsh"] * 4}, "lacks what its config.json promises"),
        ({"attn_layers": ["local", "lsh"]}, "no place for"),
        ({"hidden_act": "swoosh"}, "not that of a whole Reformer"),
        ({"axial_pos_shape": [8, 4]}, "promises"),
    ):
        (tmp_path / "hf/config.json").write_text(json.dumps(told | change))
        with pytest.raises(UserError, match=words):
            imported(tmp_path / "hf", tmp_path / "ours")
    assert not (tmp_path / "ours").exists() or not list((tmp_path / "ours").glob("*.safetensors"))
