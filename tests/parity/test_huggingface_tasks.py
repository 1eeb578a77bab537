"""A fine-tuned model of transformers answers here as it does there, and one of ours there as it does here."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertsmith
from bertsmith.config import from_dict
from bertsmith.convert.huggingface import folder as huggingface
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import SequenceHeadConfig
from bertsmith.model.heads.features import FeatureHeadConfig, FeaturesConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tasks import MultipleChoice, QuestionAnswering, TextClassification, TextRegression, TokenClassification
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES
from tests.parity.huggingface_models import SIZES, imported, renamed, run, theirs, transformers

FAMILIES = tuple(SIZES)
every_family = pytest.mark.parametrize("family", FAMILIES)
COLOURS = {"id2label": {0: "red", 1: "green", 2: "blue"}, "label2id": {"red": 0, "green": 1, "blue": 2}}
TEXT = "The people made a way, and then they saw it."


def asked(folder, text):
    """A text as transformers' model takes it, by the tokenizer that was taken along."""
    tokenizer = checkpoint.load(folder)[1]
    return torch.tensor([[tokenizer.cls_token_id, *tokenizer.encode(text).ids, tokenizer.sep_token_id]])


@every_family
def test_a_classifier_answers_with_its_labels(family, tmp_path):
    original = theirs(f"{family}ForSequenceClassification", tmp_path / "hf", **COLOURS)
    result, _, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert (result["task"], result["heads"], result["unmatched"], result["initialised"]) == ("classify", ["task"], [], [])
    answer = bertsmith.load(tmp_path / "ours")(TEXT)
    wanted = original(asked(tmp_path / "ours", TEXT)).logits.softmax(-1)[0].tolist()
    assert answer["scores"] == pytest.approx(dict(zip(("red", "green", "blue"), wanted, strict=True)), abs=1e-5)
    assert answer["label"] == max(answer["scores"], key=answer["scores"].get)


def test_many_labels_and_numbers_are_told_from_one_label(tmp_path):
    original = theirs("BertForSequenceClassification", tmp_path / "many", problem_type="multi_label_classification", **COLOURS)
    imported(tmp_path / "many", tmp_path / "a")
    wanted = original(asked(tmp_path / "a", TEXT)).logits.sigmoid()[0].tolist()
    answer = bertsmith.load(tmp_path / "a")(TEXT)
    assert list(answer["scores"].values()) == pytest.approx(wanted, abs=1e-5)
    assert answer["labels"] == [name for name, score in answer["scores"].items() if score >= 0.5]
    original = theirs("RobertaForSequenceClassification", tmp_path / "number", num_labels=1)
    imported(tmp_path / "number", tmp_path / "b")
    assert bertsmith.load(tmp_path / "b")(TEXT)["value"] == pytest.approx(
        original(asked(tmp_path / "b", TEXT)).logits.item(), abs=1e-5
    )


TASKS = {
    "ForSequenceClassification": ({"num_labels": 2}, TextClassification(labels=("LABEL_0", "LABEL_1"))),
    "ForTokenClassification": (COLOURS, TokenClassification(labels=("red", "green", "blue"))),
    "ForQuestionAnswering": ({}, QuestionAnswering()),
    "ForMultipleChoice": ({}, MultipleChoice()),
}


@every_family
@pytest.mark.parametrize("rest", TASKS)
def test_the_folder_says_what_its_scores_are_of(rest, family, tmp_path):
    settings, task = TASKS[rest]
    theirs(family + rest, tmp_path / "hf", **settings)
    imported(tmp_path / "hf", tmp_path / "ours")
    predictor = bertsmith.load(tmp_path / "ours")
    assert predictor.task == task and predictor.length == predictor.model.config.encoder.positions


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_labels_and_problem_go_back_as_they_came(problem, tmp_path):
    labels = {"num_labels": 1} if problem == "regression" else COLOURS
    theirs("AlbertForSequenceClassification", tmp_path / "hf", problem_type=problem, **labels)
    imported(tmp_path / "hf", tmp_path / "ours")
    run("export", model=tmp_path / "ours", out=tmp_path / "back")
    given, back = (transformers.AutoConfig.from_pretrained(tmp_path / place) for place in ("hf", "back"))
    for name in ("problem_type", "id2label", "label2id", "num_labels", "architectures", "classifier_dropout_prob"):
        assert getattr(given, name) == getattr(back, name), name


@pytest.mark.parametrize(
    ("name", "settings", "dropout"),
    [
        ("BertForTokenClassification", {"classifier_dropout": 0.3}, 0.3),
        ("ElectraForSequenceClassification", {"hidden_dropout_prob": 0.25}, 0.25),
        ("DistilBertForSequenceClassification", {}, 0.2),
        ("DistilBertForQuestionAnswering", {"qa_dropout": 0.4}, 0.4),
        ("RobertaForQuestionAnswering", {}, 0.0),
    ],
)
def test_a_head_keeps_its_dropout_both_ways(name, settings, dropout, tmp_path):
    theirs(name, tmp_path / "hf", **settings)
    _, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert model.config.heads["task"].dropout == dropout
    run("export", model=tmp_path / "ours", out=tmp_path / "back")
    given, back = (transformers.AutoConfig.from_pretrained(tmp_path / place) for place in ("hf", "back"))
    for key in ("classifier_dropout", "seq_classif_dropout", "qa_dropout", "hidden_dropout_prob", "dropout"):
        assert getattr(given, key, None) == getattr(back, key, None), key


