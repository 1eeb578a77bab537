"""Character CNN and the lexicon: embeddings from characters alone, no out-of-vocabulary words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rust
from tokenizers import models, normalizers, pre_tokenizers
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.tokenization.characters import Lexicon
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer, register_special_tokens
from tests.support.models import CHAR_CNN_ENCODER


def build_word_tokenizer(*words, lowercase=False):
    vocab = [*SPECIAL_TOKENS, *words]
    rust = Rust(models.WordLevel({name: i for i, name in enumerate(vocab)}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if lowercase:
        rust.normalizer = normalizers.Lowercase()
    return Tokenizer(register_special_tokens(rust))


def build_small_model(tokenizer, **overrides):
    encoder = from_dict(EncoderConfig, CHAR_CNN_ENCODER | overrides)
    return build_model(ModelConfig(encoder=encoder, vocab_size=len(tokenizer)), 0, tokenizer).eval()


@given(st.text(max_size=80), st.integers(3, 60))
def test_char_ids_have_boundaries_and_all_bytes_that_fit(word, max_length):
    char_ids = Lexicon([word]).char_ids(0, max_length)
    word_bytes = list(word.encode("utf-8", "replace"))[: max_length - 2]
    assert char_ids == [259, *[byte + 1 for byte in word_bytes], 260] + [261] * (max_length - 2 - len(word_bytes))


def test_char_ids_of_bos_and_eos():
    lexicon = Lexicon(["[CLS]", "[SEP]"], bos_id=0, eos_id=1)
    assert [lexicon.char_ids(word_id, 4) for word_id in (0, 1)] == [[259, 257, 260, 261], [259, 258, 260, 261]]


def test_lexicon_appends_normalized_new_words_behind_the_vocabulary():
    tokenizer = build_word_tokenizer("cat", lowercase=True)
    assert tokenizer.encode("Cat Dog").ids == [5, tokenizer.unk_token_id]
    closed, tokenizer = tokenizer, tokenizer.with_open_vocabulary()
    lexicon = tokenizer.lexicon
    assert tokenizer.encode("Cat Dog emu dog").ids == [5, 6, 7, 6] and lexicon.words[6:] == ["dog", "emu"]
    assert [encoding.ids for encoding in tokenizer.encode_batch(["emu", ""], return_offsets=False)] == [[7], []]
    assert tokenizer.encode("a Dog").offsets == [(0, 1), (2, 5)]
    assert closed.encode("Cat Dog").ids == [5, closed.unk_token_id] and len(closed.lexicon) == len(closed)  # not changed


def test_char_cnn_is_independent_of_the_vocabulary():
    outputs = []
    for words in (("cat", "dog"), ("dog",)):
        tokenizer = build_word_tokenizer(*words).with_open_vocabulary()
        model = build_small_model(tokenizer)
        ids = torch.tensor(tokenizer.encode("cat dog cat").ids)
        outputs.append(model(Inputs(ids, Layout.from_lengths([3]))).detach())
    assert_close(outputs[0], outputs[1])


def test_char_cnn_output_is_context_free_and_the_same_in_both_halves():
    tokenizer = build_word_tokenizer("cat", "dog", "emu")
    model = build_small_model(tokenizer)
    embedding, ids = model.encoder.input_embeddings, torch.tensor([6, 5, 6, 7])
    output = embedding(ids, Layout.from_lengths([4]), None)
    assert (
        torch.equal(output[:, :4], output[:, 4:])
        and torch.equal(output[0], output[2])
        and not torch.equal(output[0], output[1])
    )
    separately = [embedding(ids[i : i + 1], Layout.from_lengths([1]), None) for i in range(4)]
    assert_close(output, torch.cat(separately))


def test_char_cnn_truncates_words_at_the_character_limit():
    tokenizer = build_word_tokenizer("abcdefghXX", "abcdefghYY", "abcdefgZ")
    output = build_small_model(tokenizer).encoder.input_embeddings(torch.tensor([5, 6, 7]), Layout.from_lengths([3]), None)
    assert torch.equal(output[0], output[1]) and not torch.equal(output[0], output[2])


def test_char_cnn_without_tokenizer_raises():
    model = build_model(ModelConfig(encoder=from_dict(EncoderConfig, CHAR_CNN_ENCODER), vocab_size=6), 0)
    with pytest.raises(UserError, match="token id 5 is out of range"):
        model(Inputs(torch.tensor([5]), Layout.from_lengths([1])))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hidden_size": 7}, "must be even"),
        ({"embeddings": CHAR_CNN_ENCODER["embeddings"] | {"max_characters_per_token": 2}}, "kernel size above"),
    ],
)
def test_char_cnn_rejects_odd_width_and_short_words(overrides, message):
    with pytest.raises(UserError, match=message):
        build_model(ModelConfig(encoder=from_dict(EncoderConfig, CHAR_CNN_ENCODER | overrides), vocab_size=6), 0)
