"""What a folder is, and what every stage says to a folder of another kind, before it does anything."""

import json
import shutil

import pytest

import bertsmith
from bertsmith import cli
from bertsmith.artifacts import detect_kind, require_kind, write_manifest
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig, SequenceHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tokenization.tokenizer import Tokenizer
from bertsmith.word_vectors.models import bag_of_vectors
from tests.support.texts import VOCAB

ENCODER = EncoderConfig(num_hidden_layers=1, hidden_size=16, mixer=Attention(num_attention_heads=2), max_position_embeddings=32)
KINDS = {
    "tokenizer": "tokenizer",
    "corpus": "corpus",
    "model": "pre-trained model",
    "mood": "fine-tuned model",
    "words": "word vectors",
    "hf": "Hugging Face folder",
    "started": "unfinished run",
    "preparing": "unfinished run",
    "other": None,
    "absent": None,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, corpus):
    """A folder of every kind, by name."""
    root, tokenizer = tmp_path_factory.mktemp("kinds"), Tokenizer.from_vocab(VOCAB)
    for name in ("tokenizer", "hf", "started/state/step-1", "preparing.part", "other"):
        (root / name).mkdir(parents=True)
    tokenizer.save(root / "tokenizer")
    write_manifest(root / "tokenizer")
    shutil.copytree(corpus, root / "corpus")
    (root / "hf" / "config.json").write_text('{"model_type": "bert"}')
    (root / "other" / "notes.txt").write_text("a note")
    task = {"kind": "classify", "labels": ["a", "b"]}
    for name, config, record in (
        ("model", ModelConfig(encoder=ENCODER, vocab_size=len(VOCAB), heads={"lm": LMHeadConfig()}), {"stage": "pretrain"}),
        ("mood", ModelConfig(encoder=ENCODER, vocab_size=len(VOCAB), heads={"task": SequenceHeadConfig(outputs=2)}),
         {"task": task}),
        ("words", bag_of_vectors(len(VOCAB), 8), {"family": "vectors"}),
    ):  # fmt: skip
        record = {"tokenizer_fingerprint": tokenizer.fingerprint, **record}
        checkpoint.save(root / name, build_model(config, 0), tokenizer, {}, record)
    return root


@pytest.mark.parametrize(("name", "kind"), KINDS.items(), ids=KINDS)
def test_kind_of_a_folder(name, kind, folders):
    assert detect_kind(folders / name) == kind


def test_kind_of_a_damaged_folder_is_what_its_manifest_lists(tmp_path, folders):
    for name, missing in (("corpus", "tokens.bin"), ("model", "config.json")):
        shutil.copytree(folders / name, tmp_path / name)
        (tmp_path / name / missing).unlink()
    assert detect_kind(tmp_path / "corpus") == "corpus"
    with pytest.raises(UserError, match=r"config.json is missing"):
        detect_kind(tmp_path / "model")


MODELS = ("model", "mood", "words")
STAGES = {  # arguments of a stage with {} for the folder; the kinds it takes; what it wants
    "corpus": ("pretrain corpus={} out=o model=bert-tiny", ("corpus",), "corpus"),
    "valid": ("pretrain corpus=corpus valid={} out=o model=bert-tiny train.steps=2", ("corpus",), "corpus"),
    "plan": ("plan corpus={} model=bert-tiny train.steps=2", ("corpus",), "corpus"),
    "show": ("show corpus corpus={} out=o.html", ("corpus",), "corpus"),
    "init": ("pretrain corpus=corpus init={} out=o train.steps=2", MODELS, "bertsmith checkpoint"),
    "vectors": ("pretrain corpus=corpus vectors={} out=o model=bert-tiny train.steps=2", MODELS, "bertsmith checkpoint"),
    "finetune": ("finetune task=classify model={} data.train=t.tsv out=o", MODELS, "bertsmith checkpoint"),
    "predict": ("predict {} x", MODELS, "bertsmith checkpoint"),
    "evaluate": ("evaluate model={} data=t.tsv", MODELS, "bertsmith checkpoint"),
    "embed": ("embed {} x", MODELS, "bertsmith checkpoint"),
    "word": ("embed model={} word=x", MODELS, "bertsmith checkpoint"),
    "export": ("export model={} out=o", MODELS, "bertsmith checkpoint"),
    "convert-long": ("convert-long model={} out=o", MODELS, "bertsmith checkpoint"),
    "tokenizer": ("prepare texts=t.tsv tokenizer={} out=o", ("tokenizer", "corpus", *MODELS), "tokenizer"),
    "extend": ("tokenizer texts=t.tsv extend={} add=9 out=o", ("tokenizer", "corpus", *MODELS), "tokenizer"),
    "doctor": ("doctor {}", ("corpus", *MODELS, "started", "preparing"), "corpus, checkpoint or run"),
}  # fmt: skip
CASES = [(stage, name) for stage, (_, taken, _) in STAGES.items() for name in KINDS if name not in taken]


