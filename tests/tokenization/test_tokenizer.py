"""A vocab.txt in the shapes editors leave it in, and the mask where the pieces of a text begin with its spaces."""

import lzma

import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers

from bertsmith.errors import UserError
from bertsmith.tokenization.pipeline import assemble_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer, build_bert_tokenizer, register_special_tokens
from bertsmith.tokenization.trainers import build_model, train_vocabulary

LINES = [*SPECIAL_TOKENS, "the", "##s"]


@pytest.mark.parametrize("ending", ["vocab.txt", "vocab.txt.xz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_vocabulary_is_its_lines_whatever_editor_saved_it(tmp_path, ending, newline, mark, last):
    data = (mark + newline.join(LINES) + newline * last).encode()
    (tmp_path / ending).write_bytes(lzma.compress(data) if ending.endswith("xz") else data)
    assert Tokenizer.load(tmp_path / ending).id_to_token == LINES


@pytest.mark.parametrize("text", ["[PAD]\n\n[UNK]\n", "[PAD]\r\n \t\r\n[UNK]\r\n", "[PAD]\n\n\n"])
def test_a_blank_line_is_no_piece_and_is_named(tmp_path, text):
    (tmp_path / "vocab.txt").write_bytes(text.encode())
    with pytest.raises(UserError, match=r"vocab\.txt, line 2 is blank; remove it, or write \[unused-1\]"):
        Tokenizer.load(tmp_path / "vocab.txt")


def test_the_name_proposed_for_a_blank_line_is_never_drawn():
    assert Tokenizer.from_vocab([*LINES, "[unused-7]"]).non_special_ids.tolist() == [5, 6]


def sentence_pieces():
    """As XLM-R has it: no words but those that spaces part."""
    pieces = [*SPECIAL_TOKENS, "▁", "▁the", "▁cat", "▁sat", "▁on"]
    rust = Rust(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=1))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.Metaspace(split=False), decoders.Metaspace()
    return register_special_tokens(rust)


def trained(kind):
    space = " " if kind == "byte-bpe" else ""
    counts = {word: 9 for word in ("the", "sat", *(space + word for word in ("cat", "sat", "on")))}
    return assemble_tokenizer(
        kind, build_model(train_vocabulary(kind, counts.items(), 300, special_tokens=SPECIAL_TOKENS)), True
    )


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "sentence pieces"])
@pytest.mark.parametrize("text", ["the cat sat on", "the cat sat sat on", "the  cat  sat", "sat on"])
def test_a_mask_stands_for_a_word_as_in_training(kind, text):
    tokenizer = Tokenizer(sentence_pieces() if kind == "sentence pieces" else trained(kind))
    ids = tokenizer.encode(text).ids
    names = [tokenizer.id_to_token[number].strip("Ġ▁") for number in ids]
    assert names.count("sat") == text.count("sat")  # one piece each
    hidden = [tokenizer.mask_token_id if name == "sat" else number for name, number in zip(names, ids, strict=True)]
    assert tokenizer.encode_with_mask(text.replace("sat", "[MASK]")) == hidden


def test_among_bytes_a_mask_is_one_byte_and_the_space_before_it_another():
    tokenizer = Tokenizer(
        assemble_tokenizer("byte", build_model(train_vocabulary("byte", [], 300, special_tokens=SPECIAL_TOKENS)), True)
    )
    ids = tokenizer.encode("the cat").ids
    assert tokenizer.encode_with_mask("the [MASK]at") == [*ids[:4], tokenizer.mask_token_id, *ids[5:]]


def test_special_tokens_are_added_behind_all_others_or_not_at_all():
    tokenizer = Tokenizer.from_vocab(LINES)
    longer = tokenizer.with_special_tokens(["[x]", "[y]", "[CLS]"])
    assert longer.id_to_token == [*tokenizer.id_to_token, "[x]", "[y]"] and longer.cls_token_id == tokenizer.cls_token_id
    assert longer.encode("[x] the [y]").ids == tokenizer.encode("[x] the [y]").ids
    assert len(tokenizer) == len(LINES)  # as it was
    gaps = {**{name: number for number, name in enumerate(SPECIAL_TOKENS)}, "a": 9, "b": 6}
    with pytest.raises(UserError, match="ids that no piece uses"):
        Tokenizer(build_bert_tokenizer(models.WordPiece(gaps, unk_token="[UNK]"), True)).with_special_tokens(["[x]"])
