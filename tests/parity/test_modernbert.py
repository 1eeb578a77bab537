"""ModernBERT with full attention against transformers: hidden states, logits and gradients with the same weights."""

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
from tests.support.modernbert import EXTRA_WEIGHTS, HIDDEN_SIZE, VOCAB_SIZE, rename_key

NUM_LAYERS, THETA = 3, 500.0

transformers = pytest.importorskip("transformers")

LENGTHS = (17, 5, 70, 1, 23, 40)


def build_transformers_model():
    """All layers with full attention and one rope_theta; all weights random."""
    torch.manual_seed(0)
    rope = {layer_type: {"rope_type": "default", "rope_theta": THETA} for layer_type in ("full_attention", "sliding_attention")}
    options = {"vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN_SIZE, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": 4}
    config = transformers.ModernBertConfig(
        **options, intermediate_size=48, global_attn_every_n_layers=1, layer_types=["full_attention"] * NUM_LAYERS,
        rope_parameters=rope, norm_eps=1e-12, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.ModernBertForMaskedLM(config).eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.15)
    return model


def build_model_from(original, theta=THETA):
    """Our model with the same weights, by renaming the keys; missing and unexpected keys are errors."""
    encoder = EncoderConfig(
        num_hidden_layers=NUM_LAYERS,
        hidden_size=HIDDEN_SIZE,
        mixer=Attention(num_attention_heads=4, bias=False, rope_theta=theta),
        norm="pre",
        norm_bias=False,
        first_attention_norm=False,
        feedforward=FeedForwardConfig(intermediate_size=48, glu=True, bias=False),
        position_embedding_type="none",
        type_vocab_size=1,
        max_position_embeddings=128,
    )
    model = Model(ModelConfig(encoder=encoder, vocab_size=VOCAB_SIZE, heads={"lm": LMHeadConfig()}))
    weights = {rename_key(name): weight for name, weight in original.state_dict().items() if name != "decoder.weight"}
    model.load_state_dict({**weights, **EXTRA_WEIGHTS})
    return model.eval()


@pytest.fixture(scope="module")
def models():
    original = build_transformers_model()
    return original, build_model_from(original)


def packed_tokens():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCAB_SIZE, (sum(LENGTHS),), generator=generator)


def run_per_sequence(original, tokens, **options):
    """Outputs of transformers' model, one sequence at a time."""
    return [original(part[None], **options) for part in tokens.split(LENGTHS)]


def test_modernbert_hidden_states_match_transformers(models):
    original, model = models
    hidden_states, tokens = [], packed_tokens()
    out = model(Inputs(tokens, Layout.from_lengths(LENGTHS)), hidden_states)
    expected = [output.hidden_states for output in run_per_sequence(original, tokens, output_hidden_states=True)]
    assert len(hidden_states) == len(expected[0]) == NUM_LAYERS + 1
    for layer in range(NUM_LAYERS):  # the last of theirs is normalized, as is what ours returns
        assert_close(hidden_states[layer], torch.cat([states[layer][0] for states in expected]), atol=1e-5, rtol=1e-5)
    assert_close(out, torch.cat([states[-1][0] for states in expected]), atol=1e-5, rtol=1e-5)


def test_modernbert_logits_match_transformers_padded_and_packed(models):
    original, model = models
    tokens, layout = packed_tokens(), Layout.from_lengths(LENGTHS)
    hidden = model(Inputs(tokens, layout))
    logits = model.compute_logits("lm", hidden)
    assert_close(logits, torch.cat([output.logits[0] for output in run_per_sequence(original, tokens)]), atol=1e-5, rtol=1e-5)
    mask, padded = layout.padding_mask(), layout.pad(tokens)
    assert_close(original(padded, attention_mask=mask.long()).logits[mask], logits, atol=1e-5, rtol=1e-5)
    padded_hidden = model(Inputs(padded.flatten(), PaddedLayout.from_mask(mask)))[mask.flatten()]
    assert_close(padded_hidden, hidden, atol=1e-5, rtol=1e-5)


def test_modernbert_grads_match_transformers(models):
    original, model = models
    tokens = packed_tokens()
    labels = torch.randint(VOCAB_SIZE, tokens.shape, generator=torch.Generator().manual_seed(2))
    model.cross_entropy("lm", model(Inputs(tokens, Layout.from_lengths(LENGTHS))), labels)[0].backward()
    logits = torch.cat([output.logits[0] for output in run_per_sequence(original, tokens)])
    torch.nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    parameters = dict(model.named_parameters())
    for name, weight in original.named_parameters():
        assert_close(
            parameters[rename_key(name)].grad, weight.grad, atol=2e-4, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_modernbert_rope_theta_matters(models):
    """So the agreement above includes the rotary embedding."""
    original, model = models
    inputs = Inputs(packed_tokens(), Layout.from_lengths(LENGTHS))
    other = build_model_from(original, theta=20 * THETA)
    assert (other(inputs) - model(inputs)).abs().max() > 0.1


def test_modernbert_base_parameter_count():
    """Base, as published; only ours has segment embeddings, a pooler and a bias in the head."""
    hidden_size, num_layers, intermediate_size, vocab_size = 768, 22, 1152, 50368
    encoder = EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=Attention(num_attention_heads=12, bias=False, rope_theta=160_000.0),
        norm="pre",
        norm_bias=False,
        first_attention_norm=False,
        feedforward=FeedForwardConfig(intermediate_size=intermediate_size, glu=True, bias=False),
        position_embedding_type="none",
        type_vocab_size=1,
        max_position_embeddings=8192,
    )
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=encoder, vocab_size=vocab_size, heads={"lm": LMHeadConfig()}))
        reference = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig())
    extra = hidden_size + (hidden_size * hidden_size + hidden_size) + hidden_size
    assert (
        sum(weight.numel() for weight in model.parameters()) == sum(weight.numel() for weight in reference.parameters()) + extra
    )
