"""With its options of today the model is ModernBERT: transformers' weights copied in give its states, logits and slopes."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig
from bertsmith.model.packing import Layout, PaddedLayout
from bertsmith.model.sublayers import FeedForwardConfig

transformers = pytest.importorskip("transformers")

VOCABULARY, WIDTH, LAYERS, THETA = 97, 32, 3, 500.0
LENGTHS = (17, 5, 70, 1, 23, 40)
NAMES = {
    "model.embeddings.tok_embeddings": "encoder.tokens", "model.embeddings.norm": "encoder.norm",
    "model.layers": "encoder.stack.blocks", "model.final_norm": "encoder.stack.norm",
    "attn.Wqkv": "mixer.project.qkv", "attn.Wo": "mixer.project.out", "attn_norm": "mixer_norm",
    "mlp.Wi": "feedforward.up", "mlp.Wo": "feedforward.down", "mlp_norm": "feedforward_norm",
    "head.dense": "heads.words.transform", "head.norm": "heads.words.norm", "decoder.bias": "heads.words.bias",
}  # fmt: skip
ABSENT = {  # what ours has and theirs has not, and what makes it nothing
    "encoder.segments.weight": torch.zeros(1, WIDTH),
    "encoder.stack.blocks.0.mixer_norm.weight": torch.ones(WIDTH),  # of what is already normed, with a gain of 1
    "encoder.pooler.weight": torch.zeros(WIDTH, WIDTH), "encoder.pooler.bias": torch.zeros(WIDTH),
    "heads.words.transform.bias": torch.zeros(WIDTH),
}  # fmt: skip


def theirs():
    """Every layer sees all, the tokens turned alike; every weight matters, but for the gain of the embeddings, which is 1."""
    torch.manual_seed(0)
    rope = {kind: {"rope_type": "default", "rope_theta": THETA} for kind in ("full_attention", "sliding_attention")}
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    config = transformers.ModernBertConfig(
        **sizes, intermediate_size=48, global_attn_every_n_layers=1, layer_types=["full_attention"] * LAYERS,
        rope_parameters=rope, norm_eps=1e-12, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.ModernBertForMaskedLM(config).eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.15)
    torch.nn.init.ones_(model.model.embeddings.norm.weight)
    return model


def renamed(name):
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def ours(original, period=THETA):
    """The same model here, by the names alone; a tensor of theirs without a place, or of ours without a source, is an error."""
    encoder = EncoderConfig(
        layers=LAYERS, width=WIDTH, mixer=Attention(heads=4, bias=False, rotary=period), norm="before", norm_bias=False,
        feedforward=FeedForwardConfig(inner=48, gated=True, bias=False), table=False, segments=1, positions=128,
    )  # fmt: skip
    model = Model(ModelConfig(encoder=encoder, vocabulary=VOCABULARY, heads={"words": LMHeadConfig()}))
    weights = {renamed(name): weight for name, weight in original.state_dict().items() if name != "decoder.weight"}
    model.load_state_dict({**weights, **ABSENT})
    return model.eval()


@pytest.fixture(scope="module")
def pair():
    original = theirs()
    return original, ours(original)


def packed():
    dice = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (sum(LENGTHS),), generator=dice)


def each(original, tokens, **more):
    """Theirs of one sequence after another, put together as ours are."""
    return [original(part[None], **more) for part in tokens.split(LENGTHS)]


def test_hidden_states_of_every_layer_agree_on_packed_sequences(pair):
    original, model = pair
    kept, tokens = [], packed()
    last = model(Inputs(tokens, Layout.from_lengths(LENGTHS)), kept)
    wanted = [output.hidden_states for output in each(original, tokens, output_hidden_states=True)]
    assert len(kept) == len(wanted[0]) == LAYERS + 1
    for layer in range(LAYERS):  # the last of theirs is normed, and so is what ours returns
        assert_close(kept[layer], torch.cat([states[layer][0] for states in wanted]), atol=1e-5, rtol=1e-5)
    assert_close(last, torch.cat([states[-1][0] for states in wanted]), atol=1e-5, rtol=1e-5)


def test_logits_agree_with_padding_as_with_packing(pair):
    original, model = pair
    tokens, layout = packed(), Layout.from_lengths(LENGTHS)
    hidden = model(Inputs(tokens, layout))
    logits = model.scores("words", hidden)
    assert_close(logits, torch.cat([output.logits[0] for output in each(original, tokens)]), atol=1e-5, rtol=1e-5)
    mask, grid = layout.padding_mask(), layout.pad(tokens)
    assert_close(original(grid, attention_mask=mask.long()).logits[mask], logits, atol=1e-5, rtol=1e-5)
    rectangle = model(Inputs(grid.flatten(), PaddedLayout.from_mask(mask)))[mask.flatten()]
    assert_close(rectangle, hidden, atol=1e-5, rtol=1e-5)


def test_gradients_agree(pair):
    original, model = pair
    tokens = packed()
    answers = torch.randint(VOCABULARY, tokens.shape, generator=torch.Generator().manual_seed(2))
    model.entropy("words", model(Inputs(tokens, Layout.from_lengths(LENGTHS))), answers)[0].backward()
    logits = torch.cat([output.logits[0] for output in each(original, tokens)])
    torch.nn.functional.cross_entropy(logits, answers, reduction="sum").backward()
    slopes = dict(model.named_parameters())
    held = dict(original.named_parameters())
    held.pop("model.embeddings.norm.weight")  # our first block norms what it scales again, so its slope is another
    for name, weight in held.items():
        assert_close(slopes[renamed(name)].grad, weight.grad, atol=2e-4, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_other_turns_are_another_model(pair):
    """So the agreement above is one of the turns too, and not of everything else alone."""
    original, model = pair
    inputs = Inputs(packed(), Layout.from_lengths(LENGTHS))
    other = ours(original, period=20 * THETA)
    assert (other(inputs) - model(inputs)).abs().max() > 0.1


def test_the_size_is_that_of_modernbert_but_for_what_ours_always_has():
    """Base, as published: a table of segments, a pooler, a bias in the head and the first block's norm are ours alone."""
    width, layers, inner, words = 768, 22, 1152, 50368
    encoder = EncoderConfig(
        layers=layers, width=width, mixer=Attention(heads=12, bias=False, rotary=160_000.0), norm="before", norm_bias=False,
        feedforward=FeedForwardConfig(inner=inner, gated=True, bias=False), table=False, segments=1, positions=8192,
    )  # fmt: skip
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=encoder, vocabulary=words, heads={"words": LMHeadConfig()}))
        peer = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig())
    alone = width + (width * width + width) + width + width
    assert sum(w.numel() for w in model.parameters()) == sum(w.numel() for w in peer.parameters()) + alone
