"""Reversible blocks: outputs and gradients equal those of ordinary autograd, and memory does not grow with depth."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers.reformer.reversible import ReversiblePass
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.segment_memory import SegmentMemory

LENGTHS = (9, 21, 1)
SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "mixer": {"num_attention_heads": 4},
    "feedforward": {"intermediate_size": 40},
    "max_position_embeddings": 64,
    "norm": "pre",
    "reversible": True,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.2,
}
MIXERS = {
    "attention": {"num_attention_heads": 4, "attention_dropout": 0.1},
    "reformer": {"kind": "reformer", "num_attention_heads": 4, "num_buckets": 4, "num_hashes": 2, "bucket_window": 4},
    "longformer": {"kind": "longformer", "num_attention_heads": 4, "attention_window": [8]},
    "lstm": {"kind": "lstm"},
    "convolution": {"kind": "cnn"},
    "transformer-xl": {"kind": "transformer-xl", "num_attention_heads": 4, "tie_biases": True},
    "adaptive": {"kind": "adaptive-span", "num_attention_heads": 4, "max_span": 48, "span_ramp": 8},
}


def build_reversible_model(**overrides):
    config = from_dict(EncoderConfig, {**SMALL, **overrides})
    return build_model(ModelConfig(encoder=config, vocab_size=60), 0).train()


def make_inputs(lengths=LENGTHS, **options):
    return Inputs(torch.arange(sum(lengths)) % 60, Layout.from_lengths(lengths), **options)


def outputs_and_grads(model, inputs, seed=1, all_hidden_states=None):
    """The output of the model and the gradients of all weights, with the same random numbers every time."""
    torch.manual_seed(seed)
    model.zero_grad()
    out = model(inputs, all_hidden_states)
    torch.manual_seed(2)
    (out * torch.randn(out.shape).to(out.device)).sum().backward()
    return out.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def run_with_autograd(monkeypatch, model, inputs, seed=1, all_hidden_states=None):
    with monkeypatch.context() as patch:
        patch.setattr(ReversiblePass, "forward", ReversiblePass.forward_autograd)
        return outputs_and_grads(model, inputs, seed, all_hidden_states)


@pytest.mark.parametrize("reversible", [True, "halves"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_reversible_grads_match_autograd(mixer, reversible, monkeypatch):
    model = build_reversible_model(mixer=MIXERS[mixer], reversible=reversible)
    (out, grads), (expected, expected_grads) = (
        outputs_and_grads(model, make_inputs()),
        run_with_autograd(monkeypatch, model, make_inputs()),
    )
    assert_close(out, expected, atol=1e-5, rtol=1e-5)  # torch may choose other kernels without grad
    assert grads.keys() == expected_grads.keys()
    assert not torch.allclose(outputs_and_grads(model, make_inputs(), seed=3)[0], out, atol=1e-2)  # dropout is on
    assert {name for name in grads if "layers" in name} == {name for name, _ in model.named_parameters() if "layers" in name}
    largest = max(float(grad.abs().max()) for grad in expected_grads.values())
    for name in grads:
        assert_close(grads[name] / largest, expected_grads[name] / largest, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("groups", [1, 2])
def test_reversible_shared_blocks_sum_grads(groups, monkeypatch):
    model = build_reversible_model(num_hidden_groups=groups)
    grads, expected = outputs_and_grads(model, make_inputs())[1], run_with_autograd(monkeypatch, model, make_inputs())[1]
    for name in expected:
        assert_close(grads[name], expected[name], atol=1e-4, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    "mixer",
    [
        MIXERS["transformer-xl"],
        {"num_attention_heads": 4, "position_bias": {"kind": "t5", "num_buckets": 8}},
        {"num_attention_heads": 4},
    ],
)
def test_reversible_tied_weights_get_grads_with_all_hidden_states(mixer, monkeypatch):
    model = build_reversible_model(mixer=mixer)
    grads, expected = (
        outputs_and_grads(model, make_inputs(), all_hidden_states=[])[1],
        run_with_autograd(monkeypatch, model, make_inputs(), all_hidden_states=[])[1],
    )
    assert grads.keys() == expected.keys()
    for name in expected:
        assert_close(grads[name], expected[name], atol=1e-4, rtol=1e-4, msg=name)


def test_reversible_stack_matches_equations():
    model = build_reversible_model(hidden_dropout_prob=0.0).eval()
    x = torch.randn(31, 32)
    x1 = x2 = x
    for block in model.encoder.stack.layers:
        x1 = x1 + block.mixer(block.mixer_norm(x2, None)[0], make_inputs().layout)
        x2 = x2 + block.feedforward(block.feedforward_norm(x1, None)[0])
    expected = model.encoder.stack.final_norm((x1 + x2) / 2, None)[0]
    assert_close(model.encoder.stack(x, make_inputs().layout), expected, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        assert_close(model.encoder.stack(x, make_inputs().layout), expected, atol=1e-5, rtol=1e-5)


def test_reversible_halves_are_concatenated_and_share_narrow_embeddings():
    model = build_reversible_model(reversible="halves", embedding_size=16, hidden_dropout_prob=0.0).eval()
    all_hidden_states = []
    model(make_inputs(), all_hidden_states)
    assert (
        torch.equal(*all_hidden_states[0].chunk(2, -1))
        and model.encoder.stack.layers[0].feedforward.intermediate.in_features == 16
    )
    assert not any("embedding_projection" in name for name in model.state_dict())
    assert model.encoder.stack.final_norm.normalized_shape == (32,)
    projected_model = build_reversible_model(reversible="halves", embedding_size=8)
    assert projected_model.encoder.embedding_projection.weight.shape == (32, 8)


def test_reversible_hidden_states_and_output_indices():
    model, all_hidden_states = build_reversible_model().eval(), []
    expected = model(make_inputs(), all_hidden_states)
    assert [len(state) for state in all_hidden_states] == [31] * 5
    assert_close(model.encoder.stack.final_norm(all_hidden_states[-1], None)[0], expected)
    indices = torch.tensor([3, 30])
    assert_close(model(make_inputs(output_indices=indices)), expected[indices])
    selected_states = []
    assert_close(model(make_inputs(output_indices=indices), selected_states), expected[indices])
    assert [len(state) for state in selected_states] == [31] * 4 + [2]


def test_reversible_segment_memory_matches_autograd(monkeypatch):
    model, results = (
        build_reversible_model(
            mixer={"kind": "transformer-xl", "num_attention_heads": 4, "mem_len": 12}, hidden_dropout_prob=0.0
        ),
        [],
    )
    for use_autograd in (False, True):
        memory = SegmentMemory.empty(3, torch.device("cpu"))
        for _ in range(2):
            inputs = make_inputs(state=memory)
            grads = (run_with_autograd(monkeypatch, model, inputs) if use_autograd else outputs_and_grads(model, inputs))[1]
            memory = memory.advance(inputs.layout)
        results.append((memory, grads))
    (memory_reversible, grads), (memory_autograd, expected_grads) = results
    assert len(memory_reversible.layers) == 4
    assert_close(memory_reversible.layers, memory_autograd.layers, atol=1e-5, rtol=1e-5)
    for name in expected_grads:
        assert_close(grads[name], expected_grads[name], atol=1e-4, rtol=1e-5, msg=name)


def saved_bytes(num_layers, **overrides):
    model = build_reversible_model(num_hidden_layers=num_layers, **overrides)
    parameter_pointers, sizes = {weight.untyped_storage().data_ptr() for weight in model.parameters()}, {}

    def record(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_pointers:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        out = model(make_inputs())
    assert out.requires_grad
    return sum(sizes.values())


def test_reversible_saved_memory_is_constant_in_depth():
    assert saved_bytes(48) == saved_bytes(6)
    assert saved_bytes(12, reversible=False) > 1.8 * saved_bytes(6, reversible=False)


def test_reversible_frozen_parameters_get_no_grad():
    model = build_reversible_model()
    model.encoder.stack.layers[1].requires_grad_(False)
    model.encoder.word_embeddings.requires_grad_(False)
    grads = outputs_and_grads(model, make_inputs())[1]
    assert not any(".layers.1." in name for name in grads) and any(".layers.0." in name for name in grads)


def test_reversible_recompute_leaves_rng_state_unchanged(monkeypatch):
    model = build_reversible_model()
    outputs_and_grads(model, make_inputs())
    after = torch.get_rng_state()
    run_with_autograd(monkeypatch, model, make_inputs())
    assert torch.equal(after, torch.get_rng_state())


def test_reversible_backward_uses_autocast_of_forward(monkeypatch):
    model = build_reversible_model(hidden_dropout_prob=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(make_inputs())
    out.float().square().sum().backward()  # outside autocast, as trainers do
    grads = [weight.grad.clone() for weight in model.encoder.stack.parameters()]
    model.zero_grad()
    with monkeypatch.context() as patch:
        patch.setattr(ReversiblePass, "forward", ReversiblePass.forward_autograd)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(make_inputs())
        out.float().square().sum().backward()
    for grad, parameter in zip(grads, model.encoder.stack.parameters(), strict=True):
        assert (grad - parameter.grad).norm() <= 0.02 * parameter.grad.norm() + 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "post"}, "norm=post; set model.norm=pre"),
        ({"feedforward": None}, "no feedforward"),
        ({"norm": "none", "residual": "none"}, "no residuals"),
        ({"reversible": "halves", "hidden_size": 33, "mixer": {"num_attention_heads": 3}}, "even model.hidden_size, not 33"),
    ],
)
def test_reversible_refuses_impossible_configs(settings, message):
    with pytest.raises(UserError, match=message):
        build_reversible_model(**settings)


def test_reversible_refuses_torch_compile():
    with pytest.raises(UserError, match=r"leave out train\.compile"):
        build_reversible_model().compile_parts()


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ["attention", "reformer", "longformer"])
def test_reversible_dropout_is_replayed_on_gpu(mixer, monkeypatch):
    """Seeds of our kernels come from the CPU generator, torch's dropout from the GPU's: both are restored."""
    model, inputs = (
        build_reversible_model(mixer={**MIXERS[mixer], **({"hidden_dropout_prob": 0.0} if mixer == "dense" else {})}).cuda(),
        make_inputs().to("cuda"),
    )
    results = []
    for use_autograd in (False, True):
        with monkeypatch.context() as patch, torch.autocast("cuda", torch.bfloat16):
            if use_autograd:
                patch.setattr(ReversiblePass, "forward", ReversiblePass.forward_autograd)
            results.append(outputs_and_grads(model, inputs))
    (out, grads), (expected, expected_grads) = results
    assert_close(out, expected, atol=0.05, rtol=0.05)
    for name in expected_grads:
        assert (grads[name] - expected_grads[name]).norm() <= 0.03 * expected_grads[name].norm() + 1e-5, name
