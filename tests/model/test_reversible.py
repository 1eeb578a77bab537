"""Blocks that can be run backwards: the same numbers and gradients as ever, and memory that depth does not touch."""

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
SMALL = {"layers": 4, "width": 32, "mixer": {"heads": 4}, "feedforward": {"inner": 40}, "positions": 64, "norm": "before",
         "reversible": True, "deviation": 0.2, "dropout": 0.2}  # fmt: skip
MIXERS = {
    "dense": {"heads": 4, "dropout": 0.1},
    "hashed": {"kind": "hashed", "heads": 4, "buckets": 4, "rounds": 2, "reach": 4},
    "window": {"kind": "window", "heads": 4, "reach": [4]},
    "lstm": {"kind": "lstm"},
    "convolution": {"kind": "convolution"},
    "recurrent": {"kind": "recurrent", "heads": 4, "shared": True},
    "adaptive": {"kind": "adaptive", "heads": 4, "longest": 48, "ramp": 8},
}


def model(**encoder):
    config = from_dict(EncoderConfig, {**SMALL, **encoder})
    return build_model(ModelConfig(encoder=config, vocabulary=60), 0).train()


def inputs(lengths=LENGTHS, **more):
    return Inputs(torch.arange(sum(lengths)) % 60, Layout.from_lengths(lengths), **more)


def learnt(made, given, seed=1, kept=None):
    """What leaves the model, and the gradients of all weights; the same dice every time."""
    torch.manual_seed(seed)
    made.zero_grad()
    out = made(given, kept)
    torch.manual_seed(2)
    (out * torch.randn(out.shape).to(out.device)).sum().backward()
    return out.detach(), {name: weight.grad for name, weight in made.named_parameters() if weight.grad is not None}


def plainly(monkeypatch, made, given, seed=1, kept=None):
    with monkeypatch.context() as patch:
        patch.setattr(ReversiblePass, "forward", ReversiblePass.forward_autograd)
        return learnt(made, given, seed, kept)


