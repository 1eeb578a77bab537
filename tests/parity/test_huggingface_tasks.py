"""Fine-tuned models: imported from transformers and exported to it with the same predictions."""

import json

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bertsmith
from bertsmith.commands import load_stage
from bertsmith.config import from_dict
from bertsmith.convert.huggingface import folder as huggingface
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import SequenceHeadConfig
from bertsmith.model.heads.features import FeatureHeadConfig, FeaturesConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.tasks import MultipleChoice, QuestionAnswering, TextClassification, TextRegression, TokenClassification
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.huggingface_models import SIZES, import_folder, rewrite_weights, run_stage, save_random_model, transformers
from tests.support.texts import VOCAB

FAMILIES = tuple(SIZES)
every_family = pytest.mark.parametrize("family", FAMILIES)
COLOUR_LABELS = {"id2label": {0: "red", 1: "green", 2: "blue"}, "label2id": {"red": 0, "green": 1, "blue": 2}}
TEXT = "The people made a way, and then they saw it."


def encode(folder, text):
    """Ids of a text, (1, length), by the tokenizer of an imported folder."""
    tokenizer = checkpoint.load(folder)[1]
    return torch.tensor([[tokenizer.cls_token_id, *tokenizer.encode(text).ids, tokenizer.sep_token_id]])


@every_family
def test_huggingface_classifier_import_keeps_labels_and_scores(family, tmp_path):
    original = save_random_model(f"{family}ForSequenceClassification", tmp_path / "hf", **COLOUR_LABELS)
    result, _, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert (result["task"], result["heads"], result["unexpected_keys"], result["missing_keys"]) == (
        "classify",
        ["task"],
        [],
        [],
    )
    answer = bertsmith.load(tmp_path / "ours")(TEXT)
    expected = original(encode(tmp_path / "ours", TEXT)).logits.softmax(-1)[0].tolist()
    assert answer["scores"] == pytest.approx(dict(zip(("red", "green", "blue"), expected, strict=True)), abs=1e-5)
    assert answer["label"] == max(answer["scores"], key=answer["scores"].get) and answer["score"] == max(
        answer["scores"].values()
    )


def test_huggingface_multi_label_and_regression_import(tmp_path):
    original = save_random_model(
        "BertForSequenceClassification", tmp_path / "many", problem_type="multi_label_classification", **COLOUR_LABELS
    )
    import_folder(tmp_path / "many", tmp_path / "a")
    expected = original(encode(tmp_path / "a", TEXT)).logits.sigmoid()[0].tolist()
    answer = bertsmith.load(tmp_path / "a")(TEXT)
    assert list(answer["scores"].values()) == pytest.approx(expected, abs=1e-5)
    likely = sorted(((score, name) for name, score in answer["scores"].items() if score >= 0.5), reverse=True)
    assert answer["labels"] == [{"label": name, "score": score} for score, name in likely]
    original = save_random_model("RobertaForSequenceClassification", tmp_path / "number", num_labels=1)
    import_folder(tmp_path / "number", tmp_path / "b")
    assert bertsmith.load(tmp_path / "b")(TEXT)["score"] == pytest.approx(
        original(encode(tmp_path / "b", TEXT)).logits.item(), abs=1e-5
    )


TASKS = {
    "ForSequenceClassification": ({"num_labels": 2}, TextClassification(labels=("LABEL_0", "LABEL_1"))),
    "ForTokenClassification": (COLOUR_LABELS, TokenClassification(labels=("red", "green", "blue"))),
    "ForQuestionAnswering": ({}, QuestionAnswering()),
    "ForMultipleChoice": ({}, MultipleChoice()),
}


