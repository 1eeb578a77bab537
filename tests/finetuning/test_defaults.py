"""Defaults of fine-tuning that depend on the model and the data."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bertsmith.config import from_dict
from bertsmith.finetuning.defaults import default_batch_size, default_epochs, resolve_train
from bertsmith.finetuning.examples import split_validation
from bertsmith.finetuning.recipe import FinetuneRecipe
from bertsmith.model.config import EncoderConfig
from bertsmith.objectives.supervised import ExampleBatches
from bertsmith.tasks import TextClassification, TextSimilarity
from bertsmith.tasks.base import EncodedExamples
from bertsmith.tasks.squad_files import QuestionAnsweringExample
from tests.support.cli import run_cli, run_cli_json
from tests.support.rows import classification_row, random_words, write_jsonl
from tests.support.texts import WORDS


def make_batches(count, length, task=None):
    ids = [np.ones(length, np.int64)] * count
    encoded = EncodedExamples(ids, [np.zeros(length, np.int64)] * count, np.arange(count))
    return ExampleBatches(task or TextClassification(), encoded, 4096, seed=0)


def make_recipe(**settings):
    values = {"task": "classify", "model": "m", "data": {"train": "t"}, "out": "o", **settings}
    return from_dict(FinetuneRecipe, values, "test")


@pytest.mark.parametrize(
    ("count", "length", "examples", "accumulation"),
    [(300, 15, 16, 1), (2_000, 20, 20, 1), (60_000, 14, 32, 1), (1_400, 500, 16, 2), (9_000, 250, 32, 2)],
)
def test_batch_has_16_to_32_examples_of_mean_length(count, length, examples, accumulation):
    size = default_batch_size(make_batches(count, length), accumulation=1)
    assert size.gradient_accumulation_steps == accumulation
    assert size.batch_tokens * accumulation == pytest.approx(examples * length, rel=0.01)
    updates = replace(make_batches(count, length), batch_tokens=size.batch_tokens, cache={}).batches_per_epoch / accumulation
    assert updates == pytest.approx(count / examples, rel=0.1)


def test_contrastive_batches_are_larger_and_never_accumulated():
    size = default_batch_size(make_batches(9_000, 250, TextSimilarity()), accumulation=1)
    assert size.gradient_accumulation_steps == 1 and size.batch_tokens == 64 * 250


@pytest.mark.parametrize(("updates", "epochs"), [(2105, 3), (440, 7), (400, 8), (267, 10), (115, 10), (19, 16), (4, 20)])
def test_epochs_follow_the_number_of_updates(updates, epochs):
    assert default_epochs(updates) == epochs


def test_learning_rate_is_that_of_the_card_or_scaled_by_width():
    def resolve(card, **settings):
        encoder = EncoderConfig(hidden_size=settings.pop("hidden_size", 512))
        return resolve_train(make_recipe(**settings), encoder, card, make_batches(300, 15), True).learning_rate

    card = {"finetuning": {"learning_rate": 3e-4}}
    assert resolve(card) == 3e-4
    assert resolve({}) == pytest.approx(7.5e-5) and resolve({}, hidden_size=1024) == 5e-5
    assert resolve(card, random_init=True) == 5e-4 and resolve(card, freeze="all") == 1e-3
    assert resolve(card, train={"learning_rate": 1e-5}) == 1e-5


def test_early_stopping_is_a_default_only_with_dev_and_without_a_duration():
    def patience(has_dev=True, **train):
        return resolve_train(
            make_recipe(train=train), EncoderConfig(), {}, make_batches(300, 15), has_dev
        ).early_stopping_patience

    assert patience() == 4  # half of 8 evaluations, one every second epoch of 16
    assert patience(has_dev=False) == patience(epochs=5.0) == patience(early_stopping_patience=0) == 0
    assert patience(early_stopping_patience=3) == patience(epochs=5.0, early_stopping_patience=3) == 3


def test_a_tenth_is_held_out_and_questions_of_a_passage_stay_together():
    train, held_out = split_validation(list(range(1000)), 0.1, 2000)
    assert len(held_out) == 100 and sorted(train + held_out) == list(range(1000))
    assert split_validation(list(range(1000)), 0.1, 2000) == (train, held_out)
    assert len(split_validation(list(range(1000)), 0.1, 7)[1]) == 7 and split_validation([1, 2], 0.0, 9)[1] == []
    questions = [QuestionAnsweringExample(question=str(i), context=f"passage {i // 5}") for i in range(200)]
    train, held_out = split_validation(questions, 0.1, 2000)
    assert len(held_out) == 20 and not {q.context for q in train} & {q.context for q in held_out}


def test_seeds_share_the_held_out_examples(bert, tmp_path):
    rows = [classification_row(np.random.default_rng(i)) for i in range(60)]
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    argv = ["finetune", "task=classify", f"model={bert}", f"data.train={train}", "train.steps=2", f"out={tmp_path / 'out'}"]
    result = run_cli_json(*argv, "seeds=[1,2]")
    assert result["examples"] == 54 and set(result["seeds"]) == {"1", "2"}


@pytest.mark.parametrize("settings", [[], ["max_length=32"], ["long_text=window"]])
def test_long_texts_are_read_whole_unless_a_length_is_set(bert, tmp_path, settings):
    rows = [{"text": " ".join(random_words(np.random.default_rng(i), 600)), "label": WORDS[i % 2]} for i in range(40)]
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    argv = ["finetune", "task=classify", f"model={bert}", f"data.train={train}", "train.steps=1", f"out={tmp_path / 'out'}"]
    run_cli(*argv, *settings)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = {"": "hierarchical", "max_length=32": "truncate", "long_text=window": "window"}
    assert config["task"]["long_text"] == expected["".join(settings)]
    assert config["max_length"] == (32 if settings == ["max_length=32"] else 512)


def test_shipped_models_carry_a_learning_rate_for_fine_tuning(tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", [{"text": f"film {i}", "label": str(i % 2)} for i in range(20)])
    argv = ["finetune", "task=classify", "model=mini-en", f"data.train={train}", "freeze=5", "train.steps=1"]
    result = run_cli_json(*argv, f"out={tmp_path / 'out'}")
    assert result["settings"]["train.learning_rate"] == 1.5e-4
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model"]["encoder"]["hidden_dropout_prob"] == 0.1
    again = run_cli_json(*argv[:2], f"model={tmp_path / 'out'}", *argv[3:], f"out={tmp_path / 'again'}")
    assert again["settings"]["train.learning_rate"] == 1.5e-4
