"""Cross-attention between the two texts of a pair, against torch's own and against a mask over everything."""

import msgspec
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import HeadConfig
from bertsmith.model.heads.cross_attention import CrossAttentionBlock, CrossAttentionHeadConfig, swap_pairs
from bertsmith.model.mixers import AdaptiveSpan, Attention, Longformer, Lstm, Reformer
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig

SHORT, EVEN, LONG = [3, 5, 4, 1, 2, 2], [4, 4, 4, 4], [40, 70, 33, 90]  # the rectangle, its view, a call per sequence
LENGTHS = pytest.mark.parametrize("lengths", [SHORT, EVEN, LONG], ids=["short", "even", "long"])
NORMS = pytest.mark.parametrize("norm", ["before", "after"])


def encoder(norm="before", **settings):
    return EncoderConfig(layers=2, width=16, mixer=Attention(heads=4), feedforward=FeedForwardConfig(inner=32), norm=norm,
                         positions=128, dropout=0.0, deviation=0.2, eps=1e-6, **settings)  # fmt: skip


def model(norm="before", blocks=2):
    made = build_model(
        ModelConfig(encoder=encoder(norm), vocabulary=50, heads={"task": CrossAttentionHeadConfig(outputs=3, blocks=blocks)}), 1
    )
    with torch.random.fork_rng():
        torch.manual_seed(2)
        for parameter in made.parameters():  # biases and norms too, so that none is forgotten unseen
            parameter.data += 0.05 * torch.randn_like(parameter)
    return made.eval()


def tokens(lengths, seed=0):
    return torch.randint(5, 50, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def scored(made, ids, lengths):
    layout = Layout.from_lengths(lengths)
    return made.scores("task", made.heads["task"].read(made(Inputs(ids, layout)), layout))


@LENGTHS
def test_queries_see_the_keys_of_their_number_and_nothing_else(lengths):
    queries, keys = Layout.from_lengths(lengths), Layout.from_lengths(lengths[::-1])
    q, k, v = (torch.randn(sum(lengths), 2, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    mask = queries.seq_id[:, None] == keys.seq_id[None, :]
    wanted = nn.functional.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v)), mask).transpose(0, 1)
    assert_close(queries.attend(q, k, v, keys=keys), wanted, rtol=1e-5, atol=1e-5)


@LENGTHS
def test_swapping_finds_the_other_text_of_each_pair(lengths):
    layout = Layout.from_lengths(lengths)
    other, index = swap_pairs(layout)
    parts = list(torch.arange(sum(lengths)).split(lengths))
    parts[::2], parts[1::2] = parts[1::2], parts[::2]
    assert index.tolist() == torch.cat(parts).tolist()
    assert other.lengths.tolist() == [len(part) for part in parts]


@LENGTHS
def test_a_block_attends_as_torchs_own_attention_does(lengths):
    block, layout = CrossAttentionBlock(encoder()).eval(), Layout.from_lengths(lengths)
    torch_own = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    torch_own.load_state_dict({
        "in_proj_weight": block.project.qkv.weight, "in_proj_bias": block.project.qkv.bias,
        "out_proj.weight": block.project.out.weight, "out_proj.bias": block.project.out.bias,
    })  # fmt: skip
    x = torch.randn(sum(lengths), 16, generator=torch.Generator().manual_seed(3))
    sides, wanted = x.split(lengths), []
    for a, b in zip(sides[::2], sides[1::2], strict=True):
        wanted += [torch_own(a[None], b[None], b[None])[0][0], torch_own(b[None], a[None], a[None])[0][0]]
    assert_close(block.cross_attend(x, layout, *swap_pairs(layout)), torch.cat(wanted), rtol=1e-5, atol=1e-5)


@NORMS
@LENGTHS
def test_a_pair_is_scored_as_by_hand(norm, lengths):
    """The whole head, pair by pair, in plain formulas on both sides."""
    made, layout = model(norm), Layout.from_lengths(lengths)
    ids = tokens(lengths)
    hidden = made(Inputs(ids, layout)).split(lengths)
    rows = [_by_hand(made, a, b) for a, b in zip(hidden[::2], hidden[1::2], strict=True)]
    assert_close(scored(made, ids, lengths), torch.stack(rows), rtol=1e-5, atol=1e-5)


