"""Alternating global and local attention layers, each with its own rope_theta, against transformers' ModernBERT."""

import msgspec
import pytest
import torch
from torch.testing import assert_close

from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention, Longformer
from bertsmith.model.mixers.attention import SelfAttention
from bertsmith.model.mixers.longformer.layer import LongformerAttention
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.modernbert import EXTRA_WEIGHTS, HIDDEN_SIZE, VOCAB_SIZE, rename_key

transformers = pytest.importorskip("transformers")

NUM_LAYERS, LENGTHS = 7, (17, 90, 1, 60)
PRESET = EncoderConfig.presets()["modernbert-mini"]


def small_config(**overrides):
    """The preset with a smaller hidden size and windows of 5 tokens on each side."""
    others = msgspec.structs.replace(
        PRESET.layer_types,
        mixer=msgspec.structs.replace(PRESET.layer_types.mixer, num_attention_heads=4, attention_window=(10,), rope_theta=70.0),
    )
    feedforward = msgspec.structs.replace(PRESET.feedforward, intermediate_size=48)
    mixer = msgspec.structs.replace(PRESET.mixer, num_attention_heads=4, rope_theta=500.0)
    values = {
        "num_hidden_layers": NUM_LAYERS,
        "hidden_size": HIDDEN_SIZE,
        "mixer": mixer,
        "layer_types": others,
        "feedforward": feedforward,
        "type_vocab_size": 1,
        **overrides,
    }
    return msgspec.structs.replace(PRESET, **values)


def test_layer_types_hidden_states_match_modernbert():
    torch.manual_seed(0)
    rope = {"full_attention": 500.0, "sliding_attention": 70.0}
    config = transformers.ModernBertConfig(
        vocab_size=VOCAB_SIZE, hidden_size=HIDDEN_SIZE, num_hidden_layers=NUM_LAYERS, num_attention_heads=4,
        intermediate_size=48, local_attention=10, global_attn_every_n_layers=3, norm_eps=1e-12, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2, attn_implementation="eager",
        rope_parameters={layer_type: {"rope_type": "default", "rope_theta": theta} for layer_type, theta in rope.items()},
    )  # fmt: skip
    original = transformers.ModernBertForMaskedLM(config).eval()
    for name, weight in original.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.15)
    torch.nn.init.ones_(original.model.embeddings.norm.weight)
    model = Model(
        ModelConfig(encoder=small_config(layer_norm_eps=1e-12), vocab_size=VOCAB_SIZE, heads={"lm": LMHeadConfig()})
    ).eval()
    weights = {rename_key(name): weight for name, weight in original.state_dict().items() if name != "decoder.weight"}
    extra = {name: weight for name, weight in EXTRA_WEIGHTS.items() if not name.startswith("encoder.pooler.")}
    model.load_state_dict({**weights, **extra})
    tokens, hidden_states = torch.randint(3, VOCAB_SIZE, (sum(LENGTHS),)), []
    out = model(Inputs(tokens, Layout.from_lengths(LENGTHS)), hidden_states)
    expected = [original(part[None], output_hidden_states=True).hidden_states for part in tokens.split(LENGTHS)]
    for layer, state in enumerate([*hidden_states[:-1], out]):
        assert_close(state, torch.cat([states[layer][0] for states in expected]), atol=2e-5, rtol=2e-5)


def test_layer_types_alternate_and_survive_checkpoint(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    model = build_model(ModelConfig(encoder=small_config(), vocab_size=len(tokenizer)), 0).eval()
    mixer_types = [type(block.mixer) for block in model.encoder.stack.layers]
    assert mixer_types == [SelfAttention, LongformerAttention, LongformerAttention] * 2 + [SelfAttention]
    checkpoint.save(tmp_path / "model", model, tokenizer, {}, {"stage": "test"})
    reloaded, _, _ = checkpoint.load(tmp_path / "model")
    inputs = Inputs(torch.arange(30) % len(tokenizer), Layout.from_lengths([9, 21]))
    assert reloaded.config == model.config and torch.equal(reloaded(inputs), model(inputs))


def test_layer_types_model_is_causal_if_all_blocks_are():
    causal = Longformer(num_attention_heads=4, causal=True)
    others = msgspec.structs.replace(PRESET.layer_types, mixer=causal)
    assert (
        not small_config(layer_types=others).is_causal
        and not small_config(mixer=Attention(num_attention_heads=4, causal=True)).is_causal
    )
    assert small_config(layer_types=others, mixer=Attention(num_attention_heads=4, causal=True)).is_causal


@pytest.mark.parametrize(("preset", "options"), [
    ("modernbert-base", {}),
    ("modernbert-large", {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16}),
])  # fmt: skip
def test_modernbert_presets_parameter_counts(preset, options):
    """Only ours has a bias in the dense layer of the head."""
    config = transformers.ModernBertConfig(**options)
    hidden_size = config.hidden_size
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets()[preset], vocab_size=50368, heads={"lm": LMHeadConfig()}))
        reference = transformers.ModernBertForMaskedLM(config)
    expected = sum(weight.numel() for weight in reference.parameters()) + hidden_size
    assert sum(weight.numel() for weight in model.parameters()) == expected


@pytest.mark.parametrize(("preset", "class_name", "options"), [
    ("roberta-base", "RobertaForMaskedLM", {"type_vocab_size": 1, "max_position_embeddings": 514, "vocab_size": 50265}),
    ("distilbert", "DistilBertForMaskedLM", {}),
    ("electra-small", "ElectraForMaskedLM", {}),
    ("electra-base", "ElectraForMaskedLM",
     {"hidden_size": 768, "embedding_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
])  # fmt: skip
def test_family_presets_parameter_counts(preset, class_name, options):
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**options)
    encoder = EncoderConfig.presets()[preset]
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=encoder, vocab_size=config.vocab_size, heads={"lm": LMHeadConfig()}))
        reference = model_class(config)
    hidden_size = encoder.hidden_size
    extra = hidden_size * hidden_size + hidden_size  # the pooler
    extra += hidden_size if preset == "distilbert" else 0  # a segment embedding of zeros
    extra -= 2 * hidden_size if preset == "roberta-base" else 0  # padding rows of the position table
    assert (
        sum(weight.numel() for weight in model.parameters()) == sum(weight.numel() for weight in reference.parameters()) + extra
    )
