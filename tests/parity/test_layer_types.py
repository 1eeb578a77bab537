"""Every third block sees the whole text, the others a window, each with its own turns: transformers' ModernBERT."""

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
from tests.parity.test_modernbert import ABSENT, VOCABULARY, WIDTH, renamed

transformers = pytest.importorskip("transformers")

LAYERS, LENGTHS = 7, (17, 90, 1, 60)
PRESET = EncoderConfig.presets["modernbert-mini"]


def small(**more):
    """The preset itself, narrower: its windows see 5 tokens on each side."""
    others = msgspec.structs.replace(
        PRESET.others, mixer=msgspec.structs.replace(PRESET.others.mixer, heads=4, reach=(5,), rotary=70.0)
    )
    fed = msgspec.structs.replace(PRESET.feedforward, inner=48)
    mixer = msgspec.structs.replace(PRESET.mixer, heads=4, rotary=500.0)
    given = {"layers": LAYERS, "width": WIDTH, "mixer": mixer, "others": others, "feedforward": fed, "segments": 1, **more}
    return msgspec.structs.replace(PRESET, **given)


def test_hidden_states_of_every_layer_agree():
    torch.manual_seed(0)
    rope = {"full_attention": 500.0, "sliding_attention": 70.0}
    config = transformers.ModernBertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=48,
        local_attention=10, global_attn_every_n_layers=3, norm_eps=1e-12, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2, attn_implementation="eager",
        rope_parameters={kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in rope.items()},
    )  # fmt: skip
    original = transformers.ModernBertForMaskedLM(config).eval()
    for name, weight in original.named_parameters():
        torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.15)
    torch.nn.init.ones_(original.model.embeddings.norm.weight)
    model = Model(ModelConfig(encoder=small(eps=1e-12), vocabulary=VOCABULARY, heads={"words": LMHeadConfig()})).eval()
    weights = {renamed(name): weight for name, weight in original.state_dict().items() if name != "decoder.weight"}
    model.load_state_dict({**weights, **ABSENT})
    tokens, kept = torch.randint(3, VOCABULARY, (sum(LENGTHS),)), []
    last = model(Inputs(tokens, Layout.from_lengths(LENGTHS)), kept)
    wanted = [original(part[None], output_hidden_states=True).hidden_states for part in tokens.split(LENGTHS)]
    for layer, ours in enumerate([*kept[:-1], last]):
        assert_close(ours, torch.cat([states[layer][0] for states in wanted]), atol=2e-5, rtol=2e-5)


def test_kinds_of_blocks_take_turns_and_a_folder_keeps_them(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    model = build_model(ModelConfig(encoder=small(), vocabulary=len(tokenizer)), 0).eval()
    kinds = [type(block.mixer) for block in model.encoder.stack.blocks]
    assert kinds == [SelfAttention, LongformerAttention, LongformerAttention] * 2 + [SelfAttention]
    checkpoint.save(tmp_path / "model", model, tokenizer, {}, {"stage": "test"})
    back, _, _ = checkpoint.load(tmp_path / "model")
    inputs = Inputs(torch.arange(30) % len(tokenizer), Layout.from_lengths([9, 21]))
    assert back.config == model.config and torch.equal(back(inputs), model(inputs))


def test_a_model_is_causal_if_all_its_blocks_are():
    causal = Longformer(heads=4, causal=True)
    others = msgspec.structs.replace(PRESET.others, mixer=causal)
    assert not small(others=others).is_causal and not small(mixer=Attention(heads=4, causal=True)).is_causal
    assert small(others=others, mixer=Attention(heads=4, causal=True)).is_causal


@pytest.mark.parametrize(("preset", "sizes"), [
    ("modernbert-base", {}),
    ("modernbert-large", {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16}),
])  # fmt: skip
def test_presets_have_the_published_sizes_but_for_what_ours_always_has(preset, sizes):
    """A pooler, a bias in the head and the first block's norm are ours alone."""
    config = transformers.ModernBertConfig(**sizes)
    width = config.hidden_size
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets[preset], vocabulary=50368, heads={"words": LMHeadConfig()}))
        peer = transformers.ModernBertForMaskedLM(config)
    alone = (width * width + width) + width + width
    assert sum(w.numel() for w in model.parameters()) == sum(w.numel() for w in peer.parameters()) + alone


@pytest.mark.parametrize(("preset", "name", "sizes"), [
    ("roberta-base", "RobertaForMaskedLM", {"type_vocab_size": 1, "max_position_embeddings": 514, "vocab_size": 50265}),
    ("distilbert", "DistilBertForMaskedLM", {}),
    ("electra-small", "ElectraForMaskedLM", {}),
    ("electra-base", "ElectraForMaskedLM",
     {"hidden_size": 768, "embedding_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
])  # fmt: skip
def test_other_presets_have_the_sizes_of_their_families(preset, name, sizes):
    kind = getattr(transformers, name)
    config = kind.config_class(**sizes)
    encoder = EncoderConfig.presets[preset]
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=encoder, vocabulary=config.vocab_size, heads={"words": LMHeadConfig()}))
        peer = kind(config)
    width = encoder.width
    alone = width * width + width  # the pooler
    alone += width if preset == "distilbert" else 0  # a segment that is nothing
    alone -= 2 * width if preset == "roberta-base" else 0  # rows before position 0
    assert sum(w.numel() for w in model.parameters()) == sum(w.numel() for w in peer.parameters()) + alone
