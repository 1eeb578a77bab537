"""Pooling of a text: first or last token, mean, maximum, and all three (ULMFiT), text by text."""

import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import SequenceHeadConfig
from bertsmith.model.heads.cross_attention import CrossAttentionHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig

LENGTHS = (5, 1, 7)
ENCODER = EncoderConfig(
    num_hidden_layers=1,
    hidden_size=8,
    mixer=Attention(num_attention_heads=2),
    feedforward=FeedForwardConfig(intermediate_size=12),
    max_position_embeddings=16,
    initializer_range=0.3,
)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pooler_act", ["tanh", "none"])
@torch.no_grad()
def test_concat_pooling_is_first_or_last_token_maximum_and_mean(causal, pooler_act):
    """ULMFiT (Howard and Ruder 2018, section 3.3): [h_T; maxpool(H); meanpool(H)]."""
    config = replace(ENCODER, mixer=Attention(num_attention_heads=2, causal=causal), pooling="concat", pooler_act=pooler_act)
    heads = {"task": SequenceHeadConfig(outputs=3)}
    model = build_model(ModelConfig(encoder=config, vocab_size=30, heads=heads), 0).eval()
    inputs = Inputs(
        torch.randint(30, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0)), Layout.from_lengths(LENGTHS)
    )
    rows = []
    for states in model(inputs).split(LENGTHS):
        rows.append(torch.cat([states[-1 if causal else 0], states.max(0).values, states.mean(0)]))
    pooled = model.encoder.pool_tokens(inputs)
    assert_close(pooled, torch.stack(rows))
    assert_close(model.encoder.pool_tokens(inputs, model(inputs)), pooled)
    text = torch.tanh(model.encoder.pooler(pooled)) if pooler_act == "tanh" else pooled
    assert text.shape[1] == (8 if pooler_act == "tanh" else 24) == config.text_size
    assert_close(model.compute_logits("task", pooled), model.heads["task"].classifier(text))


def test_concat_pooling_refuses_the_cross_attention_head():
    with pytest.raises(UserError, match="pooling=mean"):
        CrossAttentionHeadConfig(outputs=2, blocks=1).build(replace(ENCODER, pooling="concat"), 30)
