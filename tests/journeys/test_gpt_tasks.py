"""A causal model learns every shape of task, read at its last token, and foretells its texts on the way."""

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
from tests.conftest import PIECES
from tests.journeys.test_finetuning import CASES, FAST, asked, classified, sentence, written
from tests.journeys.test_pretraining import answer, ran, refused
from tests.objectives.test_clm import TINY

SMALL = """
model=gpt2 model.layers=2 model.width=32 model.mixer.heads=2 model.feedforward.inner=64 model.positions=64 length=64
train.batch_tokens=512 train.rate=1e-3 eval_tokens=2048 objective=causal train.steps=5 model.deviation=0.1
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def gpt(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpt") / "gpt"
    ran("pretrain", f"corpus={corpus}", f"out={out}", *SMALL)
    return out


def paired(rng):
    """Alike or not, whichever comes first: two texts of one word among others."""
    same = bool(rng.integers(2))
    first = str(rng.choice(["people", "water"]))
    second = first if same else {"people": "water", "water": "people"}[first]
    texts = [" ".join(rng.permutation([*sentence(rng, 2), word])) for word in (first, second)]
    return {"text": texts[0], "text_b": texts[1], "label": float(same)}


@pytest.mark.parametrize("kind", CASES)
def test_a_task_is_learnt_beside_its_texts(gpt, tmp_path, kind):
    make, metric = CASES[kind]
    train, dev = (written(tmp_path / f"{n}.jsonl", [make(np.random.default_rng(i + n)) for i in range(n)]) for n in (600, 100))
    words = [f"task={kind}", f"model={gpt}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST]
    made = answer("finetune", *words, "train.epochs=8", "lm=0.5")
    assert made["dev"][metric] > 0.8
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    costs = [row["loss.words"] for row in rows if "loss.words" in row]
    assert costs[-1] < costs[0]
    judged = answer("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")
    assert judged["scores"] == pytest.approx(made["dev"])


def test_questions_are_answered_from_their_passages(gpt, tmp_path):
    for n in (500, 60):
        paragraphs = [asked(np.random.default_rng(i + n), i) for i in range(n)]
        (tmp_path / f"{n}.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    files = [f"data.train={tmp_path / '500.json'}", f"data.dev={tmp_path / '60.json'}", f"out={tmp_path / 'out'}"]
    assert answer("finetune", "task=answer", f"model={gpt}", *files, *FAST, "train.epochs=8", "lm=0.5")["dev"]["exact"] > 0.8


def test_two_texts_in_both_orders_are_answered_alike_either_way(gpt, tmp_path):
    rows = [paired(np.random.default_rng(i)) for i in range(900)]
    train, dev = written(tmp_path / "train.jsonl", rows[:800]), written(tmp_path / "dev.jsonl", rows[800:])
    words = ["task=regress", "task.pair=both", f"model={gpt}", f"data.train={train}", f"data.dev={dev}"]
    made = answer("finetune", *words, f"out={tmp_path / 'out'}", *FAST, "train.epochs=12", "lm=0.5")
    assert made["dev"]["pearson"] > 0.5
    model = bertsmith.load(tmp_path / "out")
    one, other = model("people of the", "the water was"), model("the water was", "people of the")
    assert one["value"] == pytest.approx(other["value"], abs=1e-5)


def test_what_lm_cannot_go_with_is_said(gpt, corpus, tmp_path):
    train = written(tmp_path / "train.jsonl", [classified(np.random.default_rng(i)) for i in range(40)])
    begin = ["finetune", "task=classify", f"data.train={train}", f"out={tmp_path / 'out'}", *FAST, "lm=0.5"]
    assert "causal" in refused(*begin, "model=mini-en")
    assert "leave out lm" in refused(*begin, f"model={gpt}", "rdrop=1")
    assert "leave out lm" in refused(*begin, f"model={gpt}", "features={}")


# the parts by themselves


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_vocab(PIECES)


def spelt(tokenizer, ids):
    return [tokenizer.pieces[number] for number in ids]


def model_for(task, tokenizer):
    heads = {"task": SequenceHeadConfig(outputs=task.outputs, dropout=0.0), "words": LMHeadConfig(transform=False, bias=False)}
    return build_model(ModelConfig(encoder=TINY, vocabulary=len(tokenizer), heads=heads), 3).eval()


def test_texts_are_framed_by_start_delimiter_and_extract(tokenizer):
    task = TextClassification(labels=("a", "b"))
    encoded = task.encode([ClassificationExample("the of"), ClassificationExample("the of", "and to")], tokenizer, 16)
    assert [spelt(tokenizer, ids) for ids in encoded.input_ids] == [
        ["[CLS]", "the", "of", "[SEP]"],
        ["[CLS]", "the", "of", "[SEP]", "and", "to", "[SEP]"],
    ]
    chosen = MultipleChoice().encode([MultipleChoiceExample("the of", ("and", "to"))], tokenizer, 16)
    assert [spelt(tokenizer, ids)[-2] for ids in chosen.input_ids] == ["and", "to"]
    both = TextRegression(pair=BothOrdersPair()).encode(
        [RegressionExample("the of", "and"), RegressionExample("to", "in")], tokenizer, 16
    )
    assert [spelt(tokenizer, ids) for ids in both.input_ids] == [
        ["[CLS]", "the", "of", "[SEP]", "and", "[SEP]"],
        ["[CLS]", "and", "[SEP]", "the", "of", "[SEP]"],
        ["[CLS]", "to", "[SEP]", "in", "[SEP]"],
        ["[CLS]", "in", "[SEP]", "to", "[SEP]"],
    ]
    assert both.example_index.tolist() == [0, 0, 1, 1]


def test_a_text_is_read_at_its_last_token(tokenizer):
    task = TextClassification(labels=("a", "b"))
    model = model_for(task, tokenizer)
    encoded = task.encode(
        [ClassificationExample("the of", label="a"), ClassificationExample("and to in a", label="b")], tokenizer, 16
    )
    made = build_batch(task, encoded, [np.array([0]), np.array([1])])
    hidden = model(made.inputs)
    wanted = model.heads["task"].score(model.encoder.apply_pooler(hidden[[3, 9]]))
    assert_close(Supervised(task).compute_outputs(model, made), wanted)
    assert_close(Supervised(task).compute_outputs(model, made, hidden), wanted)


def test_the_states_of_both_orders_are_added(tokenizer):
    task = TextRegression(pair=BothOrdersPair())
    model = model_for(task, tokenizer)
    reading = ExampleBatches(
        task,
        task.encode([RegressionExample("the of", "and", 1.0), RegressionExample("to", "in", 0.0)], tokenizer, 16),
        64,
        0,
        False,
    )
    made = build_batch(task, reading.encoded, reading.groups, reading.pools_windows)
    ends = model(made.inputs)[made.inputs.layout.last_token].unflatten(0, (2, 2)).sum(1)
    assert_close(Supervised(task).compute_outputs(model, made), model.heads["task"].score(model.encoder.apply_pooler(ends)))


def test_the_loss_is_that_of_the_task_and_so_much_of_the_next_tokens(tokenizer):
    task = TextClassification(labels=("a", "b"))
    model = model_for(task, tokenizer)
    examples = [
        ClassificationExample("the of", label="a"),
        ClassificationExample("and to in a", "of the", label="b"),
        ClassificationExample("in", label="a"),
    ]
    made = AuxiliaryLMBatches(task, task.encode(examples, tokenizer, 16), 64, 0, shuffle=False)(0)
    assert made.target_counts == {"task": 3, "words": made.num_tokens - 3}
    loss = AuxiliaryLM(Supervised(task), 0.5).compute_loss(model, made)
    assert_close(loss.parts["task"], Supervised(task).compute_loss(model, made).parts["task"])
    scores, total = model.compute_logits("words", model(made.inputs)), torch.zeros(())
    for a, b in zip(made.inputs.layout.cu_seqlens[:-1].tolist(), made.inputs.layout.cu_seqlens[1:].tolist(), strict=True):
        total += F.cross_entropy(scores[a : b - 1], made.inputs.input_ids[a + 1 : b], reduction="sum")
    assert_close(loss.parts["words"], 0.5 * total)


def test_the_head_for_words_goes_on_from_pretraining(gpt, tmp_path):
    rows = [classified(np.random.default_rng(i)) | {"way": str(i % 2)} for i in range(40)]
    train = written(tmp_path / "train.jsonl", rows)
    words = ["finetune", "task=classify", f"model={gpt}", f"data.train={train}", *FAST, "train.steps=1", "lm=0.5"]
    ran(*words, f"out={tmp_path / 'out'}", "task.template=[way={way}] {text}")
    model, tokenizer, _ = checkpoint.load(tmp_path / "out")
    assert set(model.config.heads) == {"task", "words"} and len(tokenizer) == model.config.vocabulary > len(PIECES)
    assert bertsmith.load(tmp_path / "out").generate("the of", tokens=3)["tokens"]
