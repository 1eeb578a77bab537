"""Encoders without blocks, feed-forward, LayerNorm, residual or position embeddings; pooling of a text."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout, PaddedLayout
from tests.support.plain_encoder import LENGTHS, PLAIN_ENCODER, build_packed_inputs, layer_norm

BARE = PLAIN_ENCODER | {
    "embedding_norm": False,
    "position_embedding_type": "none",
    "type_vocab_size": 0,
    "norm": "none",
    "feedforward": "none",
}


def build_bare_model(**overrides):
    return build_model(ModelConfig(encoder=from_dict(EncoderConfig, BARE | overrides), vocab_size=50), 0).train()


def test_encoder_without_layers_is_the_embedding_table():
    model, inputs = build_bare_model(num_hidden_layers=0, pooler_act="none"), build_packed_inputs()
    assert [name for name, _ in model.named_parameters()] == ["encoder.word_embeddings.weight"]
    all_hidden_states = []
    assert (
        torch.equal(model(inputs, all_hidden_states), model.encoder.word_embeddings.weight[inputs.input_ids])
        and len(all_hidden_states) == 1
    )
    rows = torch.tensor([3, 0, 56])
    assert torch.equal(model(Inputs(inputs.input_ids, inputs.layout, output_indices=rows)), model(inputs)[rows])
    assert torch.equal(model.encoder.apply_pooler(model(inputs)), model(inputs))


@pytest.mark.parametrize("residual", ["all", "between", "none"])
@pytest.mark.parametrize("has_feedforward", [False, True])
def test_encoder_without_norm_residual_modes(residual, has_feedforward):
    overrides = {"feedforward": PLAIN_ENCODER["feedforward"]} if has_feedforward else {}
    model, inputs = build_bare_model(residual=residual, **overrides), build_packed_inputs()
    x = model.encoder.word_embeddings.weight[inputs.input_ids]
    for layer, block in enumerate(model.encoder.stack.layers):
        is_added = residual == "all" or (residual == "between" and layer > 0)
        x = block.mixer(x, inputs.layout) + is_added * x
        if has_feedforward:
            x = block.feedforward(x) + is_added * x
    states = []
    assert_close(model(inputs, states), x)
    assert len(states) == len(model.encoder.stack.layers) + 1 and torch.equal(states[-1], model(inputs))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_without_feed_forward_is_mixer_and_norm(norm):
    model, inputs = build_bare_model(norm=norm), build_packed_inputs()
    x = model.encoder.word_embeddings.weight[inputs.input_ids]
    for block in model.encoder.stack.layers:
        mixer_input = layer_norm(block.mixer_norm, x) if norm == "pre" else x
        x = x + block.mixer(mixer_input, inputs.layout)
        x = x if norm == "pre" else layer_norm(block.mixer_norm, x)
    expected = layer_norm(model.encoder.stack.final_norm, x) if norm == "pre" else x
    all_hidden_states = []
    assert_close(model(inputs), expected)
    assert_close(model(inputs, all_hidden_states), expected)


def test_encoder_without_norm_applies_dropout():
    model, inputs = build_bare_model(hidden_dropout_prob=0.5), build_packed_inputs()
    torch.manual_seed(0)
    assert not torch.equal(model(inputs), model(inputs))
    assert torch.equal(model.eval()(inputs), model(inputs))


def test_encoder_pooling_modes():
    lengths, inputs = list(LENGTHS), build_packed_inputs()
    for overrides, pool in (
        ({}, lambda x: x[0]), ({"mixer": {"num_attention_heads": 2, "causal": True}}, lambda x: x[-1]),
        ({"pooling": "mean"}, lambda x: x.mean(0)), ({"pooling": "max"}, lambda x: x.amax(0)),
    ):  # fmt: skip
        model = build_bare_model(**overrides).eval()
        expected = torch.stack([pool(sequence) for sequence in model(inputs).split(lengths)])
        assert_close(model.encoder.pool_tokens(inputs), expected)


def test_max_pool_grad_goes_to_the_maximum():
    x = torch.tensor([[1.0, 5.0], [3.0, 2.0], [-4.0, -1.0]], requires_grad=True)
    Layout.from_lengths([2, 1]).max_pool(x).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))


def test_broadcast_gives_every_token_the_row_of_its_sequence():
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    packed, padded = Layout.from_lengths([2, 1]), PaddedLayout.from_mask(torch.tensor([[True, True], [True, False]]))
    assert packed.broadcast(rows).tolist() == [[1, 2], [1, 2], [3, 4]]
    assert padded.broadcast(rows).tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]  # padding is part of its row
    assert padded.broadcast(rows[:, 0]).tolist() == [1, 1, 3, 3]


def test_residual_none_needs_norm_none():
    with pytest.raises(UserError, match=r"set model\.norm=none"):
        build_bare_model(norm="post", residual="none")


def test_encoder_config_reads_old_config_files():
    """Config files without newer fields still give the same model."""
    fields = to_dict(from_dict(EncoderConfig, "bert-tiny"))
    newer_fields = {"residual", "embeddings", "pooling", "embedding_norm"}
    old_fields = {name: value for name, value in fields.items() if name not in newer_fields}
    assert from_dict(EncoderConfig, old_fields) == EncoderConfig.presets()["bert-tiny"]
    names = set(build_model(ModelConfig(encoder=from_dict(EncoderConfig, old_fields), vocab_size=9), 0).state_dict())
    block = {f"encoder.stack.layers.0.{module}.{parameter}" for module in (
        "mixer.projections.qkv", "mixer.projections.output", "mixer_norm",
        "feedforward.intermediate", "feedforward.output", "feedforward_norm",
    ) for parameter in ("weight", "bias")}  # fmt: skip
    others = {
        f"encoder.{module}.weight"
        for module in (
            "word_embeddings",
            "position_embeddings",
            "token_type_embeddings",
            "embedding_norm",
            "pooler",
        )
    }
    actual = {name for name in names if "layers.1" not in name}
    assert actual == block | others | {"encoder.embedding_norm.bias", "encoder.pooler.bias"}
