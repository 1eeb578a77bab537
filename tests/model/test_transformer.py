"""Transformer stack against reference formulas: gradient checkpointing, shared blocks, hidden states, output indices."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from tests.support.plain_encoder import INNER, LAYERS, LENGTHS, PLAIN_ENCODER, WIDTH, build_packed_inputs, layer_norm

MODERN = {
    **PLAIN_ENCODER,
    "norm": "pre",
    "norm_bias": False,
    "position_embedding_type": "none",
    "mixer": {"num_attention_heads": 2, "rope_theta": 50.0, "bias": False},
    "feedforward": {"intermediate_size": INNER, "glu": True, "bias": False},
}
ENCODERS = {
    "post": PLAIN_ENCODER, "pre": {**PLAIN_ENCODER, "norm": "pre"}, "modern": MODERN,
    "shared": {**MODERN, "num_hidden_groups": 2}, "modern post": {**MODERN, "norm": "post"},
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", ENCODERS)


def build_small_model(kind, **overrides):
    model = build_model(
        ModelConfig(encoder=from_dict(EncoderConfig, {**ENCODERS[kind], **overrides}), vocab_size=50), 0
    ).train()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:  # gains of 1 and biases of 0 would hide a missing or misplaced norm
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3 + float("norm" in name and "weight" in name))
    return model


def reference_feed_forward(block, x):
    """W2 gelu(W1 x), or W2 (gelu(W1 x) * W3 x) where it is gated."""
    up, down, inner = block.feedforward.intermediate, block.feedforward.output, x @ block.feedforward.intermediate.weight.T
    inner = inner if up.bias is None else inner + up.bias
    gate, value = (inner[:, :INNER], inner[:, INNER:]) if inner.shape[1] == 2 * INNER else (inner, 1.0)
    out = (0.5 * gate * (1 + torch.erf(gate / 2**0.5)) * value) @ down.weight.T
    return out if down.bias is None else out + down.bias


def reference_forward(model, inputs):
    """All hidden states from the embeddings on, and the output."""
    encoder, layout = model.encoder, inputs.layout
    x = encoder.word_embeddings.weight[inputs.input_ids] + encoder.token_type_embeddings.weight[0]
    x = layer_norm(
        encoder.embedding_norm,
        x if encoder.position_embeddings is None else x + encoder.position_embeddings.weight[layout.position],
    )
    states = [x]
    for block_index in encoder.stack.group_indices:
        block = encoder.stack.layers[block_index]
        if encoder.config.norm == "pre":
            x = x + block.mixer(layer_norm(block.mixer_norm, x), layout)
            x = x + reference_feed_forward(block, layer_norm(block.feedforward_norm, x))
        else:
            x = layer_norm(block.mixer_norm, x + block.mixer(x, layout))
            x = layer_norm(block.feedforward_norm, x + reference_feed_forward(block, x))
        states.append(x)
    return states, layer_norm(encoder.stack.final_norm, x) if encoder.config.norm == "pre" else x


@every_kind
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("return_states", [False, True])
def test_transformer_hidden_states_and_grads_match_reference(kind, recompute, return_states):
    model, inputs, all_hidden_states = build_small_model(kind), build_packed_inputs(), []
    model.encoder.stack.gradient_checkpointing = recompute
    states, expected = reference_forward(model, inputs)
    out = model(inputs, all_hidden_states) if return_states else model(inputs)
    assert_close(out, expected, atol=1e-5, rtol=1e-5)
    if return_states:
        assert len(all_hidden_states) == LAYERS + 1
        for actual, reference in zip(all_hidden_states, states, strict=True):
            assert_close(actual, reference, atol=1e-5, rtol=1e-5)
    grad_output = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    parameters = [weight for name, weight in model.named_parameters() if "pooler" not in name]
    for actual, reference in zip(
        torch.autograd.grad(out, parameters, grad_output), torch.autograd.grad(expected, parameters, grad_output), strict=True
    ):
        assert_close(actual, reference, atol=2e-4, rtol=1e-4)


@every_kind
def test_transformer_eval_mode_is_without_dropout(kind):
    model, inputs = build_small_model(kind, hidden_dropout_prob=0.2), build_packed_inputs()
    assert_close(model.eval()(inputs), reference_forward(model, inputs)[1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model.train()(inputs), model.eval()(inputs), atol=1e-2)


@pytest.mark.parametrize("kind", ["post", "pre", "modern"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradient_checkpointing_and_hidden_states_keep_dropout_masks(kind, recompute):
    model, inputs, results = build_small_model(kind, hidden_dropout_prob=0.2), build_packed_inputs(), []
    for all_hidden_states, checkpointing in ((None, False), ([], recompute), (None, recompute)):
        model.encoder.stack.gradient_checkpointing = checkpointing
        torch.manual_seed(7)
        out = model(inputs, all_hidden_states)
        results.append((out, *torch.autograd.grad(out.square().sum(), list(model.encoder.stack.parameters()))))
    for other in results[1:]:
        for expected, actual in zip(results[0], other, strict=True):
            assert_close(expected, actual, atol=1e-4, rtol=1e-4)


@every_kind
@pytest.mark.parametrize("recompute", [False, True])
def test_output_indices_select_rows_in_order(kind, recompute):
    model, inputs = build_small_model(kind), build_packed_inputs()
    model.encoder.stack.gradient_checkpointing = recompute
    for rows in ([0], [56, 3, 3, 20], []):
        expected, all_hidden_states = torch.tensor(rows, dtype=torch.long), []
        selected = model(replace(inputs, output_indices=expected))
        assert_close(selected, model(inputs)[expected])
        assert_close(model(replace(inputs, output_indices=expected), all_hidden_states), selected)
        assert [len(state) for state in all_hidden_states] == [sum(LENGTHS)] * LAYERS + [len(rows)]


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu", "silu"])
@pytest.mark.parametrize("bias", [False, True])
def test_gated_feed_forward_matches_formula(activation, bias):
    torch.manual_seed(0)
    layer, x = (
        FeedForwardConfig(intermediate_size=INNER, hidden_act=activation, glu=True, bias=bias).build(WIDTH),
        torch.randn(11, WIDTH),
    )
    gate, value = F.linear(x, layer.intermediate.weight[:INNER]), F.linear(x, layer.intermediate.weight[INNER:])
    if bias:
        gate, value = gate + layer.intermediate.bias[:INNER], value + layer.intermediate.bias[INNER:]
    activations = {"gelu": F.gelu, "gelu-tanh": lambda t: F.gelu(t, approximate="tanh"), "relu": F.relu, "silu": F.silu}
    activated = activations[activation](gate)
    assert_close(layer(x), F.linear(activated * value, layer.output.weight, layer.output.bias))


def count_stack_parameters(model):
    return sum(weight.numel() for weight in model.encoder.stack.parameters())


def test_transformer_without_biases_has_none_in_the_stack():
    model = build_small_model("modern")
    assert not [name for name, _ in model.encoder.stack.named_parameters() if "bias" in name]
    assert not [name for name, weight in model.named_parameters() if weight.ndim == 1 and "norm" in name and "bias" in name]
    assert count_stack_parameters(model) == LAYERS * (4 * WIDTH**2 + 3 * INNER * WIDTH + 2 * WIDTH) + WIDTH
    assert count_stack_parameters(build_small_model("shared")) == 2 * (4 * WIDTH**2 + 3 * INNER * WIDTH + 2 * WIDTH) + WIDTH
    assert count_stack_parameters(build_small_model("modern post")) == count_stack_parameters(model) - WIDTH  # no final norm


def test_transformer_parameter_counts_of_options():
    plain = count_stack_parameters(build_small_model("post"))
    assert plain == LAYERS * (4 * WIDTH**2 + 4 * WIDTH + 2 * INNER * WIDTH + INNER + WIDTH + 4 * WIDTH)
    assert (
        plain - count_stack_parameters(build_small_model("post", mixer={"num_attention_heads": 2, "bias": False}))
        == LAYERS * 4 * WIDTH
    )
    assert plain - count_stack_parameters(
        build_small_model("post", feedforward={"intermediate_size": INNER, "bias": False})
    ) == LAYERS * (INNER + WIDTH)
    assert plain - count_stack_parameters(build_small_model("post", norm_bias=False)) == LAYERS * 2 * WIDTH
    assert count_stack_parameters(
        build_small_model("post", feedforward={"intermediate_size": INNER, "glu": True})
    ) - plain == LAYERS * INNER * (WIDTH + 1)
    assert count_stack_parameters(build_small_model("post", mixer={"num_attention_heads": 2, "rope_theta": 10.0})) == plain
    assert count_stack_parameters(build_small_model("pre")) == plain + 2 * WIDTH
    assert build_small_model("post", position_embedding_type="none").encoder.position_embeddings is None
