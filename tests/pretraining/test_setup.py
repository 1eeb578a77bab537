"""`PretrainSetup`: what fits together, what is evaluated, and the batches and weights that pretrain, plan and race share."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.commands import plan
from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model import embeddings, heads, mixers
from bertsmith.objectives import ObjectiveConfig
from bertsmith.pretraining.setup import PretrainRecipe, PretrainSetup
from tests.support.corpora import prepare_test_corpus
from tests.support.texts import make_english_text

SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "max_position_embeddings": 64,
         "mixer": {"kind": "attention", "num_attention_heads": 2}, "feedforward": {"intermediate_size": 32}}  # fmt: skip
CAUSAL = SMALL | {"mixer": {"kind": "attention", "num_attention_heads": 2, "causal": True}}
XL = SMALL | {"mixer": {"kind": "transformer-xl", "num_attention_heads": 2}, "position_embedding_type": "none"}
ELMO = {"num_hidden_layers": 1, "hidden_size": 16, "mixer": {"kind": "lstm", "directions": "apart", "cell_size": 8},
        "feedforward": None, "norm": "none", "position_embedding_type": "none", "type_vocab_size": 0, "embedding_norm": False,
        }  # fmt: skip
MODELS = {"clm": CAUSAL, "bilm": ELMO}


def build_setup(corpus, objective="mlm", model=None, **settings):
    kind = objective if isinstance(objective, str) else objective["kind"]
    values = {"corpus": str(corpus), "out": "-", "objective": objective, "model": model or MODELS.get(kind, SMALL)}
    values |= {"max_length": 32, "validation_split": 0.2, "train": {"batch_tokens": 256}, **settings}
    return PretrainSetup.from_recipe(from_dict(PretrainRecipe, values), Corpus.open(corpus))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "clm", "model": SMALL}, "objective=clm needs a causal model"),
        ({"objective": "bilm", "model": SMALL}, "objective=bilm needs a model whose two directions share no layer"),
        ({"objective": {"kind": "rtd", "packing": "streams"}}, "packing=streams is not supported by objective=rtd"),
        ({"max_length": [32, 65]}, "max_length=65 is more than the model's 64 positions"),
        ({"objective": "skip-gram"}, "objective=skip-gram trains word vectors and has no batches of sequences"),
    ],
)
def test_setup_refuses_parts_that_do_not_fit_together(corpus, settings, message):
    with pytest.raises(UserError, match=message):
        build_setup(corpus, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"model": "gpt", "objective": "mlm", "max_length": 1000}, "positions"), ({"objective": "clm"}, "needs a causal model")],
)
def test_plan_without_corpus_refuses_what_pretrain_refuses(settings, message):
    with pytest.raises(UserError, match=message):
        plan.run(from_dict(plan.Recipe, {"machine": "h200", "train": {"steps": 1}} | settings), quiet=True)


def read_warnings(setup, capsys):
    setup.warn(Console())
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": SMALL | {"position_embedding_type": "none"}}, "has no position information"),
        ({"objective": "clm", "model": XL}, "model.mixer.mem_len has no effect"),
    ],
)
def test_setup_warns_of_what_is_hardly_meant(corpus, capsys, settings, message):
    assert message in read_warnings(build_setup(corpus, **settings), capsys)


def test_setup_warns_of_too_few_documents_to_evaluate(vocabulary, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(make_english_text(6), encoding="utf-8")
    corpus = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    setup = build_setup(corpus, validation_split=0.1)
    assert "too few documents for validation_split=0.1" in read_warnings(setup, capsys) and not setup.build_eval_sets(256)


def test_setup_does_not_warn_of_what_is_meant(corpus, capsys):
    for settings in ({}, {"objective": {"kind": "clm", "packing": "streams"}, "model": XL}, {"validation_split": 0.0}):
        assert read_warnings(build_setup(corpus, **settings), capsys) == ""


@pytest.mark.parametrize(
    ("objective", "splits", "scores"),
    [
        ("mlm-nsp", ["valid", "pseudo_perplexity"], {"pseudo_perplexity"}),
        ("mlm", ["valid", "pseudo_perplexity"], {"pseudo_perplexity"}),
        ("rtd", ["valid"], set()),
        ("clm", ["valid"], {"perplexity", "bits_per_byte"}),
        ("bilm", ["valid"], {"perplexity", "bits_per_byte"}),
    ],
)
def test_objective_says_what_is_evaluated_and_reported(corpus, objective, splits, scores):
    setup = build_setup(corpus, objective)
    assert list(setup.build_eval_sets(256)) == splits
    evaluations = {split: {"loss": 1.0} for split in splits}
    summary = setup.objective.summarize(evaluations, setup.valid_corpus.card)
    assert summary.keys() == scores and setup.objective.summarize({}, setup.valid_corpus.card) == {}
    assert all(summary[name] == pytest.approx(np.e) for name in scores - {"bits_per_byte"})
    assert setup.objective.token_loss in {
        f"{part}_loss" for part in setup.objective.to_batch(setup.build_loader(32)(0)).target_counts
    }


@pytest.mark.parametrize("objective", ["mlm", "clm"])
@pytest.mark.parametrize("eval_tokens", [600, 100_000])
def test_eval_sets_have_about_as_many_tokens_as_they_say(corpus, objective, eval_tokens):
    setup = build_setup(corpus, objective, eval_tokens=eval_tokens)
    for split, eval_set in setup.build_eval_sets(256).items():
        num_tokens = sum(batch.num_tokens for batch in eval_set.batches())
        assert num_tokens == pytest.approx(eval_set.num_tokens, rel=0.5), split
        assert num_tokens == sum(batch.num_tokens for batch in eval_set.batches()), split  # made anew each time


def test_setup_without_validation_documents_evaluates_nothing(corpus):
    assert build_setup(corpus, validation_split=0.0).build_eval_sets(256) == {}


def test_smaller_micro_batches_hold_the_same_samples(corpus):
    """What an out-of-memory retry, `plan` and `race` use: the loader of the recipe, with other batches."""
    loader = build_setup(corpus).build_loader(32)
    smaller = loader.with_batch_tokens(128)
    assert loader.with_batch_tokens(256) is loader and smaller.batches_per_epoch > loader.batches_per_epoch

    def sample_ids(batches):
        return [i for k in range(batches.batches_per_epoch) for i in batches.select_samples(k)[0].sample_ids.tolist()]

    assert sample_ids(smaller) == sample_ids(loader)
    direct = build_setup(corpus).build_loader(32, batch_tokens=128)
    assert all(np.array_equal(direct(k).input_ids, smaller(k).input_ids) for k in range(smaller.batches_per_epoch))


def test_model_without_init_is_the_untrained_model(corpus):
    setup = build_setup(corpus, seed=7)
    weights, untrained = setup.build_model(Console(quiet=True)).state_dict(), setup.build_untrained_model().state_dict()
    assert weights.keys() == untrained.keys() and all(torch.equal(weights[name], untrained[name]) for name in weights)
    other = build_setup(corpus, seed=8).build_untrained_model().state_dict()
    assert any(not torch.equal(other[name], weights[name]) for name in weights)


def test_no_type_switch_over_objectives_embeddings_and_mixers():
    """Those packages ask the object; a new objective, embedding or mixer needs no change there."""
    unions = (ObjectiveConfig, embeddings.InputEmbeddingConfig, mixers.MixerConfig, heads.HeadConfig)
    kinds = {base.__name__ for union in unions for kind in union.__args__ for base in kind.__mro__[:-4]}
    assert {"CausalLM", "WordVectorObjective", "CharCNNConfig", "TransformerXL"} <= kinds
    root = Path(bertsmith.__file__).parent
    paths = [
        path for package in ("pretraining", "planning", "racing", "diagnostics") for path in (root / package).rglob("*.py")
    ]
    for path in [*paths, root / "commands" / "plan.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not names & kinds, f"{path}:{node.lineno}"


@pytest.mark.parametrize(("std", "warnings"), [(None, 0), (0.1, 0), (0.02, 1)])
def test_small_initial_weights_of_a_narrow_model_are_told(corpus, caplog, std, warnings):
    """Of 16 dimensions: the default is 0.02 * sqrt(768 / 16) = 0.14."""
    build_setup(corpus, model=SMALL | {"initializer_range": std}).warn(Console())
    messages = [record.getMessage() for record in caplog.records if "initializer_range=0.02 is small" in record.getMessage()]
    assert len(messages) == warnings and all("model.initializer_range=0.14" in message for message in messages)
