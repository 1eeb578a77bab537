"""Causal language modelling: targets, loss, perplexity, and models that are refused."""

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
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import CausalLM
from tests.support.cli import run_cli, run_cli_json
from tests.support.corpora import prepare_test_corpus
from tests.support.models import CAUSAL_ENCODER
from tests.support.texts import WORDS

SMALL = """
model=gpt model.num_hidden_layers=2 model.hidden_size=32 model.mixer.num_attention_heads=2
model.feedforward.intermediate_size=64 model.max_position_embeddings=64 max_length=64
train.batch_tokens=512 train.learning_rate=3e-3 train.log_every=5 eval_tokens=2048 validation_split=0.1
objective=clm train.steps=120
""".split()  # noqa: SIM905


@pytest.fixture
def opened_corpus(corpus):
    return Corpus.open(corpus)


def build_batches(opened_corpus, sampler=None, max_length=32, batch_tokens=256):
    return CausalLM(packing=sampler or Windows()).build_batches(
        opened_corpus, np.arange(len(opened_corpus.document_offsets) - 1), max_length, batch_tokens, seed=3
    )


@pytest.mark.parametrize("sampler", [Windows(), DocSentences(), FullSentences()])
def test_clm_targets_are_next_tokens(opened_corpus, sampler):
    for arrays in build_batches(opened_corpus, sampler):
        start = 0
        expected = []
        for length in arrays.lengths.tolist():
            expected += range(start, start + length - 1)
            start += length
        assert arrays.output_indices.tolist() == expected and start == len(arrays.input_ids)
        assert np.array_equal(arrays.target_ids, arrays.input_ids[arrays.output_indices + 1])


def test_clm_sep_marks_end_of_document(opened_corpus):
    documents = {
        tuple(opened_corpus.tokens[start:end].tolist())
        for start, end in zip(opened_corpus.document_token_offsets[:-1], opened_corpus.document_token_offsets[1:], strict=True)
    }
    cls, sep, num_ended, num_tokens = opened_corpus.tokenizer.cls_token_id, opened_corpus.tokenizer.sep_token_id, 0, 0
    for arrays in build_batches(opened_corpus):
        for sequence in np.split(arrays.input_ids, arrays.lengths.cumsum()[:-1]):
            body = tuple(sequence[1:-1].tolist() if sequence[-1] == sep else sequence[1:].tolist())
            assert sequence[0] == cls and sep not in body
            num_ended, num_tokens = num_ended + (sequence[-1] == sep), num_tokens + len(body)
            assert (sequence[-1] == sep) == any(document[len(document) - len(body) :] == body for document in documents)
    assert num_ended == len(opened_corpus.document_offsets) - 1 and num_tokens == len(opened_corpus.tokens)


def test_clm_prefetched_batches_match(opened_corpus):
    loader = build_batches(opened_corpus)
    with Prefetcher(loader.collator, 1) as prefetch:
        prefetched = prefetch(1, loader.select_samples)
    assert np.array_equal(prefetched.input_ids, loader(1).input_ids) and np.array_equal(
        prefetched.target_ids, loader(1).target_ids
    )


def test_clm_loss_is_sum_over_targets(opened_corpus):
    objective = CausalLM()
    model = build_model(
        ModelConfig(encoder=CAUSAL_ENCODER, vocab_size=len(opened_corpus.tokenizer), heads=objective.heads()), 0
    ).eval()
    batch = objective.to_batch(build_batches(opened_corpus)(0))
    loss = objective.compute_loss(model, batch)
    logits = F.linear(model(batch.inputs), model.encoder.word_embeddings.weight)
    expected = sum(
        F.cross_entropy(logits[start : end - 1], batch.inputs.input_ids[start + 1 : end], reduction="sum")
        for start, end in zip(batch.inputs.layout.cu_seqlens[:-1], batch.inputs.layout.cu_seqlens[1:], strict=True)
    )
    assert_close(loss.parts["lm"], expected)
    assert batch.target_counts["lm"] == batch.num_tokens - batch.inputs.layout.num_sequences
    assert sorted(model.heads["lm"].state_dict()) == []  # tied to the token embeddings


