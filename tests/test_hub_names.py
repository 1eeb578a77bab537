"""A name on the Hugging Face hub, given where a model folder is expected, is answered with the command that imports it."""

import pytest

import bertsmith
from bertsmith import cli
from bertsmith.artifacts import resolve_path
from bertsmith.errors import UserError
from bertsmith.hub_names import find_preset, find_repo_id
from bertsmith.model.presets import PRESETS

NAMES = {
    "bert-base-uncased": ("google-bert/bert-base-uncased", "bert-base"),
    "bert-large-cased-whole-word-masking": ("google-bert/bert-large-cased-whole-word-masking", "bert-large"),
    "google-bert/bert-base-uncased": ("google-bert/bert-base-uncased", "bert-base"),
    "roberta-base": ("FacebookAI/roberta-base", "roberta-base"),
    "xlm-roberta-large": ("FacebookAI/xlm-roberta-large", "roberta-large"),
    "distilbert-base-uncased": ("distilbert/distilbert-base-uncased", "distilbert"),
    "albert-xlarge-v2": ("albert/albert-xlarge-v2", "albert-xlarge"),
    "google/electra-small-discriminator": ("google/electra-small-discriminator", "electra-small"),
    "answerdotai/ModernBERT-large": ("answerdotai/ModernBERT-large", "modernbert-large"),
    "allenai/longformer-base-4096": ("allenai/longformer-base-4096", "longformer-base"),
    "openai-gpt": ("openai-community/openai-gpt", "gpt"),
    "owner/name": ("owner/name", "bert-base"),
}
STAGES = [
    ("finetune", "task=classify", "model={}", "data.train=x", "out=o"),
    ("evaluate", "model={}", "data=x"),
    ("predict", "model={}", "text=x"),
    ("predict", "{}", "x"),
    ("embed", "model={}", "text=x"),
    ("export", "model={}", "out=o"),
    ("convert-long", "model={}", "out=o"),
    ("doctor", "folder={}"),
]


@pytest.mark.parametrize(("name", "expected"), NAMES.items(), ids=NAMES)
def test_hub_name_has_repository_and_nearest_preset(name, expected):
    assert (find_repo_id(name), find_preset(name)) == expected and find_preset(name) in PRESETS


@pytest.mark.parametrize("arguments", STAGES, ids=" ".join)
@pytest.mark.parametrize("name", ["bert-base-uncased", "google-bert/bert-base-uncased"])
def test_stage_answers_hub_name_with_import_command(arguments, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([argument.format(name) for argument in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert "`bertsmith import source=google-bert/bert-base-uncased out=out/bert-base-uncased`" in error
    assert "\n" not in error and "shipped: mini-en, mini-en-embed, mini-zh" in error and "bert-base" in error


def test_load_answers_hub_name_with_import_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"bertsmith import source=FacebookAI/roberta-base out=out/roberta-base"):
        bertsmith.load("FacebookAI/roberta-base")


def test_pretrain_answers_hub_name_with_preset_and_import_command(capsys):
    assert cli.main(["pretrain", "corpus=c", "out=o", "model=roberta-large-mnli"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'roberta-large'?" in error
    assert "bertsmith import source=FacebookAI/roberta-large-mnli" in error and "init=out/roberta-large-mnli" in error


@pytest.mark.parametrize("key", ["model", "init", "folder"])
def test_paths_and_folders_are_not_taken_for_hub_names(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained").mkdir()
    (tmp_path / "bert-base-uncased").mkdir()
    assert str(resolve_path("trained/mood", key)) == "trained/mood"  # its parent exists: a path
    assert str(resolve_path("out/mood", key)) == "out/mood"  # the folder that every example writes to
    assert str(resolve_path("bert-base-uncased", key)) == "bert-base-uncased"
    assert str(resolve_path("a/b/c", key)) == "a/b/c"


def test_tokenizer_answers_hub_name_with_import_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"import source=google-bert/bert-base-uncased .* tokenizer=out/bert-base-uncased"):
        resolve_path("bert-base-uncased", "tokenizer")
