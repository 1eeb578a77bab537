"""Words by their letters: each alone, never looked up, none unknown."""

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

TINY = {
    "layers": 1, "width": 8, "feedforward": "none", "norm": "none", "residual": "none", "table": False, "segments": 0,
    "embedding_norm": False, "dropout": 0.0, "pooler": "none", "pool": "mean", "mixer": {"kind": "lstm", "directions": "apart"},
    "front": {"kind": "characters", "filters": [[1, 3], [3, 5]], "letters": 10},
}  # fmt: skip


def tokenizer(*words, lowercase=False):
    names = [*SPECIAL_TOKENS, *words]
    rust = Rust(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if lowercase:
        rust.normalizer = normalizers.Lowercase()
    return Tokenizer(register_special_tokens(rust))


def model(words, **more):
    made = build_model(ModelConfig(encoder=from_dict(EncoderConfig, TINY | more), vocabulary=len(words)), 0).eval()
    made.attach_tokenizer(words)
    return made


@given(st.text(max_size=80), st.integers(3, 60))
def test_a_spelling_has_its_ends_and_every_byte_that_fits(word, letters):
    spelt = Lexicon([word]).char_ids(0, letters)
    kept = list(word.encode("utf-8", "replace"))[: letters - 2]
    assert spelt == [259, *[byte + 1 for byte in kept], 260] + [261] * (letters - 2 - len(kept))


def test_the_ends_of_a_sentence_are_letters_of_their_own():
    lexicon = Lexicon(["[CLS]", "[SEP]"], bos_id=0, eos_id=1)
    assert [lexicon.char_ids(number, 4) for number in (0, 1)] == [[259, 257, 260, 261], [259, 258, 260, 261]]


def test_new_words_are_numbered_behind_the_vocabulary_as_the_tokenizer_reads_them():
    words = tokenizer("cat", lowercase=True)
    assert words.encode("Cat Dog").ids == [5, words.unk_token_id]
    lexicon = words.enable_lexicon()
    assert words.encode("Cat Dog emu dog").ids == [5, 6, 7, 6] and lexicon.words[6:] == ["dog", "emu"]
    assert [one.ids for one in words.encode_batch(["emu", ""], return_offsets=False)] == [[7], []]
    assert words.encode("a Dog").offsets == [(0, 1), (2, 5)] and words.enable_lexicon() is lexicon


def test_a_word_is_the_same_whether_the_vocabulary_has_it_or_not():
    known, unknown = tokenizer("cat", "dog"), tokenizer("dog")
    outs = []
    for words in (known, unknown):
        made = model(words)
        ids = torch.tensor(words.encode("cat dog cat").ids)
        outs.append(made(Inputs(ids, Layout.from_lengths([3]))).detach())
    assert_close(outs[0], outs[1])


def test_both_halves_begin_with_the_same_vector_of_each_word_alone():
    words = tokenizer("cat", "dog", "emu")
    made = model(words)
    front, ids = made.encoder.front, torch.tensor([6, 5, 6, 7])
    out = front(ids, Layout.from_lengths([4]), None)
    assert torch.equal(out[:, :4], out[:, 4:]) and torch.equal(out[0], out[2]) and not torch.equal(out[0], out[1])
    alone = [front(ids[at : at + 1], Layout.from_lengths([1]), None) for at in range(4)]
    assert_close(out, torch.cat(alone))


def test_letters_beyond_the_limit_and_before_the_end_matter_as_told():
    words = tokenizer("abcdefghXX", "abcdefghYY", "abcdefgZ")
    out = model(words).encoder.front(torch.tensor([5, 6, 7]), Layout.from_lengths([3]), None)
    assert torch.equal(out[0], out[1]) and not torch.equal(out[0], out[2])


def test_a_model_that_never_met_its_tokenizer_says_so():
    made = build_model(ModelConfig(encoder=from_dict(EncoderConfig, TINY), vocabulary=6), 0)
    with pytest.raises(UserError, match="has no spelling"):
        made(Inputs(torch.tensor([5]), Layout.from_lengths([1])))


@pytest.mark.parametrize(
    ("wrong", "word"), [({"width": 7}, "not even"), ({"front": TINY["front"] | {"letters": 2}}, "letters")]
)
def test_what_cannot_be_spelt_is_refused(wrong, word):
    with pytest.raises(UserError, match=word):
        build_model(ModelConfig(encoder=from_dict(EncoderConfig, TINY | wrong), vocabulary=6), 0)