@every_family
@pytest.mark.parametrize("suffix", TASKS)
def test_huggingface_import_detects_the_task(suffix, family, tmp_path):
    settings, task = TASKS[suffix]
    save_random_model(family + suffix, tmp_path / "hf", **settings)
    import_folder(tmp_path / "hf", tmp_path / "ours")
    predictor = bertsmith.load(tmp_path / "ours")
    assert predictor.task == task and predictor.max_length == predictor.model.config.encoder.max_position_embeddings


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_huggingface_roundtrip_keeps_labels_and_problem_type(problem_type, tmp_path):
    labels = {"num_labels": 1} if problem_type == "regression" else COLOUR_LABELS
    save_random_model("AlbertForSequenceClassification", tmp_path / "hf", problem_type=problem_type, **labels)
    import_folder(tmp_path / "hf", tmp_path / "ours")
    run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")
    hf_config, exported_config = (transformers.AutoConfig.from_pretrained(tmp_path / folder) for folder in ("hf", "back"))
    for name in ("problem_type", "id2label", "label2id", "num_labels", "architectures", "classifier_dropout_prob"):
        assert getattr(hf_config, name) == getattr(exported_config, name), name


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
def test_huggingface_roundtrip_keeps_head_dropout(name, settings, dropout, tmp_path):
    save_random_model(name, tmp_path / "hf", **settings)
    _, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert model.config.heads["task"].dropout == dropout
    run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")
    hf_config, exported_config = (transformers.AutoConfig.from_pretrained(tmp_path / folder) for folder in ("hf", "back"))
    for key in ("classifier_dropout", "seq_classif_dropout", "qa_dropout", "hidden_dropout_prob", "dropout"):
        assert getattr(hf_config, key, None) == getattr(exported_config, key, None), key


def test_huggingface_unused_pooler_is_listed_as_unexpected(tmp_path):
    original = save_random_model("RobertaForSequenceClassification", tmp_path / "hf")
    pooler_weights = {"roberta.pooler.dense.weight": torch.ones(32, 32), "roberta.pooler.dense.bias": torch.ones(32)}
    rewrite_weights(tmp_path / "hf", lambda weights: weights | pooler_weights)
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert result["unexpected_keys"] == sorted(pooler_weights)
    assert torch.equal(model.encoder.pooler.weight, original.classifier.dense.weight)


@pytest.mark.parametrize(
    ("name", "settings", "head"),
    [
        ("BertForSequenceClassification", {"problem_type": "regression", "num_labels": 3}, "classifier"),
        ("BertForQuestionAnswering", {"num_labels": 3}, "qa_outputs"),
        ("ElectraForMultipleChoice", {"summary_activation": "tanh"}, "classifier"),
    ],
)
def test_huggingface_unsupported_head_is_listed_as_unexpected(name, settings, head, tmp_path):
    save_random_model(name, tmp_path / "hf", **settings)
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert {f"{head}.weight", f"{head}.bias"} <= set(result["unexpected_keys"])
    assert model.config.heads == {} and result["task"] is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"0": "a", "1": "b"}, "has 3 outputs, but id2label in config.json names 2"),
        ({"0": "a", "1": "b", "2": "a"}, "names 2"),
        ({"x": "a", "1": "b", "2": "c"}, "must map numbers to labels"),
        (["a", "b", "c"], "must map numbers to labels"),
    ],
)
def test_huggingface_bad_id2label_is_refused(labels, message, tmp_path):
    save_random_model("BertForSequenceClassification", tmp_path, **COLOUR_LABELS)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "id2label": labels}))
    with pytest.raises(UserError, match=message):
        import_folder(tmp_path, tmp_path / "ours")


def test_huggingface_missing_head_is_refused(tmp_path):
    save_random_model("BertForSequenceClassification", tmp_path / "hf")
    rewrite_weights(tmp_path / "hf", lambda weights: {key: w for key, w in weights.items() if not key.startswith("classifier")})
    with pytest.raises(
        UserError, match=r"no classifier\.weight, but `architectures` in its config\.json says .*ForSequenceClassification"
    ):
        import_folder(tmp_path / "hf", tmp_path / "ours")
    save_random_model("BertForSequenceClassification", tmp_path / "half")
    rewrite_weights(tmp_path / "half", lambda weights: {key: w for key, w in weights.items() if "pooler" not in key})
    with pytest.raises(UserError, match=r"lacks tensors that its config\.json requires: bert\.pooler"):
        import_folder(tmp_path / "half", tmp_path / "ours")


