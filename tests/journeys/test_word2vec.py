"""word2vec and fastText from a corpus to a model folder: resuming, refused options, unknown words."""

import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith import api
from bertsmith.config import from_dict, iter_keys
from bertsmith.corpus.store import Corpus
from bertsmith.errors import Interrupted, UserError
from bertsmith.model import checkpoint
from bertsmith.objectives.word2vec import SkipGram
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.recipes import read_recipe
from bertsmith.word_vectors.models import load_vectors
from bertsmith.word_vectors.word2vec import Word2VecTrainer

CATEGORIES = [
    ["cat", "dog", "horse", "cow", "goat"],
    ["red", "blue", "green", "black", "white"],
    ["runs", "eats", "sleeps", "jumps", "waits"],
    ["house", "tree", "river", "hill", "field"],
]
SMALL_CORPUS = {"window": 2, "sample": 0.0}  # all words are frequent here
OBJECTIVES = [
    {"kind": "skip-gram", **SMALL_CORPUS},
    {"kind": "cbow", **SMALL_CORPUS},
    {"kind": "skip-gram", "hs": True, **SMALL_CORPUS},
    {"kind": "cbow", "hs": True, **SMALL_CORPUS},
    {"kind": "cbow", "subwords": {"bucket": 500}, **SMALL_CORPUS},
]


def synthetic_text() -> str:
    """Words of a category occur in the same positions."""
    rng = random.Random(0)
    choices = [rng.choice for _ in CATEGORIES]
    lines = [
        "a {1} {0} {2} near the {4} {3}".format(
            *(pick(category) for pick, category in zip(choices, CATEGORIES, strict=True)), rng.choice(CATEGORIES[1])
        )
        for _ in range(3000)
    ]
    return "\n\n".join("\n".join(lines[start : start + 30]) for start in range(0, len(lines), 30)) + "\n"


@pytest.fixture(scope="module")
def word_corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    (folder / "text.txt").write_text(synthetic_text())
    texts = [str(folder / "text.txt")]
    api.train_tokenizer(texts=texts, kind="word", vocab_size=100, out=str(folder / "tokenizer"), quiet=True)
    api.prepare(texts=texts, tokenizer=str(folder / "tokenizer"), out=str(folder / "corpus"), workers=1, quiet=True)
    return folder / "corpus"


def pretrain_vectors(corpus, out, objective, **options):
    train = {"epochs": 4, "device": "cpu", **options.pop("train", {})}
    return api.pretrain(corpus=str(corpus), objective=objective, train=train, out=str(out), quiet=True,
                        **{"model": {"hidden_size": 12}} | options)  # fmt: skip


@pytest.mark.parametrize(
    "objective", OBJECTIVES, ids=lambda one: "-".join([one["kind"], *(name for name in one if name in ("hs", "subwords"))])
)
def test_word2vec_neighbours_are_of_same_category(word_corpus, tmp_path, objective):
    train = {"learning_rate": 0.1} if objective["kind"] == "skip-gram" else {}
    result = pretrain_vectors(word_corpus, tmp_path / "out", objective, train=train)
    vectors = load_vectors(tmp_path / "out")
    is_correct = [vectors.most_similar(word, 1)[0][0] in category for category in CATEGORIES for word in category]
    assert np.mean(is_correct) >= 0.8
    assert result["words"] == 23 and result["vector_size"] == 12 and vectors.vector_size == 12
    assert result["loss"] < (2.8 if objective.get("hs") else 0.693 * 6)
    assert not pretrain_vectors(word_corpus, tmp_path / "out", objective, train=train)["created"]


def test_word2vec_folder_works_as_model(word_corpus, tmp_path):
    pretrain_vectors(word_corpus, tmp_path / "out", {"kind": "cbow"})
    predictor = bertsmith.load(tmp_path / "out", device="cpu")
    vectors = load_vectors(tmp_path / "out")
    embedding = predictor.embed("red house")
    assert embedding == pytest.approx((vectors.get_vector("red") + vectors.get_vector("house")) / 2, abs=1e-6)
    several = predictor.embed(["red", "", "nowhere", "house nowhere"])  # unknown words have no vector
    assert several[0] == pytest.approx(vectors.get_vector("red"), abs=1e-6) and not several[1:3].any()
    assert several[3] == pytest.approx(vectors.get_vector("house"), abs=1e-6)
    model, tokenizer, _ = checkpoint.load(tmp_path / "out")
    assert model.compute_logits("lm", model.encoder.word_embeddings.weight[:3]).shape == (3, len(tokenizer))
    unk_vector = model.encoder.word_embeddings.weight[tokenizer.unk_token_id]
    assert (unk_vector == 0).all()


