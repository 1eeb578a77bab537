"""Presets equal the encoders that the published config.json files of the same models describe."""

import msgspec
import pytest

from bertsmith.convert.huggingface.config import canonicalize, config_from_hf, detect_family
from bertsmith.model.presets import PRESETS

transformers = pytest.importorskip("transformers")


def describe(model, num_layers, hidden_size, num_heads=None, **others):
    """config.json of a transformers model of this size; defaults are those of its class."""
    sizes = {"num_attention_heads": num_heads or hidden_size // 64, "intermediate_size": 4 * hidden_size}
    config_class = getattr(transformers, f"{model}Config")
    return config_class(num_hidden_layers=num_layers, hidden_size=hidden_size, **{**sizes, **others}).to_dict()


ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
ALBERT = {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PUBLISHED = {
    "bert-tiny": describe("Bert", 2, 128), "bert-mini": describe("Bert", 4, 256), "bert-small": describe("Bert", 4, 512),
    "bert-medium": describe("Bert", 8, 512), "bert-base": describe("Bert", 12, 768), "bert-large": describe("Bert", 24, 1024),
    "roberta-base": describe("Roberta", 12, 768, **ROBERTA), "roberta-large": describe("Roberta", 24, 1024, **ROBERTA),
    "albert-base": describe("Albert", 12, 768, 12, **ALBERT), "albert-large": describe("Albert", 24, 1024, 16, **ALBERT),
    "albert-xlarge": describe("Albert", 24, 2048, 16, **ALBERT), "albert-xxlarge": describe("Albert", 12, 4096, 64, **ALBERT),
    "electra-small": describe("Electra", 12, 256, 4, embedding_size=128),
    "electra-base": describe("Electra", 12, 768, 12, embedding_size=768),
    "electra-large": describe("Electra", 24, 1024, 16, embedding_size=1024),
    "distilbert": transformers.DistilBertConfig().to_dict(),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_preset_equals_published_config(name):
    config = PUBLISHED[name]
    imported, preset = config_from_hf(detect_family(config, name), config, name), canonicalize(PRESETS[name])
    # The presets have no dropout of attention weights, which fused attention kernels leave out.
    mixer = msgspec.structs.replace(imported.mixer, attention_dropout=0.0)
    preset = msgspec.structs.replace(preset, initializer_range=preset.init_std)  # the default depends on the hidden size
    assert msgspec.structs.replace(imported, mixer=mixer) == preset
