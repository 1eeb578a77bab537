"""From text to a small ELMo, and from there to tags of words it never saw, by the command line."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.conftest import prose
from tests.journeys.test_finetuning import sentence, written
from tests.journeys.test_pretraining import answer, ran, refused

SMALL = [
    "model.width=64", "model.mixer.hidden=48", "model.front.filters=[[1,64],[2,64]]", "length=32",
    "model.front.letters=10", "model.front.highways=1", "train.batch_tokens=512", "train.rate=3e-3", "eval_tokens=1024",
    "held_out=0.1", "objective=both-ways",
]  # fmt: skip

FROZEN = ["freeze=all", "features={layers='mix',lstm=1}", "length=32", "train.batch_tokens=512", "train.rate=2e-2"]


def fluent(documents):
    """Text in which one word foretells the next, and the other way round."""
    rng, chain = np.random.default_rng(0), ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    lines = [" ".join(chain[int(s) % 10] for s in range(at, at + 9)) for at in rng.integers(10, size=6 * documents)]
    return "\n\n".join("\n".join(lines[at : at + 6]) for at in range(0, len(lines), 6)) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elmo")
    (folder / "text.txt").write_text(fluent(60) + "\n" + prose(20), encoding="utf-8")
    ran("tokenizer", f"texts={folder / 'text.txt'}", "kind=word", f"out={folder / 'words'}")
    ran("prepare", f"texts={folder / 'text.txt'}", f"tokenizer={folder / 'words'}", f"out={folder / 'corpus'}")
    return folder / "corpus"


@pytest.fixture(scope="module")
def elmo(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("elmo") / "elmo"
    ran("pretrain", "model=elmo", f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60")
    return out


def test_it_learns_to_foretell_both_ways(elmo, corpus, tmp_path):
    told = json.loads((elmo / "card.json").read_text())["result"]
    begun = answer("pretrain", "model=elmo", f"corpus={corpus}", f"out={tmp_path / 'begun'}", *SMALL, "train.steps=1")
    assert told["perplexity"] < 0.5 * begun["perplexity"]
    for way in ("forward", "backward"):
        assert np.exp(told[f"valid_{way}"]) < 0.5 * np.exp(begun[f"valid_{way}"])


def named(rng, unseen):
    """The spelling alone tells: a person is written with z, a place with q; one is as long as the other."""
    tokens, tags = [str(word) for word in sentence(rng)], ["O"] * 6
    for letter, tag, place in zip("zq", ("B-PER", "B-LOC"), rng.permutation(6), strict=False):
        stem = rng.integers(5, size=4)
        stem[3] += (stem.sum() + unseen) % 2  # no stem of one file is in the other
        tokens[place], tags[place] = letter + "".join("aeiouy"[number] for number in stem), tag
    return {"tokens": tokens, "tags": tags}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    train = written(folder / "train.jsonl", [named(np.random.default_rng(i), False) for i in range(300)])
    dev = written(folder / "dev.jsonl", [named(np.random.default_rng(1000 + i), True) for i in range(60)])
    return [f"data.train={train}", f"data.dev={dev}"]


def test_frozen_features_tag_words_that_no_vocabulary_has(elmo, files, tmp_path):
    made = answer("finetune", "task=tag", f"model={elmo}", *files, f"out={tmp_path / 'out'}", *FROZEN, "train.epochs=20")
    assert made["dev"]["f1"] > 0.75
    before, after = load_tensors(elmo / "model.safetensors"), load_tensors(tmp_path / "out" / "model.safetensors")
    held = [name for name in before if name.startswith("encoder.")]
    assert held and all((before[name] == after[name]).all() for name in held)
    assert after["heads.task.weights"].shape == (3,) and after["heads.task.weights"].any()  # the mix was learnt
    assert answer("evaluate", f"model={tmp_path / 'out'}", files[1].replace("data.dev", "data"))["scores"] == made["dev"]


def test_without_letters_such_words_are_all_one(corpus, files, tmp_path):
    words = corpus.parent / "words"
    line = ["task=tag", "model=bilstm", "model.width=32", f"tokenizer={words}", *files, f"out={tmp_path / 'out'}"]
    made = answer("finetune", *line, "length=32", "train.batch_tokens=512", "train.rate=1e-2", "train.epochs=10")
    assert made["dev"]["f1"] < 0.6  # a person or a place, who can say


def test_taglm_is_the_case_of_one_layer(corpus, files, tmp_path):
    ran("pretrain", "model=taglm", f"corpus={corpus}", f"out={tmp_path / 'lm'}", *SMALL, "train.steps=20")
    line = ["task=tag", "task.crf=true", f"model={tmp_path / 'lm'}", *files, f"out={tmp_path / 'out'}", *FROZEN]
    assert answer("finetune", *line, "train.epochs=30")["dev"]["f1"] > 0.6
    model = bertsmith.load(tmp_path / "out").model
    assert model.config.encoder.layers == 1 and model.heads["task"].weights.shape == (2,)


def test_a_model_that_sees_its_answers_is_refused(corpus, tmp_path):
    line = ["pretrain", "model=bilstm", f"corpus={corpus}", f"out={tmp_path / 'out'}", "train.steps=1"]
    assert "never meet" in refused(*line, "objective=both-ways")


def test_words_that_pre_training_cannot_spell_are_told(corpus, tmp_path):
    line = ["pretrain", "model=elmo", *SMALL, "train.steps=1"]
    assert "spelt [UNK]" not in ran(*line, f"corpus={corpus}", f"out={tmp_path / 'known'}").stderr
    (tmp_path / "text.txt").write_text("one zebra two three\n\n" * 30, encoding="utf-8")
    ran("prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={corpus}", f"out={tmp_path / 'corpus'}")
    told = ran(*line, f"corpus={tmp_path / 'corpus'}", f"out={tmp_path / 'out'}").stderr
    assert "25.0% of the corpus are words its tokenizer does not know" in told