def test_fasttext_vector_of_unknown_word(word_corpus, tmp_path):
    objective = {"kind": "skip-gram", "subwords": {"min_n": 2, "max_n": 4, "bucket": 800}, **SMALL_CORPUS}
    pretrain_vectors(word_corpus, tmp_path / "out", objective, train={"learning_rate": 0.1})
    vectors = load_vectors(tmp_path / "out")
    model, *_ = checkpoint.load(tmp_path / "out")
    assert vectors.has_vector("greenish") and "greenish" not in vectors.key_to_index
    assert vectors.get_vector("greenish") == pytest.approx(
        model.encoder.input_embeddings.embed_words(["greenish"])[0].detach().numpy(), abs=1e-6
    )
    assert vectors.similarity("greenish", "green") > vectors.similarity("greenish", "horse")
    predictor = bertsmith.load(tmp_path / "out", device="cpu")
    assert predictor.embed("greenish") == pytest.approx(vectors.get_vector("greenish"), abs=1e-6)
    assert (vectors.get_vector("GreenISH") == vectors.get_vector("greenish")).all()  # normalized as in a text


KILLED_RUN = """
import os, sys
from bertsmith import api
from bertsmith.word_vectors.word2vec import Word2VecTrainer
from bertsmith.pretraining import word_vectors
word_vectors.SAVE_SECONDS = 0.0
train_round = Word2VecTrainer.train_round
def killed_round(self, k):
    if k == 5:
        os.kill(os.getpid(), 9)
    return train_round(self, k)
Word2VecTrainer.train_round = killed_round
api.pretrain(corpus=sys.argv[1], out=sys.argv[2], objective={"kind": "skip-gram"}, model={"hidden_size": 12},
             train={"epochs": 4, "device": "cpu"}, quiet=True)
"""


def test_word2vec_killed_run_resumes_exactly(word_corpus, tmp_path, capsys):
    process = subprocess.run([sys.executable, "-c", KILLED_RUN, str(word_corpus), str(tmp_path / "killed")], check=False)
    assert process.returncode == -9 and not (tmp_path / "killed" / "config.json").exists()
    api.pretrain(corpus=str(word_corpus), out=str(tmp_path / "killed"), objective={"kind": "skip-gram"},
                 model={"hidden_size": 12}, train={"epochs": 4, "device": "cpu"})  # fmt: skip
    assert "resuming from round 5 of" in capsys.readouterr().err
    pretrain_vectors(word_corpus, tmp_path / "whole", {"kind": "skip-gram"})
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "killed" / "state").exists()


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_word2vec_result_is_independent_of_threads(word_corpus, tmp_path, objective):
    def train_with(threads):
        torch.set_num_threads(threads)
        objective_config = from_dict(
            PretrainRecipe, {"corpus": "c", "out": "o", "objective": {**objective, "vector_size": 12}}
        ).objective
        trainer = objective_config.build_trainer(
            Corpus.open(word_corpus), tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None, 0.1
        )
        trainer.set_batch_words(256)  # several steps per round
        losses = [trainer.train_round(k)["loss"] for k in range(3)]
        assert torch.get_num_threads() == threads
        return losses, trainer.state_dict()

    num_threads = torch.get_num_threads()
    try:
        (losses, state), (other_losses, other_state) = train_with(1), train_with(2)
    finally:
        torch.set_num_threads(num_threads)
    assert losses == other_losses and all(torch.equal(state[name], other_state[name]) for name in state)


