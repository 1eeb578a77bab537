"""`pooling=` of `finetune`: another representation of a text than the pre-trained model's."""

import pytest

import bertsmith
from bertsmith import api
from bertsmith.errors import UserError
from bertsmith.tensors import load_tensors
from tests.support.rows import write_jsonl

TEXTS = [("a fine film", "good"), ("a dull film", "bad"), ("fine music and fine words", "good"), ("dull words", "bad")]


def finetune(tmp_path, pooling, **more):
    train = write_jsonl(tmp_path / "train.jsonl", [{"text": text, "label": label} for text, label in TEXTS])
    arguments = {"task": "classify", "data": {"train": str(train)}, "out": str(tmp_path / pooling), "pooling": pooling} | more
    return api.finetune(model="mini-en", train={"steps": 2, "device": "cpu"}, quiet=True, **arguments)


@pytest.mark.parametrize("pooling", ["mean", "max", "concat"])
def test_finetune_pools_texts_as_told_and_the_folder_remembers(tmp_path, pooling):
    finetune(tmp_path, pooling)
    model = bertsmith.load(tmp_path / pooling, device="cpu")
    encoder = model.model.config.encoder
    assert encoder.pooling == pooling and model("a fine film")["label"] in ("good", "bad")
    weights = load_tensors(tmp_path / pooling / "model.safetensors")
    # The three vectors of concat do not fit the pre-trained pooler: the head reads them itself.
    assert weights["heads.task.classifier.weight"].shape[1] == encoder.hidden_size * (3 if pooling == "concat" else 1)
    assert ("encoder.pooler.weight" in weights) == (pooling != "concat" and encoder.pooler_act != "none")


def test_finetune_refuses_pooling_where_nothing_is_pooled(tmp_path):
    with pytest.raises(UserError, match="needs a task with one answer for a text"):
        finetune(tmp_path, "mean", task="tag")
    with pytest.raises(UserError, match="and no features"):
        finetune(tmp_path, "mean", features={"layers": "last"})