@pytest.mark.parametrize("reversible", [True, "halves"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_gradients_are_those_of_the_same_stack_run_plainly(mixer, reversible, monkeypatch):
    made = model(mixer=MIXERS[mixer], reversible=reversible)
    (ours, found), (wanted, plain) = learnt(made, inputs()), plainly(monkeypatch, made, inputs())
    assert_close(ours, wanted, atol=1e-5, rtol=1e-5)  # torch may take other kernels where no gradient is asked for
    assert found.keys() == plain.keys()
    assert not torch.allclose(learnt(made, inputs(), seed=3)[0], ours, atol=1e-2)  # dice were thrown
    assert {name for name in found if "blocks" in name} == {name for name, _ in made.named_parameters() if "blocks" in name}
    largest = max(float(slope.abs().max()) for slope in plain.values())
    for name in found:
        assert_close(found[name] / largest, plain[name] / largest, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("groups", [1, 2])
def test_shared_blocks_learn_from_every_call(groups, monkeypatch):
    made = model(groups=groups)
    found, plain = learnt(made, inputs())[1], plainly(monkeypatch, made, inputs())[1]
    for name in plain:
        assert_close(found[name], plain[name], atol=1e-4, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    "mixer", [MIXERS["recurrent"], {"heads": 4, "distance": {"kind": "relative", "buckets": 8}}, {"heads": 4}]
)
def test_weights_of_another_block_learn_where_states_are_looked_at(mixer, monkeypatch):
    made = model(mixer=mixer)
    found, plain = learnt(made, inputs(), kept=[])[1], plainly(monkeypatch, made, inputs(), kept=[])[1]
    assert found.keys() == plain.keys()
    for name in plain:
        assert_close(found[name], plain[name], atol=1e-4, rtol=1e-4, msg=name)


def test_the_equations():
    made = model(dropout=0.0).eval()
    x = torch.randn(31, 32)
    one = two = x
    for block in made.encoder.stack.blocks:
        one = one + block.mixer(block.mixer_norm(two, None)[0], inputs().layout)
        two = two + block.feedforward(block.feedforward_norm(one, None)[0])
    wanted = made.encoder.stack.norm((one + two) / 2, None)[0]
    assert_close(made.encoder.stack(x, inputs().layout), wanted, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        assert_close(made.encoder.stack(x, inputs().layout), wanted, atol=1e-5, rtol=1e-5)


def test_halves_stand_side_by_side_and_narrow_tables_enter_both():
    made = model(reversible="halves", embedding=16, dropout=0.0).eval()
    kept = []
    made(inputs(), kept)
    assert torch.equal(*kept[0].chunk(2, -1)) and made.encoder.stack.blocks[0].feedforward.up.in_features == 16
    assert not any("widen" in name for name in made.state_dict())
    assert made.encoder.stack.norm.normalized_shape == (32,)
    wide = model(reversible="halves", embedding=8)
    assert wide.encoder.widen.weight.shape == (32, 8)


def test_states_between_blocks_and_rows_that_are_wanted():
    made, kept = model().eval(), []
    whole = made(inputs(), kept)
    assert [len(state) for state in kept] == [31] * 5
    assert_close(made.encoder.stack.norm(kept[-1], None)[0], whole)
    rows = torch.tensor([3, 30])
    assert_close(made(inputs(wanted=rows)), whole[rows])
    some = []
    assert_close(made(inputs(wanted=rows), some), whole[rows])
    assert [len(state) for state in some] == [31] * 4 + [2]


def test_what_is_remembered_is_the_same(monkeypatch):
    made, memories = model(mixer={"kind": "recurrent", "heads": 4, "remembers": 12}, dropout=0.0), []
    for plain in (False, True):
        memory = SegmentMemory.empty(3, torch.device("cpu"))
        for _ in range(2):
            given = inputs(memory=memory)
            found = (plainly(monkeypatch, made, given) if plain else learnt(made, given))[1]
            memory = memory.advance(given.layout)
        memories.append((memory, found))
    (ours, found), (theirs, plain) = memories
    assert len(ours.layers) == 4
    assert_close(ours.layers, theirs.layers, atol=1e-5, rtol=1e-5)
    for name in plain:
        assert_close(found[name], plain[name], atol=1e-4, rtol=1e-5, msg=name)


def kept_bytes(layers, **more):
    made = model(layers=layers, **more)
    own, sizes = {weight.untyped_storage().data_ptr() for weight in made.parameters()}, {}

    def held(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(held, lambda tensor: tensor):
        out = made(inputs())
    assert out.requires_grad
    return sum(sizes.values())


def test_memory_is_flat_in_depth():
    assert kept_bytes(48) == kept_bytes(6)
    assert kept_bytes(12, reversible=False) > 1.8 * kept_bytes(6, reversible=False)


def test_frozen_parts_get_no_gradient_and_others_do():
    made = model()
    made.encoder.stack.blocks[1].requires_grad_(False)
    made.encoder.tokens.requires_grad_(False)
    found = learnt(made, inputs())[1]
    assert not any(".blocks.1." in name for name in found) and any(".blocks.0." in name for name in found)


def test_the_generator_goes_on_as_if_nothing_had_been_thrown_twice(monkeypatch):
    made = model()
    learnt(made, inputs())
    after = torch.get_rng_state()
    plainly(monkeypatch, made, inputs())
    assert torch.equal(after, torch.get_rng_state())


def test_half_precision_is_that_of_the_way_there(monkeypatch):
    made = model(dropout=0.0)
    with torch.autocast("cpu", torch.bfloat16):
        out = made(inputs())
    out.float().square().sum().backward()  # outside, as trainers do
    ours = [weight.grad.clone() for weight in made.encoder.stack.parameters()]
    made.zero_grad()
    with monkeypatch.context() as patch:
        patch.setattr(ReversiblePass, "forward", ReversiblePass.forward_autograd)
        with torch.autocast("cpu", torch.bfloat16):
            out = made(inputs())
        out.float().square().sum().backward()
    for one, other in zip(ours, made.encoder.stack.parameters(), strict=True):
        assert (one - other.grad).norm() <= 0.02 * other.grad.norm() + 1e-6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"norm": "after"}, "norm=after: set model.norm=before"),
        ({"feedforward": None}, "no feedforward"),
        ({"norm": "none", "residual": "none"}, "no residuals"),
        ({"reversible": "halves", "width": 33, "mixer": {"heads": 3}}, "width of 33 has no halves"),
    ],
)
def test_what_cannot_be_run_backwards_is_refused(settings, words):
    with pytest.raises(UserError, match=words):
        model(**settings)


def test_a_reversible_model_does_not_compile():
    with pytest.raises(UserError, match=r"leave out train\.compile"):
        model().compile_parts()


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ["dense", "hashed", "window"])
def test_dropout_is_replayed_on_a_gpu(mixer, monkeypatch):
    """Seeds of kernels come from the host's generator, torch's own dropout from the device's: both are set back."""
    made, given = model(mixer={**MIXERS[mixer], **({"dropout": 0.0} if mixer == "dense" else {})}).cuda(), inputs().to("cuda")
    results = []
    for plain in (False, True):
        with monkeypatch.context() as patch, torch.autocast("cuda", torch.bfloat16):
            if plain:
                patch.setattr(ReversiblePass, "forward", ReversiblePass.forward_autograd)
            results.append(learnt(made, given))
    (ours, found), (wanted, plain) = results
    assert_close(ours, wanted, atol=0.05, rtol=0.05)
    for name in plain:
        assert (found[name] - plain[name]).norm() <= 0.03 * plain[name].norm() + 1e-5, name