@pytest.mark.parametrize(
    ("head", "parameters"),
    [
        (LMHeadConfig(), {"transform.weight", "transform.bias", "norm.weight", "norm.bias", "bias"}),
        (LMHeadConfig(transform=False), {"bias"}),
        (LMHeadConfig(transform=False, tied=False, bias=False), {"output_embeddings.weight"}),
    ],
)
def test_lm_head_parameters_by_config(opened_corpus, head, parameters):
    model = build_model(ModelConfig(encoder=CAUSAL_ENCODER, vocab_size=len(opened_corpus.tokenizer), heads={"lm": head}), 0)
    assert set(model.heads["lm"].state_dict()) == parameters
    batch = CausalLM().to_batch(build_batches(opened_corpus)(0))
    CausalLM().compute_loss(model, batch).parts["lm"].backward()
    assert not [n for n, p in model.heads.named_parameters() if p.grad is None or not p.grad.any()]


def test_lm_head_tied_without_transform_needs_equal_sizes():
    with pytest.raises(UserError, match="transform=true, or tied=false"):
        LMHeadConfig(transform=False).build(EncoderConfig(hidden_size=32, embedding_size=16), 100)


def test_clm_refuses_non_causal_model(tmp_path, corpus):
    process = run_cli("pretrain", f"corpus={corpus}", f"out={tmp_path / 'x'}", *SMALL, "model.mixer.causal=false", code=2)
    assert "model.mixer.causal=true" in process.stderr


@pytest.fixture(scope="module")
def periodic_corpus(tmp_path_factory, vocabulary):
    """A corpus in which each word determines the next."""
    folder, rng = tmp_path_factory.mktemp("rounds"), np.random.default_rng(0)
    starts = rng.integers(0, len(WORDS), (60, 4))
    lines = ["\n".join(" ".join((WORDS * 2)[start : start + 12]) for start in row) for row in starts]
    (folder / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return prepare_test_corpus(folder / "text.txt", vocabulary, folder / "corpus")


def test_clm_pretraining_end_to_end(tmp_path, periodic_corpus):
    result = run_cli_json("pretrain", f"corpus={periodic_corpus}", f"out={tmp_path / 'gpt'}", *SMALL)
    first_row = json.loads((tmp_path / "gpt" / "metrics.jsonl").read_text().splitlines()[0])
    assert result["valid_loss"] < first_row["loss"] / 2 and "pseudo_perplexity" not in result
    assert result["perplexity"] == pytest.approx(math.exp(result["valid_loss"]))
    card = Corpus.open(periodic_corpus).card
    assert result["bits_per_byte"] == pytest.approx(result["valid_loss"] / math.log(2) * card["tokens"] / card["bytes"])
    report = json.loads(run_cli("doctor", str(tmp_path / "gpt"), "--json", code=1).stdout.splitlines()[-1])
    # and no finding about masks
    assert [finding["name"] for finding in report["findings"]] == [
        "duplicate text",
        "too little text",
    ]
    plan = run_cli_json("plan", f"corpus={periodic_corpus}", f"out={tmp_path / 'p'}", *SMALL, "seconds=0.1")
    assert plan["fits"] and plan["parameters"]["total"] == result["parameters"]
    run_cli("show", "curves", f"model={tmp_path / 'gpt'}", f"out={tmp_path / 'curves.html'}")
    run_cli("show", "run", f"model={tmp_path / 'gpt'}", f"corpus={periodic_corpus}", f"out={tmp_path / 'run.html'}")
    process = run_cli("show", "masks", f"corpus={periodic_corpus}", "objective=clm", f"out={tmp_path / 'm.html'}", code=2)
    assert "does not mask tokens" in process.stderr


def test_bits_per_byte_counts_eight_bits_per_unknown_byte():
    card = {"tokens": 10, "bytes": 60, "unknown_rate": 0.2, "unknown_bytes": 15}
    scores = CausalLM().summarize({"valid": {"loss": 3 * math.log(2)}}, card)
    assert scores["perplexity"] == pytest.approx(8) and scores["bits_per_byte"] == pytest.approx((30 + 8 * 15) / 60)


def test_corpus_card_counts_bytes(corpus):
    text = (corpus.parent / "text.txt").read_text(encoding="utf-8")
    assert Corpus.open(corpus).card["bytes"] == len(text.replace("\n", "").encode())


def test_clm_compiled_model_matches_eager(opened_corpus):
    torch._dynamo.reset()
    objective = CausalLM()
    model = build_model(
        ModelConfig(encoder=CAUSAL_ENCODER, vocab_size=len(opened_corpus.tokenizer), heads=objective.heads()), 0
    )
    eager_loss = objective.compute_loss(model, objective.to_batch(build_batches(opened_corpus)(0))).parts["lm"]
    model.compile_parts()
    assert_close(
        objective.compute_loss(model, objective.to_batch(build_batches(opened_corpus)(0))).parts["lm"],
        eager_loss,
        rtol=1e-4,
        atol=1e-3,
    )
