"""Cross-attention between the two texts of a pair: against nn.MultiheadAttention and against a dense mask."""

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

SHORT, EVEN, LONG = [3, 5, 4, 1, 2, 2], [4, 4, 4, 4], [40, 70, 33, 90]  # padded, padding is a view, one SDPA call per sequence
LENGTHS = pytest.mark.parametrize("lengths", [SHORT, EVEN, LONG], ids=["short", "even", "long"])
NORMS = pytest.mark.parametrize("norm", ["pre", "post"])


def small_encoder_config(norm="pre", **settings):
    return EncoderConfig(
        num_hidden_layers=2,
        hidden_size=16,
        mixer=Attention(num_attention_heads=4),
        feedforward=FeedForwardConfig(intermediate_size=32),
        norm=norm,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        initializer_range=0.2,
        layer_norm_eps=1e-6,
        **settings,
    )


def build_small_model(norm="pre", blocks=2):
    model = build_model(
        ModelConfig(
            encoder=small_encoder_config(norm),
            vocab_size=50,
            heads={"task": CrossAttentionHeadConfig(outputs=3, blocks=blocks)},
        ),
        1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(2)
        for parameter in model.parameters():  # biases and norms too, so that leaving one out shows
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


def random_ids(lengths, seed=0):
    return torch.randint(5, 50, (sum(lengths),), generator=torch.Generator().manual_seed(seed))


def compute_logits(model, ids, lengths):
    layout = Layout.from_lengths(lengths)
    return model.compute_logits("task", model.heads["task"].encode_pairs(model(Inputs(ids, layout)), layout))


@LENGTHS
def test_attend_with_keys_layout_matches_dense_mask(lengths):
    queries, keys = Layout.from_lengths(lengths), Layout.from_lengths(lengths[::-1])
    q, k, v = (torch.randn(sum(lengths), 2, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    mask = queries.seq_id[:, None] == keys.seq_id[None, :]
    expected = nn.functional.scaled_dot_product_attention(*(tensor.transpose(0, 1) for tensor in (q, k, v)), mask).transpose(
        0, 1
    )
    assert_close(queries.attend(q, k, v, keys=keys), expected, rtol=1e-5, atol=1e-5)


@LENGTHS
def test_swap_pairs_indexes_the_other_text(lengths):
    layout = Layout.from_lengths(lengths)
    swapped, index = swap_pairs(layout)
    sequences = list(torch.arange(sum(lengths)).split(lengths))
    sequences[::2], sequences[1::2] = sequences[1::2], sequences[::2]
    assert index.tolist() == torch.cat(sequences).tolist()
    assert swapped.lengths.tolist() == [len(sequence) for sequence in sequences]


@LENGTHS
def test_cross_attention_block_matches_torch_multihead_attention(lengths):
    block, layout = CrossAttentionBlock(small_encoder_config()).eval(), Layout.from_lengths(lengths)
    reference = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    reference.load_state_dict({
        "in_proj_weight": block.projections.qkv.weight, "in_proj_bias": block.projections.qkv.bias,
        "out_proj.weight": block.projections.output.weight, "out_proj.bias": block.projections.output.bias,
    })  # fmt: skip
    x = torch.randn(sum(lengths), 16, generator=torch.Generator().manual_seed(3))
    texts, expected = x.split(lengths), []
    for a, b in zip(texts[::2], texts[1::2], strict=True):
        expected += [reference(a[None], b[None], b[None])[0][0], reference(b[None], a[None], a[None])[0][0]]
    assert_close(block.cross_attend(x, layout, *swap_pairs(layout)), torch.cat(expected), rtol=1e-5, atol=1e-5)


@NORMS
@LENGTHS
def test_cross_attention_head_matches_reference(norm, lengths):
    """The whole head, pair by pair, in plain formulas."""
    model, layout = build_small_model(norm), Layout.from_lengths(lengths)
    ids = random_ids(lengths)
    hidden = model(Inputs(ids, layout)).split(lengths)
    rows = [_reference_logits(model, a, b) for a, b in zip(hidden[::2], hidden[1::2], strict=True)]
    assert_close(compute_logits(model, ids, lengths), torch.stack(rows), rtol=1e-5, atol=1e-5)


def _reference_logits(model, a, b):
    head = model.heads["task"]
    for block in head.layers:
        a, b = _reference_block(block, a, b), _reference_block(block, b, a)
    u, v = (model.encoder.apply_pooler(head.final_norm(x).mean(0)) for x in (a, b))
    return head.classifier(torch.cat([u, v, (u - v).abs(), u * v]))


def _reference_block(block, x, other):
    def attend(x, other):
        q, (_, k, v) = block.projections(x)[0], block.projections(other)
        weights = (torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5).softmax(-1)
        return block.projections.project_out(torch.einsum("hij,jhd->ihd", weights, v))

    if block.norm_first:
        x = x + attend(block.mixer_norm(x), block.mixer_norm(other))
        return x + block.feedforward(block.feedforward_norm(x))
    x = block.mixer_norm(x + attend(x, other))
    return block.feedforward_norm(x + block.feedforward(x))


@LENGTHS
def test_cross_attention_pairs_are_independent(lengths):
    model, ids = build_small_model(), random_ids(lengths)
    changed = ids.clone()
    changed[sum(lengths[:2]) :] = 7
    assert_close(compute_logits(model, ids, lengths)[0], compute_logits(model, changed, lengths)[0])
    assert not torch.allclose(compute_logits(model, ids, lengths)[1], compute_logits(model, changed, lengths)[1])


@NORMS
def test_cross_attention_all_weights_get_grads(norm):
    model = build_small_model(norm)
    compute_logits(model, random_ids(LONG), LONG).square().sum().backward()
    used_ids = set(random_ids(LONG).tolist())
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert grad is not None and torch.isfinite(grad).all(), name
        assert grad.abs().sum() > 0, name
    assert model.encoder.word_embeddings.weight.grad.abs().sum(1).nonzero().flatten().tolist() == sorted(used_ids)


def test_cross_attention_logits_depend_on_both_texts_and_order():
    model, ids = build_small_model(), random_ids([5, 5])
    base = compute_logits(model, ids, [5, 5])
    for position in (2, 7):
        changed = ids.clone()
        changed[position] = 6
        assert not torch.allclose(compute_logits(model, changed, [5, 5]), base)
    assert not torch.allclose(compute_logits(model, ids.roll(5), [5, 5]), base)


def test_cross_attention_head_config_round_trip():
    head = CrossAttentionHeadConfig(outputs=2, blocks=3)
    assert from_dict(HeadConfig, {"kind": "cross-attention", **to_dict(head)}) == head
    assert (
        len(
            build_model(ModelConfig(encoder=small_encoder_config(), vocab_size=9, heads={"task": head}), 0).heads["task"].layers
        )
        == 3
    )


@pytest.mark.gpu
@LENGTHS
def test_flash_attention_with_keys_layout_matches_padded(lengths):
    queries, keys = Layout.from_lengths(lengths).to("cuda"), Layout.from_lengths(lengths[::-1]).to("cuda")
    q, k, v = (torch.randn(sum(lengths), 2, 64, generator=torch.Generator().manual_seed(seed)).cuda() for seed in range(3))
    expected = queries.attend(q, k, v, keys=keys)  # float32: the padded path
    actual = queries.attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), keys=keys)
    assert_close(actual.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "mixer",
    [
        Longformer(num_attention_heads=4, attention_window=(4,)),
        Reformer(num_attention_heads=4),
        AdaptiveSpan(num_attention_heads=4, max_span=16),
        Lstm(),
    ],
    ids=str,
)
def test_cross_attention_works_with_any_mixer(mixer):
    config = msgspec.structs.replace(small_encoder_config(), mixer=mixer)
    model = build_model(
        ModelConfig(encoder=config, vocab_size=50, heads={"task": CrossAttentionHeadConfig(outputs=3, blocks=1)}), 1
    ).eval()
    together = compute_logits(model, random_ids(SHORT), SHORT)
    assert_close(compute_logits(model, random_ids(SHORT)[:8], SHORT[:2]), together[:1], rtol=1e-5, atol=1e-5)


def test_cross_attention_needs_feed_forward():
    config = msgspec.structs.replace(small_encoder_config(), feedforward=None)
    with pytest.raises(UserError, match=r"set task\.pair=joint, or both"):
        build_model(
            ModelConfig(encoder=config, vocab_size=50, heads={"task": CrossAttentionHeadConfig(outputs=3, blocks=1)}), 1
        )
