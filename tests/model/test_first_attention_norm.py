"""`first_attention_norm=false`: the first layer's attention reads the normalized embeddings themselves, as in ModernBERT."""

import pytest
from msgspec.structs import replace

from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.presets import PRESETS


def test_first_attention_norm_false_removes_one_weight():
    config = EncoderConfig(num_hidden_layers=2, hidden_size=48, norm="pre", norm_bias=False)
    names = set(dict(Encoder(config, 30).named_parameters()))
    assert {name for name in names if name.endswith("layers.0.mixer_norm.weight")}
    without = set(dict(Encoder(replace(config, first_attention_norm=False), 30).named_parameters()))
    assert names - without == {name for name in names if name.endswith("layers.0.mixer_norm.weight")}


@pytest.mark.parametrize(
    "settings", [{"norm": "post"}, {"embedding_norm": False}, {"reversible": True}, {"num_hidden_groups": 1}]
)
def test_first_attention_norm_false_is_refused_where_it_has_no_meaning(settings):
    config = EncoderConfig(
        **{"num_hidden_layers": 2, "hidden_size": 64, "norm": "pre", "first_attention_norm": False, **settings}
    )
    with pytest.raises(UserError, match="first_attention_norm=false needs"):
        Encoder(config, 30)


def test_modernbert_presets_have_no_first_attention_norm():
    assert not any(config.first_attention_norm for name, config in PRESETS.items() if name.startswith("modernbert"))
