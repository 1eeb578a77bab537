"""word2vec and fastText from a corpus to a folder that every stage takes: killed, refused, asked for words never seen."""

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
from bertsmith.config import from_dict, read_recipe
from bertsmith.corpus.store import Corpus
from bertsmith.errors import Interrupted, UserError
from bertsmith.model import checkpoint
from bertsmith.objectives.word2vec import SkipGram
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.train.config import TrainConfig
from bertsmith.word_vectors.models import load_vectors
from bertsmith.word_vectors.word2vec import Word2VecTrainer

KINDS = [
    ["cat", "dog", "horse", "cow", "goat"],
    ["red", "blue", "green", "black", "white"],
    ["runs", "eats", "sleeps", "jumps", "waits"],
    ["house", "tree", "river", "hill", "field"],
]
SMALL = {"window": 2, "sample": 0.0}  # all words are frequent here
WAYS = [
    {"kind": "skip-gram", "rate": 0.1, **SMALL},
    {"kind": "cbow", **SMALL},
    {"kind": "skip-gram", "tree": True, "rate": 0.1, **SMALL},
    {"kind": "cbow", "tree": True, **SMALL},
    {"kind": "cbow", "subwords": {"buckets": 500}, **SMALL},
]


def text() -> str:
    """Words of a kind stand in like places."""
    drawn = random.Random(0)
    one = [drawn.choice for _ in KINDS]
    lines = [
        "a {1} {0} {2} near the {4} {3}".format(
            *(pick(kind) for pick, kind in zip(one, KINDS, strict=True)), drawn.choice(KINDS[1])
        )
        for _ in range(3000)
    ]
    return "\n\n".join("\n".join(lines[at : at + 30]) for at in range(0, len(lines), 30)) + "\n"


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    place = tmp_path_factory.mktemp("words")
    (place / "text.txt").write_text(text())
    texts = [str(place / "text.txt")]
    api.train_tokenizer(texts=texts, kind="word", size=100, out=str(place / "tokenizer"), quiet=True)
    api.prepare(texts=texts, tokenizer=str(place / "tokenizer"), out=str(place / "corpus"), workers=1, quiet=True)
    return place / "corpus"


def learnt(words, out, objective, **changed):
    train = {"epochs": 4, "device": "cpu", **changed.pop("train", {})}
    return api.pretrain(corpus=str(words), objective=objective, train=train, out=str(out), quiet=True,
                        **{"model": {"width": 12}} | changed)  # fmt: skip


@pytest.mark.parametrize(
    "objective", WAYS, ids=lambda one: "-".join([one["kind"], *(name for name in one if name in ("tree", "subwords"))])
)
def test_words_that_stand_in_like_places_are_near(words, tmp_path, objective):
    told = learnt(words, tmp_path / "out", objective)
    found = load_vectors(tmp_path / "out")
    right = [found.most_similar(word, 1)[0][0] in kind for kind in KINDS for word in kind]
    assert np.mean(right) >= 0.8
    assert told["words"] == 23 and told["width"] == 12 and found.vector_size == 12
    assert told["loss"] < (2.8 if objective.get("tree") else 0.693 * 6)
    assert not learnt(words, tmp_path / "out", objective)["made"]


def test_the_folder_is_a_model_like_others(words, tmp_path):
    learnt(words, tmp_path / "out", {"kind": "cbow"})
    predictor = bertsmith.load(tmp_path / "out", device="cpu")
    want = load_vectors(tmp_path / "out")
    found = predictor.embed("red house")
    assert found == pytest.approx((want.get_vector("red") + want.get_vector("house")) / 4, abs=1e-6)  # [CLS] and [SEP] are zero
    model, tokenizer, _ = checkpoint.load(tmp_path / "out")
    assert model.compute_logits("words", model.encoder.tokens.weight[:3]).shape == (3, len(tokenizer))
    unknown = model.encoder.tokens.weight[tokenizer.unk_token_id]
    assert (unknown == 0).all()


