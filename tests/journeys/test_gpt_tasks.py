"""Fine-tuning GPT on every task: last-token pooling, pairs in both orders, auxiliary LM loss."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import bertsmith
from bertsmith.model import checkpoint
from bertsmith.model.heads import LMHeadConfig, SequenceHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives.regularizers import AuxiliaryLM, AuxiliaryLMBatches
from bertsmith.objectives.supervised import ExampleBatches, Supervised, build_batch
from bertsmith.tasks import MultipleChoice, TextClassification, TextRegression
from bertsmith.tasks.base import BothOrdersPair
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.multiple_choice import MultipleChoiceExample
from bertsmith.tasks.regression import RegressionExample
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.cli import FAST, run_cli, run_cli_error, run_cli_json
from tests.support.models import CAUSAL_ENCODER
from tests.support.rows import CASES, classification_row, random_words, squad_paragraph, write_jsonl
from tests.support.texts import VOCAB

SMALL = """
model=gpt2 model.num_hidden_layers=2 model.hidden_size=32 model.mixer.num_attention_heads=2
model.feedforward.intermediate_size=64 model.max_position_embeddings=64 max_length=64
train.batch_tokens=512 train.learning_rate=1e-3 eval_tokens=2048 objective=clm train.steps=5 model.initializer_range=0.1
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def gpt(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpt") / "gpt"
    run_cli("pretrain", f"corpus={corpus}", f"out={out}", *SMALL)
    return out


def similar_pair(rng):
    """Two texts; label 1 if the same keyword is in both, in any order."""
    same = bool(rng.integers(2))
    first = str(rng.choice(["people", "water"]))
    second = first if same else {"people": "water", "water": "people"}[first]
    texts = [" ".join(rng.permutation([*random_words(rng, 2), word])) for word in (first, second)]
    return {"text": texts[0], "text_b": texts[1], "label": float(same)}


@pytest.mark.parametrize("kind", CASES)
def test_gpt_learns_every_task_with_auxiliary_lm(gpt, tmp_path, kind):
    make_example, metric = CASES[kind]
    train, dev = (
        write_jsonl(tmp_path / f"{size}.jsonl", [make_example(np.random.default_rng(i + size)) for i in range(size)])
        for size in (600, 100)
    )
    options = [f"task={kind}", f"model={gpt}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST]
    result = run_cli_json("finetune", *options, "train.epochs=8", "aux_lm_weight=0.5")
    assert result["dev"][metric] > 0.8
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    lm_losses = [row["lm_loss"] for row in rows if "lm_loss" in row]
    assert lm_losses[-1] < lm_losses[0]
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")
    assert evaluation["scores"] == pytest.approx(result["dev"])


def test_gpt_learns_question_answering(gpt, tmp_path):
    for size in (500, 60):
        paragraphs = [squad_paragraph(np.random.default_rng(i + size), i) for i in range(size)]
        (tmp_path / f"{size}.json").write_text(
            json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
        )
    files = [f"data.train={tmp_path / '500.json'}", f"data.dev={tmp_path / '60.json'}", f"out={tmp_path / 'out'}"]
    assert (
        run_cli_json("finetune", "task=answer", f"model={gpt}", *files, *FAST, "train.epochs=8", "aux_lm_weight=0.5")["dev"][
            "exact"
        ]
        > 0.8
    )


def test_gpt_both_orders_is_symmetric(gpt, tmp_path):
    rows = [similar_pair(np.random.default_rng(i)) for i in range(900)]
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows[:800]), write_jsonl(tmp_path / "dev.jsonl", rows[800:])
    options = ["task=regress", "task.pair=both", f"model={gpt}", f"data.train={train}", f"data.dev={dev}"]
    result = run_cli_json("finetune", *options, f"out={tmp_path / 'out'}", *FAST, "train.epochs=12", "aux_lm_weight=0.5")
    assert result["dev"]["pearson"] > 0.5
    model = bertsmith.load(tmp_path / "out")
    prediction, swapped = model("people of the", "the water was"), model("the water was", "people of the")
    assert prediction["score"] == pytest.approx(swapped["score"], abs=1e-5)


def test_auxiliary_lm_refuses_incompatible_options(gpt, corpus, tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", [classification_row(np.random.default_rng(i)) for i in range(40)])
    command = ["finetune", "task=classify", f"data.train={train}", f"out={tmp_path / 'out'}", *FAST, "aux_lm_weight=0.5"]
    command.append("data.validation_split=0")
    assert "causal" in run_cli_error(*command, "model=mini-en")
    assert "cannot be combined with features or rdrop" in run_cli_error(*command, f"model={gpt}", "rdrop=1")
    assert "cannot be combined with features or rdrop" in run_cli_error(*command, f"model={gpt}", "features={}")


# unit tests


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_vocab(VOCAB)


def tokens_of(tokenizer, ids):
    return [tokenizer.id_to_token[token_id] for token_id in ids]


def build_task_model(task, tokenizer):
    heads = {
        "task": SequenceHeadConfig(outputs=task.num_outputs, dropout=0.0),
        "lm": LMHeadConfig(transform=False, bias=False),
    }
    return build_model(ModelConfig(encoder=CAUSAL_ENCODER, vocab_size=len(tokenizer), heads=heads), 3).eval()


def test_gpt_encoding_of_texts_and_pairs(tokenizer):
    task = TextClassification(labels=("a", "b"))
    encoded = task.encode([ClassificationExample("the of"), ClassificationExample("the of", "and to")], tokenizer, 16)
    assert [tokens_of(tokenizer, ids) for ids in encoded.input_ids] == [
        ["[CLS]", "the", "of", "[SEP]"],
        ["[CLS]", "the", "of", "[SEP]", "and", "to", "[SEP]"],
    ]
    options = MultipleChoice().encode([MultipleChoiceExample("the of", ("and", "to"))], tokenizer, 16)
    assert [tokens_of(tokenizer, ids)[-2] for ids in options.input_ids] == ["and", "to"]
    both = TextRegression(pair=BothOrdersPair()).encode(
        [RegressionExample("the of", "and"), RegressionExample("to", "in")], tokenizer, 16
    )
    assert [tokens_of(tokenizer, ids) for ids in both.input_ids] == [
        ["[CLS]", "the", "of", "[SEP]", "and", "[SEP]"],
        ["[CLS]", "and", "[SEP]", "the", "of", "[SEP]"],
        ["[CLS]", "to", "[SEP]", "in", "[SEP]"],
        ["[CLS]", "in", "[SEP]", "to", "[SEP]"],
    ]
    assert both.example_index.tolist() == [0, 0, 1, 1]


def test_gpt_task_head_uses_last_token(tokenizer):
    task = TextClassification(labels=("a", "b"))
    model = build_task_model(task, tokenizer)
    encoded = task.encode(
        [ClassificationExample("the of", label="a"), ClassificationExample("and to in a", label="b")], tokenizer, 16
    )
    batch = build_batch(task, encoded, [np.array([0]), np.array([1])])
    hidden_states = model(batch.inputs)
    expected = model.heads["task"].classifier(model.encoder.apply_pooler(hidden_states[[3, 9]]))
    assert_close(Supervised(task).compute_outputs(model, batch), expected)
    assert_close(Supervised(task).compute_outputs(model, batch, hidden_states), expected)


def test_gpt_both_orders_are_summed(tokenizer):
    task = TextRegression(pair=BothOrdersPair())
    model = build_task_model(task, tokenizer)
    batches = ExampleBatches(
        task,
        task.encode([RegressionExample("the of", "and", 1.0), RegressionExample("to", "in", 0.0)], tokenizer, 16),
        64,
        0,
        False,
    )
    batch = build_batch(task, batches.encoded, batches.groups, batches.pools_windows)
    summed = model(batch.inputs)[batch.inputs.layout.last_token].unflatten(0, (2, 2)).sum(1)
    assert_close(
        Supervised(task).compute_outputs(model, batch), model.heads["task"].classifier(model.encoder.apply_pooler(summed))
    )


def test_auxiliary_lm_loss_is_weighted_sum(tokenizer):
    task = TextClassification(labels=("a", "b"))
    model = build_task_model(task, tokenizer)
    examples = [
        ClassificationExample("the of", label="a"),
        ClassificationExample("and to in a", "of the", label="b"),
        ClassificationExample("in", label="a"),
    ]
    batch = AuxiliaryLMBatches(task, task.encode(examples, tokenizer, 16), 64, 0, shuffle=False)(0)
    assert batch.target_counts == {"task": 3, "lm": batch.num_tokens - 3}
    loss = AuxiliaryLM(Supervised(task), 0.5).compute_loss(model, batch)
    assert_close(loss.parts["task"], Supervised(task).compute_loss(model, batch).parts["task"])
    logits, expected = model.compute_logits("lm", model(batch.inputs)), torch.zeros(())
    for start, end in zip(
        batch.inputs.layout.cu_seqlens[:-1].tolist(), batch.inputs.layout.cu_seqlens[1:].tolist(), strict=True
    ):
        expected += F.cross_entropy(logits[start : end - 1], batch.inputs.input_ids[start + 1 : end], reduction="sum")
    assert_close(loss.parts["lm"], 0.5 * expected)


def test_auxiliary_lm_head_is_initialized_from_pretraining(gpt, tmp_path):
    rows = [classification_row(np.random.default_rng(i)) | {"way": str(i % 2)} for i in range(40)]
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    command = ["finetune", "task=classify", f"model={gpt}", f"data.train={train}", *FAST, "train.steps=1", "aux_lm_weight=0.5"]
    run_cli(*command, f"out={tmp_path / 'out'}", "task.template=[way={way}] {text}")
    model, tokenizer, _ = checkpoint.load(tmp_path / "out")
    assert set(model.config.heads) == {"task", "lm"} and len(tokenizer) == model.config.vocab_size > len(VOCAB)
    assert bertsmith.load(tmp_path / "out").generate("the of", max_new_tokens=3)["token_ids"]
