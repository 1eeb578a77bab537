"""Next-token prediction: what is asked, of whom, and what a model that sees too much is told."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.corpus.loader import Prefetcher
from bertsmith.corpus.sampling import DocSentences, FullSentences, Windows
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import CausalLM
from bertsmith.pretraining.run import _compute_perplexity
from bertsmith.pretraining.setup import PretrainRecipe
from tests.conftest import WORDS, prepared
from tests.journeys.test_pretraining import answer, ran

TINY = EncoderConfig(
    layers=2, width=32, mixer=Attention(heads=2, causal=True), feedforward=FeedForwardConfig(inner=64), positions=64, segments=0,
    embedding_norm=False, dropout=0.0,
)  # fmt: skip
SMALL = """
model=gpt model.layers=2 model.width=32 model.mixer.heads=2 model.feedforward.inner=64 model.positions=64 length=64
train.batch_tokens=512 train.rate=3e-3 train.log_every=5 eval_tokens=2048 held_out=0.1 objective=causal train.steps=120
""".split()  # noqa: SIM905


@pytest.fixture
def text(corpus):
    return Corpus.open(corpus)


def batches(text, view=None, length=32, tokens=256):
    return CausalLM(view=view or Windows()).build_batches(text, np.arange(len(text.documents) - 1), length, tokens, seed=3)


@pytest.mark.parametrize("view", [Windows(), DocSentences(), FullSentences()])
def test_every_token_but_the_first_is_asked_of_the_one_before_it(text, view):
    for arrays in batches(text, view):
        begin = 0
        expected = []
        for length in arrays.lengths.tolist():
            expected += range(begin, begin + length - 1)
            begin += length
        assert arrays.output_indices.tolist() == expected and begin == len(arrays.input_ids)
        assert np.array_equal(arrays.target_ids, arrays.input_ids[arrays.output_indices + 1])


def test_a_sequence_ends_with_sep_exactly_where_its_document_ends(text):
    whole = {tuple(text.tokens[a:b].tolist()) for a, b in zip(text.borders[:-1], text.borders[1:], strict=True)}
    cls, sep, ended, seen = text.tokenizer.cls_token_id, text.tokenizer.sep_token_id, 0, 0
    for arrays in batches(text):
        for part in np.split(arrays.input_ids, arrays.lengths.cumsum()[:-1]):
            body = tuple(part[1:-1].tolist() if part[-1] == sep else part[1:].tolist())
            assert part[0] == cls and sep not in body
            ended, seen = ended + (part[-1] == sep), seen + len(body)
            assert (part[-1] == sep) == any(one[len(one) - len(body) :] == body for one in whole)
    assert ended == len(text.documents) - 1 and seen == len(text.tokens)


def test_workers_make_the_same_batches(text):
    reading = batches(text)
    with Prefetcher(reading.collator, 1) as ahead:
        other = ahead(1, reading.select_samples)
    assert np.array_equal(other.input_ids, reading(1).input_ids) and np.array_equal(other.target_ids, reading(1).target_ids)


def test_the_loss_is_the_sum_over_all_targets(text):
    objective = CausalLM()
    model = build_model(ModelConfig(encoder=TINY, vocabulary=len(text.tokenizer), heads=objective.heads()), 0).eval()
    batch = objective.to_batch(batches(text)(0))
    loss = objective.compute_loss(model, batch)
    scores = F.linear(model(batch.inputs), model.encoder.tokens.weight)
    total = sum(
        F.cross_entropy(scores[a : b - 1], batch.inputs.input_ids[a + 1 : b], reduction="sum")
        for a, b in zip(batch.inputs.layout.cu_seqlens[:-1], batch.inputs.layout.cu_seqlens[1:], strict=True)
    )
    assert_close(loss.parts["words"], total)
    assert batch.target_counts["words"] == batch.num_tokens - batch.inputs.layout.num_sequences
    assert sorted(model.heads["words"].state_dict()) == []  # the table is the embeddings'


@pytest.mark.parametrize(
    ("head", "parameters"),
    [
        (LMHeadConfig(), {"transform.weight", "transform.bias", "norm.weight", "norm.bias", "bias"}),
        (LMHeadConfig(transform=False), {"bias"}),
        (LMHeadConfig(transform=False, tied=False, bias=False), {"table.weight"}),
    ],
)
def test_a_head_has_the_parts_it_is_told(text, head, parameters):
    model = build_model(ModelConfig(encoder=TINY, vocabulary=len(text.tokenizer), heads={"words": head}), 0)
    assert set(model.heads["words"].state_dict()) == parameters
    batch = CausalLM().to_batch(batches(text)(0))
    CausalLM().compute_loss(model, batch).parts["words"].backward()
    assert not [n for n, p in model.heads.named_parameters() if p.grad is None or not p.grad.any()]


def test_a_tied_head_without_a_matrix_wants_the_width_of_the_tables():
    with pytest.raises(UserError, match="transform=true, or tied=false"):
        LMHeadConfig(transform=False).build(EncoderConfig(width=32, embedding=16), 100)


def test_a_model_that_sees_the_answers_is_refused(tmp_path, corpus):
    told = ran("pretrain", f"corpus={corpus}", f"out={tmp_path / 'x'}", *SMALL, "model.mixer.causal=false", code=2)
    assert "model.mixer.causal=true" in told.stderr


@pytest.fixture(scope="module")
def rounds(tmp_path_factory, vocabulary):
    """A corpus in which every word says which one follows."""
    folder, rng = tmp_path_factory.mktemp("rounds"), np.random.default_rng(0)
    starts = rng.integers(0, len(WORDS), (60, 4))
    lines = ["\n".join(" ".join((WORDS * 2)[a : a + 12]) for a in some) for some in starts]
    (folder / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return prepared(folder / "text.txt", vocabulary, folder / "corpus")


def test_text_to_a_language_model(tmp_path, rounds):
    made = answer("pretrain", f"corpus={rounds}", f"out={tmp_path / 'gpt'}", *SMALL)
    first = json.loads((tmp_path / "gpt" / "metrics.jsonl").read_text().splitlines()[0])
    assert made["valid_loss"] < first["loss"] / 2 and "pseudo_perplexity" not in made
    assert made["perplexity"] == pytest.approx(math.exp(made["valid_loss"]))
    card = Corpus.open(rounds).card
    assert made["bits_per_byte"] == pytest.approx(made["valid_loss"] / math.log(2) * card["tokens"] / card["bytes"])
    said = json.loads(ran("doctor", str(tmp_path / "gpt"), "--json", code=1).stdout.splitlines()[-1])
    assert [one["name"] for one in said["findings"]] == ["duplicate lines", "too little text"]  # and nothing of masks
    planned = answer("plan", f"corpus={rounds}", f"out={tmp_path / 'p'}", *SMALL, "seconds=0.1")
    assert planned["fits"] and planned["parameters"]["all"] == made["parameters"]
    ran("show", "curves", f"model={tmp_path / 'gpt'}", f"out={tmp_path / 'curves.html'}")
    ran("show", "run", f"model={tmp_path / 'gpt'}", f"corpus={rounds}", f"out={tmp_path / 'run.html'}")
    told = ran("show", "masks", f"corpus={rounds}", "objective=causal", f"out={tmp_path / 'm.html'}", code=2)
    assert "hides no words" in told.stderr


def test_an_unknown_word_costs_eight_bits_a_byte():
    card = {"tokens": 10, "bytes": 60, "unknown rate": 0.2, "unknown bytes": 15}
    recipe = PretrainRecipe(corpus="-", out="-", objective=CausalLM())
    told = _compute_perplexity(recipe, {"trials": {"valid": {"loss": 3 * math.log(2)}}}, card)
    assert told["perplexity"] == pytest.approx(8) and told["bits_per_byte"] == pytest.approx((30 + 8 * 15) / 60)


def test_the_card_counts_the_bytes_of_the_text(corpus):
    text = (corpus.parent / "text.txt").read_text(encoding="utf-8")
    assert Corpus.open(corpus).card["bytes"] == len(text.replace("\n", "").encode())


def test_a_causal_model_compiles_as_others_do(text):
    torch._dynamo.reset()
    objective = CausalLM()
    model = build_model(ModelConfig(encoder=TINY, vocabulary=len(text.tokenizer), heads=objective.heads()), 0)
    plain = objective.compute_loss(model, objective.to_batch(batches(text)(0))).parts["words"]
    model.compile_parts()
    assert_close(
        objective.compute_loss(model, objective.to_batch(batches(text)(0))).parts["words"], plain, rtol=1e-4, atol=1e-3
    )
