"""Scores that lean on distance: as slow loops have them, on every path, and one token after another."""

import msgspec
import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig, LayerTypes
from bertsmith.model.generation.kv_cache import KVCacheDecoder, UncachedDecoder
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, T5BiasConfig, alibi_slopes, attend_with_bias, flex_attend
from bertsmith.model.transformer import Stack

KINDS = [AlibiConfig(), T5BiasConfig(buckets=8, furthest=12)]
LENGTHS = {"rectangle": (17, 5, 20, 1, 23), "one by one": (60, 33, 70), "even": (12, 12)}
kinds = pytest.mark.parametrize("kind", KINDS, ids=["alibi", "relative"])
every_path = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
both_ways = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


def apart_of(kind, causal=False, heads=3):
    torch.manual_seed(3)
    apart = kind.build(heads, causal)
    for weight in apart.parameters():
        torch.nn.init.normal_(weight)
    return apart


def three(lengths, heads=3, width=8):
    torch.manual_seed(4)
    return torch.randn(3, sum(lengths), heads, width).requires_grad_()


def slow(q, k, v, layout, apart, causal):
    """A loop over queries: every score by itself."""
    out = []
    for i in range(len(q)):
        keys = [
            j
            for j in range(len(q))
            if layout.owner[i] == layout.owner[j] and not (causal and layout.place[j] > layout.place[i])
        ]
        leaning = torch.stack([apart(layout.place[j] - layout.place[i]) for j in keys], -1)
        scores = torch.einsum("hd,jhd->hj", q[i], k[keys]) / q.shape[-1] ** 0.5 + leaning
        out.append(torch.einsum("hj,jhd->hd", scores.softmax(-1), v[keys]))
    return torch.stack(out)


