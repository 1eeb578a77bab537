"""ELMo from text to tagging with frozen features, by the command line."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.support.cli import run_cli, run_cli_error, run_cli_json
from tests.support.rows import random_words, write_jsonl
from tests.support.texts import make_english_text

SMALL = [
    "model.hidden_size=64", "model.mixer.cell_size=48", "model.embeddings.filters=[[1,64],[2,64]]", "max_length=32",
    "model.embeddings.max_characters_per_token=10", "model.embeddings.num_highway=1", "train.batch_tokens=512",
    "train.learning_rate=3e-3", "eval_tokens=1024", "validation_split=0.1", "objective=bilm",
]  # fmt: skip

FROZEN = ["freeze=all", "features={layers='mix',lstm=1}", "max_length=32", "train.batch_tokens=512", "train.learning_rate=2e-2"]


def periodic_text(documents):
    """Text in which each word determines the next and the previous one."""
    rng, sequence = np.random.default_rng(0), ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    lines = [" ".join(sequence[int(i) % 10] for i in range(start, start + 9)) for start in rng.integers(10, size=6 * documents)]
    return "\n\n".join("\n".join(lines[start : start + 6]) for start in range(0, len(lines), 6)) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elmo")
    (folder / "text.txt").write_text(periodic_text(60) + "\n" + make_english_text(20), encoding="utf-8")
    run_cli("tokenizer", f"texts={folder / 'text.txt'}", "kind=word", f"out={folder / 'words'}")
    run_cli("prepare", f"texts={folder / 'text.txt'}", f"tokenizer={folder / 'words'}", f"out={folder / 'corpus'}")
    return folder / "corpus"


@pytest.fixture(scope="module")
def elmo(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("elmo") / "elmo"
    run_cli("pretrain", "model=elmo", f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60")
    return out


def test_elmo_pretraining_improves_both_directions(elmo, corpus, tmp_path):
    result = json.loads((elmo / "card.json").read_text())["result"]
    untrained = run_cli_json("pretrain", "model=elmo", f"corpus={corpus}", f"out={tmp_path / 'begun'}", *SMALL, "train.steps=1")
    assert result["perplexity"] < 0.5 * untrained["perplexity"]
    for direction in ("forward", "backward"):
        assert np.exp(result[f"valid_{direction}_nll"]) < 0.5 * np.exp(untrained[f"valid_{direction}_nll"])


def example_with_unseen_names(rng, unseen):
    """Tags depend on spelling alone: persons begin with z, places with q; both have the same length."""
    tokens, tags = [str(word) for word in random_words(rng)], ["O"] * 6
    for letter, tag, position in zip("zq", ("B-PER", "B-LOC"), rng.permutation(6), strict=False):
        stem = rng.integers(5, size=4)
        stem[3] += (stem.sum() + unseen) % 2  # training and dev names are disjoint
        tokens[position], tags[position] = letter + "".join("aeiouy"[index] for index in stem), tag
    return {"tokens": tokens, "tags": tags}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    train = write_jsonl(
        folder / "train.jsonl", [example_with_unseen_names(np.random.default_rng(i), False) for i in range(300)]
    )
    dev = write_jsonl(
        folder / "dev.jsonl", [example_with_unseen_names(np.random.default_rng(1000 + i), True) for i in range(60)]
    )
    return [f"data.train={train}", f"data.dev={dev}"]


def test_elmo_features_tag_unknown_words(elmo, files, tmp_path):
    result = run_cli_json(
        "finetune", "task=tag", f"model={elmo}", *files, f"out={tmp_path / 'out'}", *FROZEN, "train.epochs=20"
    )
    assert result["dev"]["f1"] > 0.75
    before, after = load_tensors(elmo / "model.safetensors"), load_tensors(tmp_path / "out" / "model.safetensors")
    encoder_names = [name for name in before if name.startswith("encoder.")]
    assert encoder_names and all((before[name] == after[name]).all() for name in encoder_names)
    assert (
        after["heads.task.input_layers.layer_weights"].shape == (3,) and after["heads.task.input_layers.layer_weights"].any()
    )  # the layer weights were trained
    assert (
        run_cli_json("evaluate", f"model={tmp_path / 'out'}", files[1].replace("data.dev", "data"))["scores"] == result["dev"]
    )


def test_elmo_supplements_a_tagger_that_has_embeddings_of_its_own(elmo, files, tmp_path):
    """[x; ELMo] into the BiLSTM, [h; ELMo'] out of it (Peters et al. 2018), and TagLM's place between two layers."""
    for at, lstm in (("both", 1), ("hidden", 2)):
        supplement = f"features={{layers='mix',lstm={lstm},embedding_size=12,at='{at}'}}"
        options = [option for option in FROZEN if not option.startswith("features")]
        result = run_cli_json(
            "finetune", "task=tag", f"model={elmo}", *files, f"out={tmp_path / at}", *options, supplement, "train.epochs=20"
        )
        assert result["dev"]["f1"] > 0.75  # the names of dev are unseen: only the features can tell them apart
        weights = load_tensors(tmp_path / at / "model.safetensors")
        assert weights["heads.task.embeddings.weight"].shape[1] == 12
        assert ("heads.task.output_layers.gamma" in weights) == (at == "both")
        scores = run_cli_json("evaluate", f"model={tmp_path / at}", files[1].replace("data.dev", "data"))["scores"]
        assert scores == result["dev"]


def test_bilstm_without_char_cnn_cannot_tag_unknown_words(corpus, files, tmp_path):
    tokenizer = corpus.parent / "words"
    options = ["task=tag", "model=bilstm", "model.hidden_size=32", f"tokenizer={tokenizer}", *files, f"out={tmp_path / 'out'}"]
    result = run_cli_json(
        "finetune", *options, "max_length=32", "train.batch_tokens=512", "train.learning_rate=1e-2", "train.epochs=10"
    )
    assert result["dev"]["f1"] < 0.6  # both are [UNK]


def test_taglm_is_elmo_with_one_layer(corpus, files, tmp_path):
    run_cli("pretrain", "model=taglm", f"corpus={corpus}", f"out={tmp_path / 'lm'}", *SMALL, "train.steps=20")
    options = ["task=tag", "task.crf=true", f"model={tmp_path / 'lm'}", *files, f"out={tmp_path / 'out'}", *FROZEN]
    assert run_cli_json("finetune", *options, "train.epochs=30")["dev"]["f1"] > 0.6
    model = bertsmith.load(tmp_path / "out").model
    assert model.config.encoder.num_hidden_layers == 1 and model.heads["task"].input_layers.layer_weights.shape == (2,)


def test_bilm_refuses_bidirectional_model(corpus, tmp_path):
    command = ["pretrain", "model=bilstm", f"corpus={corpus}", f"out={tmp_path / 'out'}", "train.steps=1"]
    assert "two directions share no layer" in run_cli_error(*command, "objective=bilm")


def test_elmo_pretraining_warns_of_unknown_words(corpus, tmp_path):
    command = ["pretrain", "model=elmo", *SMALL, "train.steps=1"]
    assert "character CNN" not in run_cli(*command, f"corpus={corpus}", f"out={tmp_path / 'known'}").stderr
    (tmp_path / "text.txt").write_text("one zebra two three\n\n" * 30, encoding="utf-8")
    run_cli("prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={corpus}", f"out={tmp_path / 'corpus'}")
    stderr = run_cli(*command, f"corpus={tmp_path / 'corpus'}", f"out={tmp_path / 'out'}").stderr
    assert "25.0% of the tokens of" in stderr and "character CNN" in stderr