def _by_hand(made, a, b):
    head = made.heads["task"]
    for block in head.blocks:
        a, b = _through(block, a, b), _through(block, b, a)
    u, v = (made.encoder.pool(head.norm(side).mean(0)) for side in (a, b))
    return head.score(torch.cat([u, v, (u - v).abs(), u * v]))


def _through(block, x, other):
    def attended(x, other):
        q, (_, k, v) = block.project(x)[0], block.project(other)
        weights = (torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return block.project.join(torch.einsum("hij,jhd->ihd", weights, v))

    if block.norm_first:
        x = x + attended(block.mixer_norm(x), block.mixer_norm(other))
        return x + block.feedforward(block.feedforward_norm(x))
    x = block.mixer_norm(x + attended(x, other))
    return block.feedforward_norm(x + block.feedforward(x))


@LENGTHS
def test_pairs_know_nothing_of_one_another(lengths):
    made, ids = model(), tokens(lengths)
    others = ids.clone()
    others[sum(lengths[:2]) :] = 7
    assert_close(scored(made, ids, lengths)[0], scored(made, others, lengths)[0])
    assert not torch.allclose(scored(made, ids, lengths)[1], scored(made, others, lengths)[1])


@NORMS
def test_gradients_reach_every_weight(norm):
    made = model(norm)
    scored(made, tokens(LONG), LONG).square().sum().backward()
    words = set(tokens(LONG).tolist())
    for name, parameter in made.named_parameters():
        grad = parameter.grad
        assert grad is not None and torch.isfinite(grad).all(), name
        assert grad.abs().sum() > 0, name
    assert made.encoder.tokens.weight.grad.abs().sum(1).nonzero().flatten().tolist() == sorted(words)


def test_either_text_changes_the_score_and_so_does_their_order():
    made, ids = model(), tokens([5, 5])
    base = scored(made, ids, [5, 5])
    for place in (2, 7):
        changed = ids.clone()
        changed[place] = 6
        assert not torch.allclose(scored(made, changed, [5, 5]), base)
    assert not torch.allclose(scored(made, ids.roll(5), [5, 5]), base)


def test_the_head_is_a_member_of_the_union():
    head = CrossAttentionHeadConfig(outputs=2, blocks=3)
    assert from_dict(HeadConfig, {"kind": "cross", **to_dict(head)}) == head
    assert len(build_model(ModelConfig(encoder=encoder(), vocabulary=9, heads={"task": head}), 0).heads["task"].blocks) == 3


@pytest.mark.gpu
@LENGTHS
def test_flash_attention_takes_two_layouts(lengths):
    queries, keys = Layout.from_lengths(lengths).to("cuda"), Layout.from_lengths(lengths[::-1]).to("cuda")
    q, k, v = (torch.randn(sum(lengths), 2, 64, generator=torch.Generator().manual_seed(n)).cuda() for n in range(3))
    wanted = queries.attend(q, k, v, keys=keys)  # float32: the rectangle
    found = queries.attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), keys=keys)
    assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "mixer", [Longformer(heads=4, reach=(2,)), Reformer(heads=4), AdaptiveSpan(heads=4, longest=16), Lstm()], ids=str
)
def test_the_texts_of_a_pair_may_be_read_by_any_mixer(mixer):
    config = msgspec.structs.replace(encoder(), mixer=mixer)
    made = build_model(
        ModelConfig(encoder=config, vocabulary=50, heads={"task": CrossAttentionHeadConfig(outputs=3, blocks=1)}), 1
    ).eval()
    together = scored(made, tokens(SHORT), SHORT)
    assert_close(scored(made, tokens(SHORT)[:8], SHORT[:2]), together[:1], rtol=1e-5, atol=1e-5)


def test_a_model_without_feed_forwards_is_refused():
    config = msgspec.structs.replace(encoder(), feedforward=None)
    with pytest.raises(UserError, match=r"set task\.pair=joint, or both"):
        build_model(
            ModelConfig(encoder=config, vocabulary=50, heads={"task": CrossAttentionHeadConfig(outputs=3, blocks=1)}), 1
        )
