"""KV cache: tokens that continue the cached ones give what the whole sequences give, in steps and chunks of any length."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.generation.config import Beam, Greedy
from bertsmith.model.generation.incremental import (
    KVCacheDecoder,
    SegmentMemoryDecoder,
    UncachedDecoder,
    build_incremental_decoder,
)
from bertsmith.model.generation.search import generate
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.kv_cache import KVCache, LayerKVCache
from bertsmith.model.mixers import Attention, LiteTransformer, Longformer, Lstm, TransformerXL
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, T5BiasConfig
from bertsmith.model.sublayers import FeedForwardConfig

VOCAB_SIZE = 30
MIXERS = {
    "attention": Attention(num_attention_heads=2, causal=True),
    "rope": Attention(num_attention_heads=2, causal=True, rope_theta=100.0),
    "alibi": Attention(num_attention_heads=2, causal=True, position_bias=AlibiConfig()),
    "t5": Attention(num_attention_heads=2, causal=True, position_bias=T5BiasConfig(num_buckets=8, max_distance=10)),
    "lite-transformer": LiteTransformer(num_attention_heads=2, kernel_sizes=(3, 6), causal=True),
    "dynamic convolution": LiteTransformer(num_attention_heads=2, kernel_sizes=(1, 4), causal=True, dynamic=True),
}
CHUNKS = {
    "same lengths": [(4, 4, 4), (1, 1, 1), (3, 3, 3)],
    "ragged": [(5, 1, 9), (1, 1, 1), (2, 4, 1), (1, 1, 1)],
    "ragged prompts, equal totals": [(2, 4, 3), (3, 1, 2), (1, 1, 1)],
}


def build_small_model(mixer, **settings):
    encoder = EncoderConfig(
        **{
            "num_hidden_layers": 2,
            "hidden_size": 16,
            "mixer": mixer,
            "feedforward": FeedForwardConfig(intermediate_size=24),
            "max_position_embeddings": 40,
            "position_embedding_type": "none",
            "initializer_range": 0.4,
            "layer_norm_eps": 1e-5,
            **settings,
        }
    )
    heads = {"lm": LMHeadConfig(transform=False, bias=False, tied=False)}  # a tied head would repeat its input
    return build_model(ModelConfig(encoder=encoder, vocab_size=VOCAB_SIZE, heads=heads), 0).eval()


def random_texts(lengths, seed=0):
    return [torch.from_numpy(np.random.default_rng(seed + i).integers(0, VOCAB_SIZE, n)) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
@torch.no_grad()
def test_chunks_of_any_length_match_full_forward(mixer, chunks):
    model = build_small_model(mixer, position_embedding_type="absolute" if mixer is MIXERS["attention"] else "none")
    totals = np.sum(chunks, axis=0)
    texts = random_texts(totals)
    expected = model(Inputs(torch.cat(texts), Layout.from_lengths(totals))).split(totals.tolist())
    cache = KVCache.empty(model.encoder.stack.mixers, len(texts), int(totals.max()), torch.device("cpu"))
    for step, lengths in enumerate(chunks):
        layout = Layout.from_lengths(lengths, past_lengths=cache.lengths if step else None)
        starts = cache.lengths.tolist()
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        chunk = torch.cat([text[start:end] for text, start, end in zip(texts, starts, ends, strict=True)])
        actual = model(Inputs(chunk, layout, state=cache))
        rows = [hidden[start:end] for hidden, start, end in zip(expected, starts, ends, strict=True)]
        assert_close(actual, torch.cat(rows), atol=1e-5, rtol=1e-5)
        cache = cache.advance(layout)
    assert cache.lengths.tolist() == cache.next_position.tolist() == totals.tolist()


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("search", [Greedy(max_new_tokens=9), Beam(max_new_tokens=9, num_beams=3)], ids=["greedy", "beam"])
@torch.no_grad()
def test_every_mixer_with_a_cache_generates_as_uncached(mixer, search):
    model, prompts = build_small_model(mixer), [text.numpy() for text in random_texts((5, 1, 9))]
    decoder = build_incremental_decoder(model, search.max_new_tokens)
    assert isinstance(decoder, KVCacheDecoder)
    cached, uncached = (generate(decoder, prompts, search, eos_token_id=3) for decoder in (decoder, UncachedDecoder(model)))
    assert [result.tokens for result in cached] == [result.tokens for result in uncached]
    assert [result.log_prob for result in cached] == pytest.approx([result.log_prob for result in uncached], abs=1e-4)


@torch.no_grad()
def test_layers_of_different_mixers_have_different_caches():
    mixers = {"attention": MIXERS["rope"], "lite": MIXERS["lite-transformer"]}
    model = build_small_model(mixers["attention"])
    model.encoder.stack.layers[1].mixer = mixers["lite"].for_layer(1, 2).build(16).eval()
    prompts = [text.numpy() for text in random_texts((5, 1, 9))]
    cached, uncached = KVCacheDecoder(model, 4), UncachedDecoder(model)
    (state, logits), (texts, expected) = cached.prefill(prompts), uncached.prefill(prompts)
    for _ in range(4):
        tokens = expected.argmax(-1)
        (state, logits), (texts, expected) = cached.decode_step(state, tokens), uncached.decode_step(texts, tokens)
        assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert [type(layer).__name__ for layer in state.layers] == ["LayerKVCache", "LongShortRangeCache"]


@torch.no_grad()
def test_decoding_step_allocates_no_keys_and_values():
    model = build_small_model(MIXERS["rope"])
    decoder = KVCacheDecoder(model, 6)
    state, logits = decoder.prefill([text.numpy() for text in random_texts((3, 5))])
    storage = [layer.keys_values.data_ptr() for layer in state.layers]
    for _ in range(6):
        state, logits = decoder.decode_step(state, logits.argmax(-1))
    assert [layer.keys_values.data_ptr() for layer in state.layers] == storage
    assert all(isinstance(layer, LayerKVCache) and layer.keys_values.shape[3] == 5 + 6 for layer in state.layers)


@pytest.mark.parametrize(
    ("mixer", "decoder_class"),
    [
        (TransformerXL(num_attention_heads=2, mem_len=4), SegmentMemoryDecoder),
        (Longformer(num_attention_heads=2, attention_window=(4,), causal=True, global_attention=False), UncachedDecoder),
        (Lstm(directions="forward"), UncachedDecoder),
    ],
    ids=["transformer-xl", "longformer", "lstm"],
)
def test_mixers_without_a_kv_cache_generate_by_memory_or_uncached(mixer, decoder_class):
    assert isinstance(build_incremental_decoder(build_small_model(mixer), 4), decoder_class)


@torch.no_grad()
def test_next_tokens_layout_equals_from_lengths():
    past = torch.tensor([3, 1, 4])
    expected, actual = Layout.from_lengths([1, 1, 1], past_lengths=past), Layout.next_tokens(past, past)
    for name in ("lengths", "cu_seqlens", "seq_id", "position", "past_lengths"):
        assert (
            torch.equal(getattr(actual, name), getattr(expected, name))
            and getattr(actual, name).dtype == getattr(expected, name).dtype
        )
    assert actual.max_seqlen == expected.max_seqlen == 1 and actual.num_positions == 5 and not actual.is_aligned