def test_a_word_never_seen_is_made_of_its_n_grams(words, tmp_path):
    objective = {"kind": "skip-gram", "rate": 0.1, "subwords": {"least": 2, "most": 4, "buckets": 800}, **SMALL}
    learnt(words, tmp_path / "out", objective)
    found = load_vectors(tmp_path / "out")
    model, *_ = checkpoint.load(tmp_path / "out")
    assert found.has_vector("greenish") and "greenish" not in found.key_to_index
    assert found.get_vector("greenish") == pytest.approx(
        model.encoder.front.embed_words(["greenish"])[0].detach().numpy(), abs=1e-6
    )
    assert found.similarity("greenish", "green") > found.similarity("greenish", "horse")
    predictor = bertsmith.load(tmp_path / "out", device="cpu")
    assert predictor.embed("greenish") == pytest.approx(found.get_vector("greenish") / 3, abs=1e-6)
    assert (found.get_vector("GreenISH") == found.get_vector("greenish")).all()  # as in a text


KILLED = """
import os, sys
from bertsmith import api
from bertsmith.word_vectors.word2vec import Learning
from bertsmith.pretraining import word_vectors
word_vectors.SAVE = 0.0
whole = Learning.turn
def turn(self, k):
    if k == 5:
        os.kill(os.getpid(), 9)
    return whole(self, k)
Learning.turn = turn
api.pretrain(corpus=sys.argv[1], out=sys.argv[2], objective={"kind": "skip-gram"}, model={"width": 12},
             train={"epochs": 4, "device": "cpu"}, quiet=True)
"""


def test_a_run_that_was_killed_goes_on_bit_for_bit(words, tmp_path, capsys):
    died = subprocess.run([sys.executable, "-c", KILLED, str(words), str(tmp_path / "killed")], check=False)
    assert died.returncode == -9 and not (tmp_path / "killed" / "config.json").exists()
    api.pretrain(corpus=str(words), out=str(tmp_path / "killed"), objective={"kind": "skip-gram"}, model={"width": 12},
                 train={"epochs": 4, "device": "cpu"})  # fmt: skip
    assert "going on after 5 of" in capsys.readouterr().err
    learnt(words, tmp_path / "whole", {"kind": "skip-gram"})
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "killed" / "state").exists()


@pytest.mark.parametrize("objective", WAYS, ids=str)
def test_the_vectors_are_the_same_bits_by_one_thread_and_by_two(words, tmp_path, objective):
    def learnt_by(threads):
        torch.set_num_threads(threads)
        way = from_dict(PretrainRecipe, {"corpus": "c", "out": "o", "objective": {**objective, "width": 12}}).objective
        work = way.build_trainer(Corpus.open(words), tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None)
        work.set_batch_words(256)  # several steps a turn
        losses = [work.train_round(k)["loss"] for k in range(3)]
        assert torch.get_num_threads() == threads
        return losses, work.state_dict()

    before = torch.get_num_threads()
    try:
        (losses, one), (same, two) = learnt_by(1), learnt_by(2)
    finally:
        torch.set_num_threads(before)
    assert losses == same and all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_that_is_stopped_says_where(words, tmp_path, monkeypatch):
    whole = Word2VecTrainer.train_round

    def turn(self, k):
        if k == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(self, k)

    monkeypatch.setattr(Word2VecTrainer, "train_round", turn)
    with pytest.raises(Interrupted, match="stopped after 4 of"):
        learnt(words, tmp_path / "out", {"kind": "cbow"})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"train": {"accumulate": 9}},
            "train.accumulate is for networks: objective=skip-gram takes train.epochs, train.rate",
        ),
        ({"train": {"steps": 9, "epochs": None}}, "train.steps is for networks"),
        ({"model": {"width": 12, "layers": 2}}, "takes model.width alone"),
        ({"model": None, "init": "mini-en"}, "leave out init"),
        ({"train": {"rate": 1e-4}}, "train.rate=0.0001 is what networks have.*say objective.rate=0.0001"),
        ({"train": {"rate": 0.1}, "objective": {"kind": "cbow", "rate": 0.2}}, "objective.rate=0.2 and train.rate=0.1 say two"),
        ({"objective": {"kind": "skip-gram", "width": 8}}, "objective.width=8 and model.width=12 say two things"),
        ({"objective": {"kind": "skip-gram", "width": 100}}, "objective.width=100 and model.width=12 say two things"),
        ({"objective": {"kind": "skip-gram", "subwords": {"least": 4, "most": 3}}}, "4 to 3 characters are none"),
    ],
)
def test_what_would_do_nothing_or_harm_is_refused(words, tmp_path, changed, said):
    objective = changed.pop("objective", {"kind": "skip-gram"})
    with pytest.raises(UserError, match=said):
        learnt(words, tmp_path / "out", objective, **dict(changed))