def test_a_pooler_that_an_old_classifier_did_not_use_is_named_and_left_out(tmp_path):
    original = theirs("RobertaForSequenceClassification", tmp_path / "hf")
    spare = {"roberta.pooler.dense.weight": torch.ones(32, 32), "roberta.pooler.dense.bias": torch.ones(32)}
    renamed(tmp_path / "hf", lambda held: held | spare)
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert result["unmatched"] == sorted(spare)
    assert torch.equal(model.encoder.pooler.weight, original.classifier.dense.weight)


@pytest.mark.parametrize(
    ("name", "settings", "head"),
    [
        ("BertForSequenceClassification", {"problem_type": "regression", "num_labels": 3}, "classifier"),
        ("BertForQuestionAnswering", {"num_labels": 3}, "qa_outputs"),
        ("ElectraForMultipleChoice", {"summary_activation": "tanh"}, "classifier"),
    ],
)
def test_a_head_that_no_task_of_ours_says_is_named_and_left_out(name, settings, head, tmp_path):
    theirs(name, tmp_path / "hf", **settings)
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert {f"{head}.weight", f"{head}.bias"} <= set(result["unmatched"])
    assert model.config.heads == {} and result["task"] is None


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"0": "a", "1": "b"}, "gives 3 scores, but id2label in its config.json names 2"),
        ({"0": "a", "1": "b", "2": "a"}, "names 2"),
        ({"x": "a", "1": "b", "2": "c"}, "no table of labels"),
        (["a", "b", "c"], "no table of labels"),
    ],
)
def test_labels_that_do_not_fit_the_head_are_refused(labels, words, tmp_path):
    theirs("BertForSequenceClassification", tmp_path, **COLOURS)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "id2label": labels}))
    with pytest.raises(UserError, match=words):
        imported(tmp_path, tmp_path / "ours")


def test_a_head_that_is_promised_and_not_there_is_missed(tmp_path):
    theirs("BertForSequenceClassification", tmp_path / "hf")
    renamed(tmp_path / "hf", lambda held: {key: w for key, w in held.items() if not key.startswith("classifier")})
    with pytest.raises(UserError, match=r"no classifier\.weight, though its config\.json says .*ForSequenceClassification"):
        imported(tmp_path / "hf", tmp_path / "ours")
    theirs("BertForSequenceClassification", tmp_path / "half")
    renamed(tmp_path / "half", lambda held: {key: w for key, w in held.items() if "pooler" not in key})
    with pytest.raises(UserError, match=r"lacks what its config\.json promises: bert\.pooler"):
        imported(tmp_path / "half", tmp_path / "ours")


@every_family
def test_a_model_fine_tuned_here_answers_the_same_there(family, tmp_path):
    """From a bare encoder of each family, by `finetune`, to the class that transformers has for it."""
    theirs(f"{family}Model", tmp_path / "hf")
    run("import", source=tmp_path / "hf", out=tmp_path / "base")
    rows = [f"{'the people' if i % 2 else 'all of a way'} {PIECES[60 + i]}\t{'yes' if i % 2 else 'no'}" for i in range(24)]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    bertsmith.api.finetune(
        task="classify", model=tmp_path / "base", data={"train": tmp_path / "train.tsv"}, out=tmp_path / "tuned",
        length=32, train={"steps": 2, "device": "cpu"}, quiet=True,
    )  # fmt: skip
    result = run("export", model=tmp_path / "tuned", out=tmp_path / "back", check=True)
    assert result["class"] == f"{family}ForSequenceClassification" and result["differences"]["task"] < 1e-5
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    ours = bertsmith.load(tmp_path / "tuned")(TEXT)["scores"]
    wanted = peer(asked(tmp_path / "tuned", TEXT)).logits.softmax(-1)[0].tolist()
    assert [ours[peer.config.id2label[number]] for number in (0, 1)] == pytest.approx(wanted, abs=1e-5)
    assert peer.config.problem_type == "single_label_classification"
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert np.array_equal(back(TEXT)["input_ids"], asked(tmp_path / "tuned", TEXT)[0])


def test_heads_that_transformers_has_not_stay_here(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    encoder = {"layers": 1, "width": 32, "mixer": {"heads": 4}, "feedforward": {"inner": 40}}
    for heads, task, words in (
        ({"task": FeatureHeadConfig(outputs=1, features=FeaturesConfig(last=1))}, TextRegression(), "of the kind features"),
        (
            {"task": SequenceHeadConfig(outputs=1), "chain": SequenceHeadConfig(outputs=1)},
            TextRegression(),
            "not for every set of them",
        ),
        ({"task": SequenceHeadConfig(outputs=1)}, None, "no task in its folder"),
    ):
        config = ModelConfig(encoder=from_dict(EncoderConfig, encoder), vocabulary=len(tokenizer), heads=heads)
        with pytest.raises(UserError, match=words):
            huggingface.choose_target(build_model(config, 0), tokenizer, huggingface.CheckpointRecord(task))


def test_a_weight_without_a_place_is_not_lost_in_silence(tmp_path):
    theirs("BertForSequenceClassification", tmp_path / "hf")
    _, model, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    model.heads["task"].extra = torch.nn.Parameter(torch.ones(2))
    (tmp_path / "back").mkdir()
    with pytest.raises(UserError, match=r"no place for heads\.task\.extra"):
        huggingface.write(tmp_path / "back", model, tokenizer, huggingface.read_record(tmp_path / "ours"))
    assert load_file(tmp_path / "ours/model.safetensors").keys() == model.state_dict().keys() - {"heads.task.extra"}
