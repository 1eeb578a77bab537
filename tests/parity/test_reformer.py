"""Reformer against transformers: chunked local and LSH attention, axial positions, and import."""

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
from tests.support.huggingface_models import import_folder, transformers
from tests.support.texts import VOCAB

reformer = transformers.models.reformer.modeling_reformer
SEED = 3


def reformer_config(**overrides):
    defaults = {"hidden_size": 32, "num_attention_heads": 4, "attention_head_size": 6, "lsh_attn_chunk_length": 8,
             "local_attn_chunk_length": 8, "num_buckets": 8, "num_hashes": 1, "hash_seed": SEED, "hidden_dropout_prob": 0.0,
             "lsh_attention_probs_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0, "max_position_embeddings": 64,
             "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (12, 20), "attn_layers": ["lsh"]}  # fmt: skip
    return transformers.ReformerConfig(**{**defaults, **overrides})


def build_pair(config):
    """Transformers' attention layer with its output projection, and ours with the same weights."""
    torch.manual_seed(0)
    reference = reformer.ReformerAttention(config, 0).eval()
    for weight in reference.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    local_chunks, lsh_chunks = (
        ChunkConfig(
            chunk_length=getattr(config, f"{kind_name}_attn_chunk_length"),
            num_chunks_before=getattr(config, f"{kind_name}_num_chunks_before"),
            num_chunks_after=getattr(config, f"{kind_name}_num_chunks_after"),
        )
        for kind_name in ("local", "lsh")
    )
    buckets = config.num_buckets if isinstance(config.num_buckets, int) else tuple(config.num_buckets)
    layer_type = config.attn_layers[0]
    ours = (
        ReformerChunked(
            num_attention_heads=4,
            attention_head_size=config.attention_head_size,
            attn_layers=(layer_type,),
            local=local_chunks,
            lsh=lsh_chunks,
            num_buckets=buckets,
            num_hashes=config.num_hashes,
            seed=SEED,
            causal=config.is_decoder,
        )
        .build(32)
        .eval()
    )
    self_attention = reference.self_attention
    names = ("query", "key", "value") if layer_type == "local" else ("query_key", "value")
    with torch.no_grad():
        ours.qkv.weight.copy_(torch.cat([getattr(self_attention, name).weight for name in names]))
        ours.output.weight.copy_(reference.output.dense.weight)
    return reference, ours


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
def test_reformer_chunked_attention_matches_transformers(settings, length):
    reference, ours = build_pair(reformer_config(**settings))
    x = torch.randn(1, length, 32)
    expected = reference(x).hidden_states[0]
    normed = reference.layer_norm(x)[0]
    out, num_isolated = (
        ours(normed, Layout.from_lengths([length])),
        1 if settings.get("is_decoder") and "num_hashes" in settings else 0,
    )
    assert_close(out[num_isolated:], expected[num_isolated:], atol=1e-5, rtol=1e-5)
    # The first token sees only itself, in every round: here its weights sum to 1, theirs are exp(-1e5 - lse) after rounding.
    assert_close(out[:num_isolated], expected[:num_isolated], atol=0.02, rtol=0.02)
    other_sequence = torch.randn(11, 32)  # packing must not change the result
    packed = ours(torch.cat([other_sequence, normed]), Layout.from_lengths([11, length]))
    assert_close(packed[11:], out, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_reformer_one_bucket_matches_transformers_unhashed(causal):
    """Within one chunk transformers does not hash: shared queries and keys, and no self-attention unless alone."""
    reference, _ = build_pair(reformer_config(is_decoder=causal, lsh_attn_chunk_length=32, attention_head_size=8))
    ours, self_attention = (
        Reformer(num_attention_heads=4, num_buckets=1, causal=causal, bias=False).build(32).eval(),
        reference.self_attention,
    )
    with torch.no_grad():
        ours.qkv.weight.copy_(torch.cat([self_attention.query_key.weight, self_attention.value.weight]))
        ours.output.weight.copy_(reference.output.dense.weight)
    x = torch.randn(1, 30, 32)
    normed = reference.layer_norm(x)[0]
    assert_close(ours(normed, Layout.from_lengths([30])), reference(x).hidden_states[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [5, 64])
def test_reformer_axial_positions_match_transformers(length):
    reference = reformer.AxialPositionEmbeddings(reformer_config()).eval()
    ours = AxialPositionsConfig(shape=(8, 8), widths=(12, 20)).build(64, 32)
    for axis, weight in enumerate(reference.weights):
        torch.nn.init.normal_(weight)
        ours.axes[axis].weight = torch.nn.Parameter(weight.flatten(0, 1).clone())
    positions = torch.arange(length)
    assert torch.equal(ours(positions), reference(positions[None])[0])


MODEL_OPTIONS = {"attn_layers": ["local", "lsh", "local", "lsh"], "vocab_size": len(VOCAB), "feed_forward_size": 40}


def save_reformer(path, name, **settings):
    """Saves a small random Reformer with a vocabulary, and returns it."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(reformer_config(**{**MODEL_OPTIONS, **settings}))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return model.eval()


MODELS = [
    ("ReformerModel", {}),
    ("ReformerModel", {"axial_pos_embds": False, "attn_layers": ["local"] * 3}),
    ("ReformerForMaskedLM", {"num_hashes": 3, "chunk_size_feed_forward": 4}),
    ("ReformerForMaskedLM", {"num_buckets": [4, 4], "num_hashes": 2, "lsh_num_chunks_after": 1, "hash_seed": None}),
    ("ReformerModelWithLMHead", {"is_decoder": True, "hidden_act": "gelu"}),
]


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=str)
def test_reformer_import_matches_transformers(name, settings, tmp_path):
    original = save_reformer(tmp_path / "hf", name, **settings)
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert result["family"] == "reformer" and max(result["differences"].values()) < 1e-5
    assert result["parameters"] == sum(weight.numel() for weight in original.parameters())
    assert sorted(result["heads"]) == ([] if name == "ReformerModel" else ["lm"])
    if settings.get("hash_seed", SEED) is not None:
        tokens = torch.arange(5, 45)
        body = original if name == "ReformerModel" else original.reformer
        hidden = model(Inputs(tokens, Layout.from_lengths([40])))
        assert_close(hidden, body(tokens[None], use_cache=False).last_hidden_state[0], atol=1e-5, rtol=1e-5)


def test_imported_reformer_grads_match_transformers(tmp_path):
    original = save_reformer(tmp_path / "hf", "ReformerModel", attn_layers=["local"] * 3).train()
    model = import_folder(tmp_path / "hf", tmp_path / "ours")[1].train()
    tokens, target = torch.arange(64) + 5, torch.randn(64, 64)
    (model(Inputs(tokens, Layout.from_lengths([64]))) * target).sum().backward()
    (original(tokens[None], use_cache=False).last_hidden_state[0] * target).sum().backward()
    for layer, block in enumerate(model.encoder.stack.layers):
        reference_layer = original.encoder.layers[layer]
        assert_close(
            block.feedforward.intermediate.weight.grad,
            reference_layer.feed_forward.dense.dense.weight.grad,
            atol=1e-3,
            rtol=1e-3,
        )
        assert_close(block.mixer.output.weight.grad, reference_layer.attention.output.dense.weight.grad, atol=1e-3, rtol=1e-3)
    assert_close(
        model.encoder.word_embeddings.weight.grad, original.embeddings.word_embeddings.weight.grad, atol=1e-3, rtol=1e-3
    )


def test_reformer_import_names_mismatches(tmp_path):
    save_reformer(tmp_path / "hf", "ReformerModel")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    for change, message in (
        ({"hidden_size": 36, "axial_pos_embds_dim": [12, 24]}, "does not match its config.json"),
        ({"attn_layers": ["lsh"] * 4}, "lacks tensors that its config.json requires"),
        ({"attn_layers": ["local", "lsh"]}, "bertsmith does not support"),
        ({"hidden_act": "swoosh"}, "incomplete, or describes a Reformer"),
        ({"axial_pos_shape": [8, 4]}, "does not match its config.json"),
    ):
        (tmp_path / "hf/config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            import_folder(tmp_path / "hf", tmp_path / "ours")
    assert not (tmp_path / "ours").exists() or not list((tmp_path / "ours").glob("*.safetensors"))