def test_the_rate_the_width_and_the_batch_may_be_said_where_networks_have_theirs(words, tmp_path):
    learnt(words, tmp_path / "a", {"kind": "cbow"}, train={"rate": 0.2, "epochs": 0.5})
    learnt(words, tmp_path / "b", {"kind": "cbow", "rate": 0.2, "width": 12}, train={"epochs": 0.5}, model=None)
    learnt(words, tmp_path / "c", {"kind": "cbow", "rate": 0.2}, train={"epochs": 0.5, "batch_tokens": 64})
    made = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert made[0] == made[1] != made[2]


def test_what_is_said_on_the_command_line_is_told_from_what_is_not():
    given = ["corpus=c", "out=o", "objective=skip-gram", "train.epochs=2"]
    assert read_recipe(PretrainRecipe, overrides=[*given, "objective.rate=1e-4"]).train == TrainConfig(epochs=2)
    with pytest.raises(UserError, match=r"say objective\.rate=0\.0001"):
        read_recipe(PretrainRecipe, overrides=[*given, "train.rate=1e-4"])
    assert (
        read_recipe(PretrainRecipe, overrides=["corpus=c", "out=o", "train.rate=1e-4"]).train == TrainConfig()
    )  # of a network


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("kind", ["skip-gram", "cbow"])
def test_a_stretch_without_a_known_word_teaches_nothing(words, tmp_path, kind, tree):
    corpus = Corpus.open(words)
    tokens = corpus.tokens.copy()
    tokens[: len(tokens) // 4] = corpus.tokenizer.unk_token_id
    object.__setattr__(corpus, "tokens", tokens)
    work = from_dict(
        PretrainRecipe, {"corpus": "c", "out": "o", "objective": {"kind": kind, "tree": tree, "width": 4}}
    ).objective.build_trainer(corpus, tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None)
    before = work.input_table.rows.clone()
    assert work.train_round(0)["loss"] == 0 and torch.equal(work.input_table.rows, before)
    assert work.train_round(work.num_rounds - 1)["loss"] > 0


def test_a_step_takes_a_chunk_at_least(words, tmp_path):
    learnt(words, tmp_path / "out", {"kind": "cbow"}, train={"epochs": 0.3, "batch_tokens": 5})
    assert np.isfinite(load_vectors(tmp_path / "out").matrix).all()


def test_a_corpus_without_words_is_refused(words, tmp_path):
    corpus = Corpus.open(words)
    object.__setattr__(corpus, "tokens", np.zeros(100, np.uint16))
    with pytest.raises(UserError, match="fewer than two words"):
        SkipGram().build_trainer(corpus, tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None)


def test_vectors_that_grow_beyond_all_numbers_end_the_run(words, tmp_path):
    work = SkipGram(width=4, rate=0.5).build_trainer(
        Corpus.open(words), tmp_path, 1, 0, torch.device("cpu"), lambda done, of: None
    )
    work.input_table.rows[:] = torch.inf
    with pytest.raises(UserError, match=r"grew beyond all numbers in turn 1; lower objective.rate \(0.5\)"):
        work.train_round(0)