@kinds
@every_path
@both_ways
def test_every_path_agrees_with_a_loop_there_and_back(kind, lengths, causal):
    apart, given, layout = apart_of(kind, causal), three(lengths), Layout.from_lengths(lengths)
    weights = [given, *apart.parameters()]
    results = []
    for attend in (attend_with_bias, slow):
        out = attend(*given, layout, apart, causal)
        results.append([out, *torch.autograd.grad(out.square().sum(), weights)])
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called")
@kinds
@both_ways
def test_flex_attention_on_a_gpu_is_told_the_same(kind, causal):
    """Its mask and its scores, which a CPU computes whole."""
    lengths = LENGTHS["rectangle"]
    apart, (q, k, v), layout = apart_of(kind, causal), three(lengths, width=16).detach(), Layout.from_lengths(lengths)
    with torch.no_grad():
        ours = flex_attend(q, k, v, layout, apart.row(layout.max_seqlen, q.device), causal)
        assert_close(ours, attend_with_bias(q, k, v, layout, apart, causal), atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@kinds
@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_attention_agrees_with_the_rectangle_there_and_back(kind, causal, dtype):
    lengths = (128, 33, 300, 1, 77)
    apart, layout = apart_of(kind, causal).cuda(), Layout.from_lengths(lengths)
    given = three(lengths, width=32).detach()
    results = []
    for device, numbers in (("cpu", torch.float32), ("cuda", dtype)):
        apart = apart.to(device)
        some = given.to(device, numbers).requires_grad_()
        out = attend_with_bias(*some, layout.to(device), apart, causal)
        found = [out, *torch.autograd.grad(out.float().square().sum(), [some, *apart.parameters()])]
        results.append([one.float().cpu() for one in found])
    for exact, other in zip(*results, strict=True):
        assert (exact - other).norm() / exact.norm() < (0.02 if dtype == torch.bfloat16 else 1e-3)


@kinds
def test_prefixes_see_each_other_and_what_follows_sees_all_before_it(kind):
    for lengths, prefix in (((9, 6, 12), (4, 6, 1)), ((60, 33, 70), (20, 1, 69))):
        apart, (q, k, v) = apart_of(kind), three(lengths).detach()
        layout = Layout.from_lengths(lengths, prefix)
        ours, begin = attend_with_bias(q, k, v, layout, apart, causal=True), 0
        for length, first in zip(lengths, prefix, strict=True):
            for row in (0, first - 1, length - 1):
                end = begin + max(first, row + 1)
                alone = slow(*(t[begin:end] for t in (q, k, v)), Layout.from_lengths([end - begin]), apart, False)
                assert_close(ours[begin + row], alone[row], atol=1e-5, rtol=1e-5)
            begin += length


def test_slopes_are_those_of_the_paper():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(3) == [1 / 16, 1 / 256, 1 / 4]  # of 2, then the first of every second of 4


def model_of(kind, **more):
    mixer = Attention(heads=4, causal=True, distance=kind)
    config = EncoderConfig(layers=3, width=32, mixer=mixer, positions=40, table=False, segments=0, **more)
    heads = {"words": LMHeadConfig(transform=False, bias=False)}
    model = build_model(ModelConfig(encoder=config, vocabulary=50, heads=heads), 0).eval()
    for name, weight in model.named_parameters():
        if "distance" in name:
            torch.nn.init.normal_(weight)
    return model


@kinds
def test_one_token_after_another_scores_as_the_whole_text_does(kind):
    model = model_of(kind)
    prompts = [torch.arange(7), torch.arange(3, 6), torch.arange(20, 32)]
    with torch.no_grad():
        (state, cached), (slow_state, whole) = (
            stepper.prefill(prompts) for stepper in (KVCacheDecoder(model, 4), UncachedDecoder(model))
        )
        for token in (4, 9, 2):
            assert_close(cached, whole, atol=1e-5, rtol=1e-5)
            tokens = torch.full((3,), token)
            (state, cached), (slow_state, whole) = (
                KVCacheDecoder(model, 4).decode_step(state, tokens),
                UncachedDecoder(model).decode_step(slow_state, tokens),
            )
    assert_close(cached, whole, atol=1e-5, rtol=1e-5)


def test_layers_have_one_table_of_distances_or_one_each():
    tables = [name for name in model_of(T5BiasConfig()).state_dict() if "distance" in name]
    assert tables == ["encoder.stack.blocks.0.mixer.distance.table.weight"]
    own = [name for name in model_of(T5BiasConfig(shared=False)).state_dict() if "distance" in name]
    assert len(own) == 3
    assert not [name for name in model_of(AlibiConfig()).state_dict() if "distance" in name]


def test_a_shared_table_learns_from_every_layer():
    model, apart = model_of(T5BiasConfig()), model_of(T5BiasConfig(shared=False))
    held = model.state_dict()
    table = held["encoder.stack.blocks.0.mixer.distance.table.weight"]
    apart.load_state_dict({name: held.get(name, table) for name in apart.state_dict()})
    inputs = Inputs(torch.arange(30), Layout.from_lengths([11, 19]))
    for one in (model, apart):
        one(inputs).square().sum().backward()
    slopes_of = [block.mixer.distance.table.weight.grad for block in apart.encoder.stack.blocks]
    assert_close(model.encoder.stack.blocks[0].mixer.distance.table.weight.grad, sum(slopes_of), atol=1e-4, rtol=1e-4)


def test_a_recipe_names_it_by_one_word():
    given = {"mixer": {"distance": "relative"}, "table": False}
    assert from_dict(EncoderConfig, given).mixer == Attention(distance=T5BiasConfig())
    with pytest.raises(UserError, match=r"not both; leave out model\.mixer\.rotary or distance"):
        Attention(heads=4, rotary=100.0, distance=AlibiConfig()).build(32)
    with pytest.raises(UserError, match="a multiple of 4"):
        msgspec.structs.replace(T5BiasConfig(), buckets=6).build(4, False)


@pytest.mark.parametrize(
    "other", [{"heads": 4}, {"distance": T5BiasConfig(buckets=16)}, {"distance": T5BiasConfig(shared=False)}], ids=str
)
def test_blocks_of_another_kind_have_a_table_of_their_own(other):
    mixer = Attention(heads=2, distance=T5BiasConfig())
    kinds = LayerTypes(every=2, mixer=msgspec.structs.replace(mixer, **other))
    stack = Stack(EncoderConfig(layers=3, width=16, mixer=mixer, others=kinds))
    first, second, third = (block.mixer for block in stack.blocks)
    assert third.apart is first.apart and second.apart is not first.apart
    assert second.apart.table.weight.shape == (kinds.mixer.distance.buckets, kinds.mixer.heads)
    stack(torch.randn(9, 16), Layout.from_lengths([9]))
