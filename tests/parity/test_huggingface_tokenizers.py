"""Tokenizers of Hugging Face folders: imported, exported, and equal to what transformers reads."""

import json

import pytest
from tokenizers import Tokenizer as TokenizerFast
from tokenizers import decoders, models, pre_tokenizers, trainers

from bertsmith.commands import load_stage
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from tests.support.huggingface_models import VOCAB_SIZE, import_folder, run_stage, save_random_model, transformers
from tests.support.texts import VOCAB, make_english_text

TEXTS = ["The people of a way.", "Naïve 天地, what?", "unheardof WORDS — it's [MASK]", ""]


def assert_tokenizers_agree(folder, reference_folder):
    ours, reference = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, reference_folder))
    for text in TEXTS:
        assert dict(ours(text)) == dict(reference(text))
    assert ours(TEXTS[0], TEXTS[1])["input_ids"] == reference(TEXTS[0], TEXTS[1])["input_ids"]
    assert ours.mask_token_id == reference.mask_token_id


@pytest.mark.parametrize("settings", [{"do_lower_case": True}, {"do_lower_case": False}, {"strip_accents": False}])
def test_bert_tokenizer_survives_import_and_export(settings, tmp_path):
    save_random_model("BertForMaskedLM", tmp_path / "hf")
    config = {"tokenizer_class": "BertTokenizer", **settings}
    (tmp_path / "hf/tokenizer_config.json").write_text(json.dumps(config))
    _, _, tokenizer = import_folder(tmp_path / "hf", tmp_path / "ours")
    reference = transformers.BertTokenizerFast(str(tmp_path / "hf/vocab.txt"), **settings)
    reference.save_pretrained(tmp_path / "peer")
    reference_backend = TokenizerFast.from_file(str(tmp_path / "peer/tokenizer.json"))
    assert tokenizer.json_dict["normalizer"] == json.loads(reference_backend.to_str())["normalizer"] | {"clean_text": True}
    run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")
    assert_tokenizers_agree(tmp_path / "back", tmp_path / "peer")
    assert (tmp_path / "back/vocab.txt").read_text(encoding="utf-8").split() == VOCAB


@pytest.mark.parametrize("vocab_file", ["tokenizer.json", "vocab.json"])
def test_byte_level_tokenizer_survives_import_and_export(vocab_file, tmp_path):
    backend = TokenizerFast(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special_tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special_tokens, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(make_english_text(20).split("\n"), trainer)
    save_random_model("RobertaForMaskedLM", tmp_path / "hf", vocab_size=backend.get_vocab_size())
    (tmp_path / "hf/vocab.txt").unlink()
    if vocab_file == "tokenizer.json":
        backend.save(str(tmp_path / "hf/tokenizer.json"))
    else:
        backend.model.save(str(tmp_path / "hf"))
    _, _, tokenizer = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert (
        tokenizer.cls_token_id,
        tokenizer.pad_token_id,
        tokenizer.sep_token_id,
        tokenizer.unk_token_id,
        tokenizer.mask_token_id,
    ) == (0, 1, 2, 3, 4)
    for text in TEXTS[:2]:
        assert tokenizer.encode(text).ids == backend.encode(text, add_special_tokens=False).ids
    run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert exported(TEXTS[0])["input_ids"] == [0, *backend.encode(TEXTS[0]).ids, 2]


def test_import_with_an_explicit_tokenizer(tmp_path):
    save_random_model("BertModel", tmp_path / "hf")
    (tmp_path / "hf/vocab.txt").rename(tmp_path / "words.txt")
    module = load_stage("import")
    run_import = lambda **settings: module.run(module.Recipe(source=str(tmp_path / "hf"), **settings), True)
    run_import(out=str(tmp_path / "cased"), tokenizer=str(tmp_path / "words.txt"), lowercase=False)
    assert checkpoint.load(tmp_path / "cased")[1].json_dict["normalizer"]["lowercase"] is False
    with pytest.raises(UserError, match="has its own setting"):
        run_import(out=str(tmp_path / "no"), tokenizer=str(tmp_path / "cased"), lowercase=True)


def test_import_treats_blank_vocab_line_as_unused_token(tmp_path):
    save_random_model("BertModel", tmp_path / "hf")
    vocab = [*VOCAB[:50], "", *VOCAB[51:]]
    (tmp_path / "hf/vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    _, _, tokenizer = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert len(tokenizer) == VOCAB_SIZE and tokenizer.is_special[50] and tokenizer.encode(VOCAB[-1]).ids == [VOCAB_SIZE - 1]


def test_import_refuses_tokenizer_larger_than_the_embedding(tmp_path):
    save_random_model("BertModel", tmp_path / "hf", vocab_size=VOCAB_SIZE - 1)
    with pytest.raises(UserError, match="give the tokenizer of this model"):
        import_folder(tmp_path / "hf", tmp_path / "ours")
