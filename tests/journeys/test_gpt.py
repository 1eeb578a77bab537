"""GPT from text to generation and likelihood, by the command line and in Python."""

import json
import math

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.commands import predict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.support.cli import run_cli, run_cli_json
from tests.support.corpora import prepare_test_corpus
from tests.support.rows import write_jsonl
from tests.support.texts import WORDS

SMALL = """
model=gpt2 model.num_hidden_layers=2 model.hidden_size=32 model.mixer.num_attention_heads=2
model.feedforward.intermediate_size=64 model.max_position_embeddings=48 max_length=48
train.batch_tokens=512 train.learning_rate=5e-3 validation_split=0 objective=clm train.steps=150
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def gpt_model(tmp_path_factory):
    """A model trained on text in which each word determines the next, with a byte-level BPE tokenizer."""
    folder, rng = tmp_path_factory.mktemp("rounds"), np.random.default_rng(0)
    starts = rng.integers(0, len(WORDS), (80, 4))
    lines = ["\n".join(" ".join((WORDS * 2)[start : start + 12]) for start in row) for row in starts]
    (folder / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    run_cli("tokenizer", f"texts={folder / 'text.txt'}", "kind=byte-bpe", "vocab_size=500", f"out={folder / 'tokenizer'}")
    prepare_test_corpus(folder / "text.txt", folder / "tokenizer", folder / "corpus")
    run_cli("pretrain", f"corpus={folder / 'corpus'}", f"out={folder / 'gpt'}", *SMALL)
    return folder / "gpt"


def next_words(word, count):
    start = WORDS.index(word) + 1
    return (WORDS * 3)[start : start + count]


def test_gpt_generate_continues_training_text(gpt_model):
    model = bertsmith.load(gpt_model)
    prompt = " ".join(WORDS[20:24])
    result = model.generate(prompt, max_new_tokens=4)
    assert result["generated_text"].split()[:3] == next_words(WORDS[23], 3) and result["generated_text"].startswith(" ")
    assert model(prompt)["token_ids"][:4] == result["token_ids"]
    results = model.generate([prompt, " ".join(WORDS[5:12])], kind="beam", num_beams=2, max_new_tokens=3)
    assert results[1]["generated_text"].split()[:2] == next_words(WORDS[11], 2)


def test_gpt_predict_command_matches_python(gpt_model, tmp_path):
    model, prompt = bertsmith.load(gpt_model), " ".join(WORDS[30:34])
    options = [f"model={gpt_model}", f"text={prompt}"]
    greedy = json.loads(run_cli("predict", *options, "generate.max_new_tokens=5").stdout.splitlines()[0])
    assert greedy == model.generate(prompt, max_new_tokens=5)
    keys = ["generate=sample", "generate.top_p=0.9", "generate.temperature=1.5", "generate.seed=3", "generate.max_new_tokens=9"]
    sampled = json.loads(run_cli("predict", *options, *keys).stdout.splitlines()[0])
    assert sampled == model.generate(prompt, kind="sample", top_p=0.9, temperature=1.5, seed=3, max_new_tokens=9)
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join([prompt, WORDS[3], prompt]) + "\n", encoding="utf-8")
    run_cli_json("predict", f"model={gpt_model}", f"data={file}", f"out={tmp_path / 'said.jsonl'}", *keys)
    rows = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert rows[0]["token_ids"] == sampled["token_ids"] != rows[2]["token_ids"] and len(rows) == 3  # the copy: another sample


def test_gpt_samples_each_copy_of_a_prompt_anew_whatever_the_batches(gpt_model, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "CHUNK_SIZE", 3)
    texts = [WORDS[3], WORDS[5], WORDS[3], WORDS[3], WORDS[5], WORDS[3], WORDS[3]]
    file = write_jsonl(tmp_path / "prompts.jsonl", [{"text": text} for text in texts])
    answers = []
    for batch_tokens in (8, 512):
        out = tmp_path / f"{batch_tokens}.jsonl"
        run_cli_json("predict", f"model={gpt_model}", f"data={file}", f"out={out}", f"batch_tokens={batch_tokens}",
                     "generate=sample", "generate.temperature=2", "generate.max_new_tokens=12")  # fmt: skip
        answers.append([json.loads(line)["generated_text"] for line in out.read_text().splitlines()])
    assert answers[0] == answers[1]
    assert len({answers[0][i] for i, text in enumerate(texts) if text == WORDS[3]}) == 5


def test_gpt_likelihood_matches_chain_rule(gpt_model):
    model = bertsmith.load(gpt_model)
    texts = [" ".join(WORDS[8:14]), "the", " ".join(WORDS[14:8:-1])]
    results = model.likelihood(texts)
    for text, result in zip(texts, results, strict=True):
        ids = torch.tensor([model.tokenizer.cls_token_id, *model.tokenizer.encode(text).ids])
        with torch.inference_mode():
            log_probs = model.model.compute_logits("lm", model.model(Inputs(ids, Layout.from_lengths([len(ids)])))).log_softmax(
                -1
            )
        total = sum(float(log_probs[i, token]) for i, token in enumerate(ids[1:].tolist()))
        assert result["log_prob"] == pytest.approx(total, abs=1e-3) and result["num_tokens"] == len(ids) - 1
        assert (result["num_words"], type(result["num_words"])) == (
            len(text.split()),
            int,
        )  # the first word has no space before it
    assert results[0]["log_prob_per_token"] > results[2]["log_prob_per_token"] + math.log(2)  # the trained order is more likely


def test_gpt_refuses_invalid_requests(gpt_model):
    model = bertsmith.load(gpt_model)
    with pytest.raises(UserError, match="is causal and cannot fill masks"):
        model.fill("the [MASK] of")
    with pytest.raises(UserError, match="no room for new tokens"):
        model.generate(" ".join(WORDS))
    with pytest.raises(UserError, match="top_p"):
        model.generate("the", kind="beam", top_p=0.5)
    assert (
        len(model.generate(" ".join(WORDS[:20]), max_new_tokens=1000)["token_ids"]) <= 48
    )  # limited by max_position_embeddings
    process = run_cli("predict", "model=mini-en", "text=the [MASK] of", "generate.max_new_tokens=5", code=2)
    assert "for causal models" in process.stderr


def test_gpt_embed(gpt_model):
    assert bertsmith.load(gpt_model).embed(["the of", "and"]).shape == (2, 32)


def test_gpt_can_be_trained_after_generating(gpt_model):
    predictor = bertsmith.load(gpt_model, device="cpu")
    predictor.generate(WORDS[3], max_new_tokens=2)
    model = predictor.model.train()
    model(Inputs(torch.tensor([5, 6, 7]), Layout.from_lengths([3]))).sum().backward()
    assert not any(weight.is_inference() for weight in model.parameters())
