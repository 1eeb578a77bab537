"""The tokenizer of a Hugging Face folder goes along, and comes out as transformers reads it."""

import json

import pytest
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, trainers

from bertsmith.commands import load_stage
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from tests.conftest import PIECES, prose
from tests.parity.huggingface_models import WORDS, imported, run, theirs, transformers

TEXTS = ["The people of a way.", "Naïve 天地, what?", "unheardof WORDS — it's [MASK]", ""]


def agree(folder, other):
    ours, peer = (transformers.AutoTokenizer.from_pretrained(place) for place in (folder, other))
    for text in TEXTS:
        assert dict(ours(text)) == dict(peer(text))
    assert ours(TEXTS[0], TEXTS[1])["input_ids"] == peer(TEXTS[0], TEXTS[1])["input_ids"]
    assert ours.mask_token_id == peer.mask_token_id


@pytest.mark.parametrize("settings", [{"do_lower_case": True}, {"do_lower_case": False}, {"strip_accents": False}])
def test_the_tokenizer_goes_along_and_comes_out_the_same(settings, tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    told = {"tokenizer_class": "BertTokenizer", **settings}
    (tmp_path / "hf/tokenizer_config.json").write_text(json.dumps(told))
    _, _, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    peer = transformers.BertTokenizerFast(str(tmp_path / "hf/vocab.txt"), **settings)
    peer.save_pretrained(tmp_path / "peer")
    theirs_again = Rust.from_file(str(tmp_path / "peer/tokenizer.json"))
    assert tokenizer.json_dict["normalizer"] == json.loads(theirs_again.to_str())["normalizer"] | {"clean_text": True}
    run("export", model=tmp_path / "ours", out=tmp_path / "back")
    agree(tmp_path / "back", tmp_path / "peer")
    assert (tmp_path / "back/vocab.txt").read_text(encoding="utf-8").split() == PIECES


@pytest.mark.parametrize("kept", ["tokenizer.json", "vocab.json"])
def test_a_byte_level_tokenizer_goes_along_too(kept, tmp_path):
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    rust.train_from_iterator(prose(20).split("\n"), trainer)
    theirs("RobertaForMaskedLM", tmp_path / "hf", vocab_size=rust.get_vocab_size())
    (tmp_path / "hf/vocab.txt").unlink()
    if kept == "tokenizer.json":
        rust.save(str(tmp_path / "hf/tokenizer.json"))
    else:
        rust.model.save(str(tmp_path / "hf"))
    _, _, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    assert (
        tokenizer.cls_token_id,
        tokenizer.pad_token_id,
        tokenizer.sep_token_id,
        tokenizer.unk_token_id,
        tokenizer.mask_token_id,
    ) == (0, 1, 2, 3, 4)
    for text in TEXTS[:2]:
        assert tokenizer.encode(text).ids == rust.encode(text, add_special_tokens=False).ids
    run("export", model=tmp_path / "ours", out=tmp_path / "back")
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert back(TEXTS[0])["input_ids"] == [0, *rust.encode(TEXTS[0]).ids, 2]


def test_a_tokenizer_from_elsewhere_is_taken_as_told(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    (tmp_path / "hf/vocab.txt").rename(tmp_path / "words.txt")
    module = load_stage("import")
    take = lambda **more: module.run(module.Recipe(source=str(tmp_path / "hf"), **more), True)
    take(out=str(tmp_path / "cased"), tokenizer=str(tmp_path / "words.txt"), lowercase=False)
    assert checkpoint.load(tmp_path / "cased")[1].json_dict["normalizer"]["lowercase"] is False
    with pytest.raises(UserError, match="says itself"):
        take(out=str(tmp_path / "no"), tokenizer=str(tmp_path / "cased"), lowercase=True)


def test_a_blank_line_of_a_vocabulary_is_an_id_that_stands_for_nothing(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    pieces = [*PIECES[:50], "", *PIECES[51:]]
    (tmp_path / "hf/vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    _, _, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    assert len(tokenizer) == WORDS and tokenizer.is_special[50] and tokenizer.encode(PIECES[-1]).ids == [WORDS - 1]


def test_a_tokenizer_larger_than_the_table_is_refused(tmp_path):
    theirs("BertModel", tmp_path / "hf", vocab_size=WORDS - 1)
    with pytest.raises(UserError, match="another model's tokenizer"):
        imported(tmp_path / "hf", tmp_path / "ours")
