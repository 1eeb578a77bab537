"""A causal model from text to texts that go on, by the command line and in Python."""

import json
import math

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.conftest import WORDS, prepared
from tests.journeys.test_pretraining import answer, ran

SMALL = """
model=gpt2 model.layers=2 model.width=32 model.mixer.heads=2 model.feedforward.inner=64 model.positions=48 length=48
train.batch_tokens=512 train.rate=5e-3 held_out=0 objective=causal train.steps=150
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Text in which every word says which one follows, in a byte-level vocabulary, and a model that has read it."""
    folder, rng = tmp_path_factory.mktemp("rounds"), np.random.default_rng(0)
    starts = rng.integers(0, len(WORDS), (80, 4))
    lines = ["\n".join(" ".join((WORDS * 2)[a : a + 12]) for a in some) for some in starts]
    (folder / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    ran("tokenizer", f"texts={folder / 'text.txt'}", "kind=byte-bpe", "size=500", f"out={folder / 'tokenizer'}")
    prepared(folder / "text.txt", folder / "tokenizer", folder / "corpus")
    ran("pretrain", f"corpus={folder / 'corpus'}", f"out={folder / 'gpt'}", *SMALL)
    return folder / "gpt"


def follows(word, count):
    at = WORDS.index(word) + 1
    return (WORDS * 3)[at : at + count]


def test_a_text_goes_on_as_those_it_was_trained_on(rounds):
    model = bertsmith.load(rounds)
    prompt = " ".join(WORDS[20:24])
    said = model.generate(prompt, tokens=4)
    assert said["text"].split()[:3] == follows(WORDS[23], 3) and said["text"].startswith(" ")
    assert model(prompt)["tokens"][:4] == said["tokens"]
    several = model.generate([prompt, " ".join(WORDS[5:12])], kind="beam", size=2, tokens=3)
    assert several[1]["text"].split()[:2] == follows(WORDS[11], 2)


def test_the_command_line_says_the_same(rounds, tmp_path):
    model, prompt = bertsmith.load(rounds), " ".join(WORDS[30:34])
    words = [f"model={rounds}", f"text={prompt}"]
    greedy = json.loads(ran("predict", *words, "generate.tokens=5").stdout.splitlines()[0])
    assert greedy == model.generate(prompt, tokens=5)
    keys = ["generate=sample", "generate.top_p=0.9", "generate.temperature=1.5", "generate.seed=3", "generate.tokens=9"]
    drawn = json.loads(ran("predict", *words, *keys).stdout.splitlines()[0])
    assert drawn == model.generate(prompt, kind="sample", top_p=0.9, temperature=1.5, seed=3, tokens=9)
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join([prompt, WORDS[3], prompt]) + "\n", encoding="utf-8")
    answer("predict", f"model={rounds}", f"data={file}", f"out={tmp_path / 'said.jsonl'}", *keys)
    told = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert told[0]["tokens"] == told[2]["tokens"] == drawn["tokens"] and len(told) == 3


def test_likelihood_is_the_chain_rule(rounds):
    model = bertsmith.load(rounds)
    texts = [" ".join(WORDS[8:14]), "the", " ".join(WORDS[14:8:-1])]
    found = model.likelihood(texts)
    for text, told in zip(texts, found, strict=True):
        ids = torch.tensor([model.tokenizer.cls_token_id, *model.tokenizer.encode(text).ids])
        with torch.inference_mode():
            logs = model.model.compute_logits("words", model.model(Inputs(ids, Layout.from_lengths([len(ids)])))).log_softmax(
                -1
            )
        total = sum(float(logs[n, token]) for n, token in enumerate(ids[1:].tolist()))
        assert told["total"] == pytest.approx(total, abs=1e-3) and told["tokens"] == len(ids) - 1
        assert (told["words"], type(told["words"])) == (len(text.split()), int)  # the first has no space before it
    assert found[0]["per_token"] > found[2]["per_token"] + math.log(2)  # in order it is likelier


def test_what_cannot_be_asked_is_said(rounds):
    model = bertsmith.load(rounds)
    with pytest.raises(UserError, match="writes on"):
        model.fill("the [MASK] of")
    with pytest.raises(UserError, match="leave no room"):
        model.generate(" ".join(WORDS))
    with pytest.raises(UserError, match="top_p"):
        model.generate("the", kind="beam", top_p=0.5)
    assert len(model.generate(" ".join(WORDS[:20]), tokens=1000)["tokens"]) <= 48  # as far as there are positions
    told = ran("predict", "model=mini-en", "text=the [MASK] of", "generate.tokens=5", code=2)
    assert "for a causal model" in told.stderr


def test_a_text_has_a_vector(rounds):
    assert bertsmith.load(rounds).embed(["the of", "and"]).shape == (2, 32)


def test_a_model_that_has_written_can_be_trained(rounds):
    predictor = bertsmith.load(rounds, device="cpu")
    predictor.generate(WORDS[3], tokens=2)
    model = predictor.model.train()
    model(Inputs(torch.tensor([5, 6, 7]), Layout.from_lengths([3]))).sum().backward()
    assert not any(weight.is_inference() for weight in model.parameters())
