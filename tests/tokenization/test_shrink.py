"""Shrunk tokenizers: the texts of the corpus are tokenized as before, with fewer ids."""

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.tokenization.shrink import count_used_tokens, shrink_tokenizer
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.cli import run_cli

TEXTS = ["the people said that water is now", "now and then the banks of the river flood", "people and water, water and banks"]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram", "word"])
def test_texts_are_tokenized_as_before(kind, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS + [f"otherwise {a}{b} mountains" for a in "qwertz" for b in ("ing", "ed", "est")] * 3))
    run_cli(
        "tokenizer", f"texts={corpus}", f"kind={kind}", "vocab_size=400", f"out={tmp_path / 'tokenizer'}", "min_frequency=1"
    )
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    counts = count_used_tokens(tokenizer, TEXTS)
    assert counts.sum() == sum(len(tokenizer.encode(text).ids) for text in TEXTS)
    shrunk, kept = shrink_tokenizer(tokenizer, counts > 0)
    assert len(shrunk) < len(tokenizer)
    for text in TEXTS:
        old, new = tokenizer.encode(text), shrunk.encode(text)
        assert new.tokens == old.tokens and new.offsets == old.offsets
        assert kept[new.ids].tolist() == old.ids
    assert [shrunk.id_to_token[i] for i in (shrunk.pad_token_id, shrunk.mask_token_id)] == ["[PAD]", "[MASK]"]
    again = Tokenizer.from_json(shrunk.json_bytes)
    assert again.id_to_token == shrunk.id_to_token
    if kind not in ("word", "unigram"):  # any word over the alphabet can still be spelled
        assert shrunk.unk_token_id not in shrunk.encode("paddle").ids


def test_ids_of_post_processors_move(tmp_path):
    from tokenizers import processors

    vocab = ["[PAD]", "[unused-1]", "the", "[UNK]", "[CLS]", "people", "[SEP]", "[MASK]", "t", "##h"]
    backend = Tokenizer.from_vocab(vocab).backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 4), ("[SEP]", 6)])
    tokenizer = Tokenizer(backend)
    shrunk, _ = shrink_tokenizer(tokenizer, np.isin(np.arange(len(vocab)), [2]))
    assert "[unused-1]" not in shrunk.id_to_token and "people" not in shrunk.id_to_token
    tokens = shrunk.backend_tokenizer.encode("the", add_special_tokens=True).tokens
    assert tokens == ["[CLS]", "the", "[SEP]"]


def test_the_vocabulary_of_bytes_is_refused(tmp_path):
    corpus = tmp_path / "bytes.txt"
    corpus.write_text("00ff10\n")
    run_cli("tokenizer", f"texts={corpus}", "kind=byte", "hex=true", f"out={tmp_path / 'tokenizer'}")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    with pytest.raises(UserError, match="the 256 bytes"):
        shrink_tokenizer(tokenizer, np.ones(len(tokenizer), bool))