@every_family
def test_huggingface_export_of_fine_tuned_model_matches(family, tmp_path):
    """Import a bare encoder of each family, fine-tune it, export it to transformers' class."""
    save_random_model(f"{family}Model", tmp_path / "hf")
    run_stage("import", source=tmp_path / "hf", out=tmp_path / "base")
    rows = [f"{'the people' if i % 2 else 'all of a way'} {VOCAB[60 + i]}\t{'yes' if i % 2 else 'no'}" for i in range(24)]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    bertsmith.api.finetune(
        task="classify", model=tmp_path / "base", data={"train": tmp_path / "train.tsv"}, out=tmp_path / "tuned",
        max_length=32, train={"steps": 2, "device": "cpu"}, quiet=True,
    )  # fmt: skip
    result = run_stage("export", model=tmp_path / "tuned", out=tmp_path / "back", check=True)
    assert result["class"] == f"{family}ForSequenceClassification" and result["differences"]["task"] < 1e-5
    hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    ours = bertsmith.load(tmp_path / "tuned")(TEXT)["scores"]
    expected = hf_model(encode(tmp_path / "tuned", TEXT)).logits.softmax(-1)[0].tolist()
    assert [ours[hf_model.config.id2label[number]] for number in (0, 1)] == pytest.approx(expected, abs=1e-5)
    assert hf_model.config.problem_type == "single_label_classification"
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert np.array_equal(hf_tokenizer(TEXT)["input_ids"], encode(tmp_path / "tuned", TEXT)[0])


def test_huggingface_export_refuses_unsupported_heads(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    encoder = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "mixer": {"num_attention_heads": 4},
        "feedforward": {"intermediate_size": 40},
    }
    for heads, task, message in (
        ({"task": FeatureHeadConfig(outputs=1, features=FeaturesConfig(last=1))}, TextRegression(), "of kind features"),
        (
            {"task": SequenceHeadConfig(outputs=1), "crf": SequenceHeadConfig(outputs=1)},
            TextRegression(),
            "the head `crf` of kind sequence-classification",
        ),
        ({"task": SequenceHeadConfig(outputs=1)}, None, "without the task that defines its labels"),
    ):
        config = ModelConfig(encoder=from_dict(EncoderConfig, encoder), vocab_size=len(tokenizer), heads=heads)
        with pytest.raises(UserError, match=message):
            huggingface.choose_target(build_model(config, 0), tokenizer, huggingface.CheckpointRecord(task))


def test_huggingface_export_refuses_unmapped_weights(tmp_path):
    save_random_model("BertForSequenceClassification", tmp_path / "hf")
    _, model, tokenizer = import_folder(tmp_path / "hf", tmp_path / "ours")
    model.heads["task"].extra = torch.nn.Parameter(torch.ones(2))
    (tmp_path / "back").mkdir()
    with pytest.raises(UserError, match=r"no parameters for heads\.task\.extra"):
        huggingface.write(tmp_path / "back", model, tokenizer, huggingface.read_record(tmp_path / "ours"))
    assert load_file(tmp_path / "ours/model.safetensors").keys() == model.state_dict().keys() - {"heads.task.extra"}


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "albert"])
@pytest.mark.parametrize("multi_label", [False, True])
def test_export_folds_the_temperature_into_the_head(family, multi_label, tmp_path):
    problem = {"problem_type": "multi_label_classification" if multi_label else "single_label_classification"}
    name = {"roberta": "Roberta", "electra": "Electra", "distilbert": "DistilBert", "albert": "Albert"}.get(family, "Bert")
    save_random_model(f"{name}ForSequenceClassification", tmp_path / "hf", **COLOUR_LABELS, **problem)
    import_folder(tmp_path / "hf", tmp_path / "ours")
    model = bertsmith.load(tmp_path / "ours")
    model.task = msgspec.structs.replace(model.task, temperature=2.5, threshold=0.37)
    model.save(tmp_path / "calibrated")
    run_stage("export", model=tmp_path / "calibrated", out=tmp_path / "back", check=True)
    exported = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    logits = exported(encode(tmp_path / "ours", TEXT)).logits[0]
    expected = bertsmith.load(tmp_path / "calibrated")(TEXT)["scores"]
    scores = logits.sigmoid() if multi_label else logits.softmax(-1)
    assert list(expected.values()) == pytest.approx(scores.tolist(), abs=1e-5)
    assert list(model(TEXT)["scores"].values()) == pytest.approx(scores.tolist(), abs=1e-5)
    card = (tmp_path / "back" / "README.md").read_text()
    assert "temperature = 2.5 is folded into the last linear layer" in card and ("threshold = 0.37" in card) == multi_label