def test_word2vec_stop_signal_reports_round(word_corpus, tmp_path, monkeypatch):
    train_round = Word2VecTrainer.train_round

    def stopped_round(self, k):
        if k == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_round(self, k)

    monkeypatch.setattr(Word2VecTrainer, "train_round", stopped_round)
    with pytest.raises(Interrupted, match="checkpoint saved at round 4 of"):
        pretrain_vectors(word_corpus, tmp_path / "out", {"kind": "cbow"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": {"gradient_accumulation_steps": 9}},
            "train.gradient_accumulation_steps has no effect on objective=skip-gram, which uses train.epochs, train.learning",
        ),
        ({"train": {"steps": 9, "epochs": None}}, "train.steps has no effect"),
        ({"model": {"hidden_size": 12, "num_hidden_layers": 2}}, "set only model.hidden_size"),
        ({"model": None, "init": "mini-en"}, "leave out init"),
        ({"objective": {"kind": "cbow", "learning_rate": 0.2}}, "unknown key.*did you mean 'train.learning_rate'"),
        (
            {"objective": {"kind": "skip-gram", "vector_size": 8}},
            "objective.vector_size=8 contradicts model.hidden_size=12",
        ),
        (
            {"objective": {"kind": "skip-gram", "vector_size": 100}},
            "objective.vector_size=100 contradicts model.hidden_size=12",
        ),
        ({"objective": {"kind": "skip-gram", "subwords": {"min_n": 4, "max_n": 3}}}, "min_n=4 is more than max_n=3"),
    ],
)
def test_word2vec_refuses_network_options(word_corpus, tmp_path, changes, message):
    objective = changes.pop("objective", {"kind": "skip-gram"})
    with pytest.raises(UserError, match=message):
        pretrain_vectors(word_corpus, tmp_path / "out", objective, **dict(changes))


def test_word2vec_accepts_train_and_model_keys(word_corpus, tmp_path):
    pretrain_vectors(word_corpus, tmp_path / "a", {"kind": "cbow"}, train={"learning_rate": 0.2, "epochs": 0.5})
    pretrain_vectors(
        word_corpus,
        tmp_path / "b",
        {"kind": "cbow", "vector_size": 12},
        train={"learning_rate": 0.2, "epochs": 0.5},
        model=None,
    )
    train = {"learning_rate": 0.2, "epochs": 0.5, "batch_tokens": 64}
    pretrain_vectors(word_corpus, tmp_path / "c", {"kind": "cbow"}, train=train)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize(
    ("objective", "learning_rate"), [("mlm", 1e-4), ("clm", 1e-4), ("skip-gram", 0.025), ("cbow", 0.15), ("glove", 0.05)]
)
def test_default_learning_rate_depends_on_objective(objective, learning_rate):
    overrides = ["corpus=c", "out=o", f"objective={objective}", "train.epochs=2"]
    assert read_recipe(PretrainRecipe, overrides=overrides).train.learning_rate == learning_rate
    for given in (1e-4, 0.3):
        recipe = read_recipe(PretrainRecipe, overrides=[*overrides, f"train.learning_rate={given}"])
        assert recipe.train.learning_rate == given
    help_text = next(key.description for key in iter_keys(PretrainRecipe) if key.name == "train.learning_rate")
    assert f"{learning_rate:g}" in help_text.replace("1e-4", "0.0001")


@pytest.mark.parametrize("hs", [False, True])
@pytest.mark.parametrize("kind", ["skip-gram", "cbow"])
def test_word2vec_shard_without_known_words_changes_nothing(word_corpus, tmp_path, kind, hs):
    corpus = Corpus.open(word_corpus)
    tokens = corpus.tokens.copy()
    tokens[: len(tokens) // 4] = corpus.tokenizer.unk_token_id
    object.__setattr__(corpus, "tokens", tokens)
    trainer = from_dict(
        PretrainRecipe, {"corpus": "c", "out": "o", "objective": {"kind": kind, "hs": hs, "vector_size": 4}}
    ).objective.build_trainer(corpus, tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None)
    initial = trainer.input_table.rows.clone()
    assert trainer.train_round(0)["loss"] == 0 and torch.equal(trainer.input_table.rows, initial)
    assert trainer.train_round(trainer.num_rounds - 1)["loss"] > 0


def test_word2vec_step_has_at_least_one_chunk(word_corpus, tmp_path):
    pretrain_vectors(word_corpus, tmp_path / "out", {"kind": "cbow"}, train={"epochs": 0.3, "batch_tokens": 5})
    assert np.isfinite(load_vectors(tmp_path / "out").matrix).all()


def test_word2vec_refuses_corpus_without_words(word_corpus, tmp_path):
    corpus = Corpus.open(word_corpus)
    object.__setattr__(corpus, "tokens", np.zeros(100, np.uint16))
    with pytest.raises(UserError, match="fewer than two known words"):
        SkipGram().build_trainer(corpus, tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None)


def test_word2vec_fails_on_nonfinite_vectors(word_corpus, tmp_path):
    trainer = SkipGram(vector_size=4).build_trainer(
        Corpus.open(word_corpus), tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None, learning_rate=0.5
    )
    trainer.input_table.rows[:] = torch.inf
    with pytest.raises(UserError, match=r"not finite in round 1; lower train.learning_rate \(0.5\)"):
        trainer.train_round(0)
