"""Loading vocab.txt as editors save it, encoding text with a mask token, and adding special tokens."""

import lzma

import pytest
from tokenizers import Tokenizer as TokenizerFast
from tokenizers import decoders, models, pre_tokenizers

from bertsmith.errors import UserError
from bertsmith.tokenization.pipeline import assemble_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer, build_bert_tokenizer, register_special_tokens
from bertsmith.tokenization.trainers import build_model, train_vocabulary

LINES = [*SPECIAL_TOKENS, "the", "##s"]


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.txt.xz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("trailing_newlines", [0, 1, 2])
def test_load_vocab_txt_with_any_line_ends_and_bom(tmp_path, name, newline, bom, trailing_newlines):
    data = (bom + newline.join(LINES) + newline * trailing_newlines).encode()
    (tmp_path / name).write_bytes(lzma.compress(data) if name.endswith("xz") else data)
    assert Tokenizer.load(tmp_path / name).id_to_token == LINES


@pytest.mark.parametrize("text", ["[PAD]\n\n[UNK]\n", "[PAD]\r\n \t\r\n[UNK]\r\n", "[PAD]\n\n\n"])
def test_load_refuses_vocab_txt_with_blank_line(tmp_path, text):
    (tmp_path / "vocab.txt").write_bytes(text.encode())
    with pytest.raises(UserError, match=r"vocab\.txt, line 2 is blank; remove it, or write \[unused-1\]"):
        Tokenizer.load(tmp_path / "vocab.txt")


def test_unused_token_is_not_among_non_special_ids():
    assert Tokenizer.from_vocab([*LINES, "[unused-7]"]).non_special_ids.tolist() == [5, 6]


def make_sentencepiece_backend():
    """As in XLM-R: words are separated by spaces only."""
    tokens = [*SPECIAL_TOKENS, "▁", "▁the", "▁cat", "▁sat", "▁on"]
    backend = TokenizerFast(models.Unigram([(token, -1.0) for token in tokens], unk_id=1))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(split=False), decoders.Metaspace()
    return register_special_tokens(backend)


def train_backend(kind):
    prefix = " " if kind == "byte-bpe" else ""
    counts = {word: 9 for word in ("the", "sat", *(prefix + word for word in ("cat", "sat", "on")))}
    return assemble_tokenizer(
        kind, build_model(train_vocabulary(kind, counts.items(), 300, special_tokens=SPECIAL_TOKENS)), True
    )


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "sentence pieces"])
@pytest.mark.parametrize("text", ["the cat sat on", "the cat sat sat on", "the  cat  sat", "sat on"])
def test_encode_with_mask_replaces_the_word_and_its_space(kind, text):
    tokenizer = Tokenizer(make_sentencepiece_backend() if kind == "sentence pieces" else train_backend(kind))
    ids = tokenizer.encode(text).ids
    tokens = [tokenizer.id_to_token[token_id].strip("Ġ▁") for token_id in ids]
    assert tokens.count("sat") == text.count("sat")  # one token each
    expected = [tokenizer.mask_token_id if token == "sat" else token_id for token, token_id in zip(tokens, ids, strict=True)]
    assert tokenizer.encode_with_mask(text.replace("sat", "[MASK]")) == expected


def test_encode_with_mask_of_byte_tokenizer_keeps_the_space():
    tokenizer = Tokenizer(
        assemble_tokenizer("byte", build_model(train_vocabulary("byte", [], 300, special_tokens=SPECIAL_TOKENS)), True)
    )
    ids = tokenizer.encode("the cat").ids
    assert tokenizer.encode_with_mask("the [MASK]at") == [*ids[:4], tokenizer.mask_token_id, *ids[5:]]


def test_with_special_tokens_appends_ids_or_refuses_gaps():
    tokenizer = Tokenizer.from_vocab(LINES)
    extended = tokenizer.with_special_tokens(["[x]", "[y]", "[CLS]"])
    assert extended.id_to_token == [*tokenizer.id_to_token, "[x]", "[y]"] and extended.cls_token_id == tokenizer.cls_token_id
    assert extended.encode("[x] the [y]").ids == tokenizer.encode("[x] the [y]").ids
    assert len(tokenizer) == len(LINES)  # unchanged
    vocab_with_gaps = {**{name: token_id for token_id, name in enumerate(SPECIAL_TOKENS)}, "a": 9, "b": 6}
    with pytest.raises(UserError, match="ids without a token"):
        Tokenizer(build_bert_tokenizer(models.WordPiece(vocab_with_gaps, unk_token="[UNK]"), True)).with_special_tokens(["[x]"])