def test_export_tells_the_null_threshold_of_questions(tmp_path, capsys):
    save_random_model("BertForQuestionAnswering", tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "ours")
    model = bertsmith.load(tmp_path / "ours")
    model.task = msgspec.structs.replace(model.task, no_answer=True, threshold=-1.25)
    model.save(tmp_path / "tuned")
    load_stage("export").run(load_stage("export").Recipe(model=str(tmp_path / "tuned"), out=str(tmp_path / "back")))
    for text in (capsys.readouterr().err, (tmp_path / "back" / "README.md").read_text()):
        assert "threshold = -1.25: predict no answer if" in text


def test_check_of_half_precision_weights_compares_in_float32(tmp_path):
    original = save_random_model("BertForMaskedLM", tmp_path / "hf")
    original.half().save_pretrained(tmp_path / "hf")
    result, _, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert max(result["differences"].values()) < 1e-4


def test_import_reads_the_only_safetensors_file_whatever_its_name(tmp_path):
    original = save_random_model("BertForMaskedLM", tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "hf" / "bert-v2.safetensors")
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert torch.equal(model.encoder.word_embeddings.weight, original.bert.embeddings.word_embeddings.weight)
    assert max(result["differences"].values()) < 1e-4
    (tmp_path / "hf" / "second.safetensors").touch()
    with pytest.raises(UserError, match=r"several .safetensors files \(bert-v2.safetensors, second.safetensors\)"):
        import_folder(tmp_path / "hf", tmp_path / "other")


def test_import_refuses_the_weights_of_an_adapter(tmp_path):
    save_random_model("BertForMaskedLM", tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors").rename(tmp_path / "hf" / "adapter_model.safetensors")
    with pytest.raises(UserError, match="only the weights of an adapter"):
        import_folder(tmp_path / "hf", tmp_path / "ours")


@pytest.mark.parametrize(("family", "key"), [("Electra", "encoder"), ("Bert", "bert"), ("Roberta", "backbone")])
def test_import_reads_the_encoder_of_a_larger_model(family, key, tmp_path):
    """As LTP's: config.json has the encoder's config as a table, and the tensors its key as a prefix."""
    original = save_random_model(f"{family}Model", tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"model_type": "ltp", key: config, "cws_labels": ["B", "I"]}))
    head = {"cws_classifier.weight": torch.ones(2, 32)}
    rewrite_weights(tmp_path / "hf", lambda weights: {f"{key}.{name}": tensor for name, tensor in weights.items()} | head)
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert (result["family"], result["unexpected_keys"]) == (family.lower(), ["cws_classifier.weight"])
    ids = encode(tmp_path / "ours", TEXT)
    layout = Layout.from_lengths([ids.shape[1]])
    torch.testing.assert_close(model(Inputs(ids[0], layout)), original(ids).last_hidden_state[0], atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="has no class for the model of"):
        import_folder(tmp_path / "hf", tmp_path / "other", check=True)