@pytest.mark.parametrize(("stage", "name"), CASES, ids=map(" ".join, CASES))
def test_stage_says_what_the_folder_is_and_what_it_wants(stage, name, folders, monkeypatch, capsys):
    monkeypatch.chdir(folders)
    (folders / "t.tsv").write_text("text\tlabel\na\tx\nb\ty\n")
    arguments, _, wanted = STAGES[stage]
    assert cli.main(arguments.format(f"./{name}").split()) == 2
    error = capsys.readouterr().err.strip().split("\n")[-1]
    kind = KINDS[name]
    if kind == "unfinished run":
        assert f"{name} is an unfinished run" in error and error.endswith("run the same command again to resume")
    elif kind is not None:
        description = "a folder of word vectors" if kind == "word vectors" else f"a {kind}"
        assert f"{name} is {description}, not a {wanted}; " in error
    else:
        assert name in error and ("there is no" in error or f"is not a {wanted}" in error)
    assert "bertsmith " in error or "give " in error or "same command" in error


def test_hint_names_the_stage_that_makes_what_is_wanted(folders):
    with pytest.raises(UserError, match=r"`bertsmith prepare tokenizer=.*tokenizer texts=FILES out=...`"):
        require_kind(folders / "tokenizer", "corpus")
    with pytest.raises(UserError, match=r"`bertsmith pretrain corpus=.*corpus out=...`"):
        require_kind(folders / "corpus", "checkpoint")
    with pytest.raises(UserError, match=r"`bertsmith import source=.*hf out=...`"):
        bertsmith.load(folders / "hf")


def test_corpus_of_a_tokenizer_was_a_key_error(folders, tmp_path, capsys):
    result = cli.main(["pretrain", f"corpus={folders / 'tokenizer'}", f"out={tmp_path / 'o'}", "model=bert-tiny", "--json"])
    assert result == 2 and "is a tokenizer, not a corpus" in capsys.readouterr().err
    assert json.loads((folders / "tokenizer" / "manifest.json").read_text())  # it has a manifest, as a corpus does


@pytest.mark.parametrize("name", ["bert-tiny", "mini-en"])
def test_a_folder_called_like_a_preset_or_shipped_model_is_meant_everywhere(name, folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders / "mood", tmp_path / name)
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "one way\ta\nno people\tb\n" * 4)
    finetune = ["finetune", "task=classify", f"model={name}", "data.train=t.tsv", "out=o", "train.steps=1", "max_length=16"]
    line = f"model={name} is the folder {name}, not the {'shipped model' if name == 'mini-en' else 'preset'} of that name"
    assert cli.main(finetune) == 0
    assert capsys.readouterr().err.count(line) == 1
    assert checkpoint.read_config(tmp_path / "o")["model"]["encoder"]["hidden_size"] == ENCODER.hidden_size
    assert cli.main(["predict", name, "one way"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["label"] in ("a", "b") and captured.err.count(line) == (name == "mini-en")
