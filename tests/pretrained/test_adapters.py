"""Adapter folders: low-rank updates beside the name of their base model, merged at load, with torch and without."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.config import from_dict
from bertsmith.convert.shipping import ship_adapter
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.folder import read_arrays, read_config, read_shapes
from bertsmith.pretrained.card import CardFacts
from tests.support.model_facts import write_facts
from tests.support.rows import write_jsonl

TEXTS = ["the people said", "one of these", "water"]
PAIRS = [("the people", "people said"), ("one of", "many of these"), ("water was", "the water"), ("now", "the way now")]
ROWS = [{"text": a, "text_b": b} for a, b in PAIRS * 4]
TRAIN = {"steps": 6, "batch_tokens": 256, "learning_rate": 0.02}


def train_adapter(out: str = "mine", **settings) -> bertsmith.finetune:
    rows = str(write_jsonl(Path("rows.jsonl"), ROWS))
    lora = {"r": 2, "target_modules": "all", "merge": False}
    values = {"task": {"kind": "similar", "center": True, "matryoshka_dims": [8]}, "model": "tiny-en", "data": {"train": rows},
              "lora": lora, "out": out, "max_length": 16, "train": TRAIN} | settings  # fmt: skip
    return bertsmith.finetune(**values, quiet=True)


@pytest.fixture
def mine(ships) -> Path:
    train_adapter()
    return Path("mine")


def test_adapter_folder_is_small_and_loads_as_what_was_trained(ships, mine):
    names = {path.name for path in mine.iterdir()}
    assert names == {"adapter.safetensors", "card.json", "config.json", "manifest.json", "metrics.jsonl", "tokenizer.json"}
    assert read_config(mine)["adapter"]["base"] == "tiny-en"
    train_adapter("merged", lora={"r": 2, "target_modules": "all"})
    adapted, merged, plain = (bertsmith.load(name, precision="fp32") for name in (mine, "merged", "tiny-en"))
    np.testing.assert_allclose(adapted.embed(TEXTS), merged.embed(TEXTS), atol=2e-3)  # updates are stored in float16
    assert np.abs(adapted.embed(TEXTS) - plain.embed(TEXTS)).max() > 0.1
    assert adapted.num_parameters == merged.num_parameters


def test_merged_weights_are_those_of_the_formula(ships, mine):
    weights, base = read_arrays(mine), read_arrays(ships / "tiny-en")
    stored = checkpoint.tensors.load_tensors(mine / "adapter.safetensors")
    name = "encoder.stack.layers.0.mixer.projections.qkv.weight"
    a, b = stored[name + ":lora_A"].double(), stored[name + ":lora_B"].double()
    updates = torch.cat([b[i] @ a[2 * i : 2 * i + 2] for i in range(3)])
    np.testing.assert_allclose(weights[name], base[name] + 8 * updates.numpy(), atol=1e-6)  # lora_alpha / r = 16 / 2
    assert {name: array.shape for name, array in weights.items()} == read_shapes(mine)
    loaded = checkpoint.load(mine)[0].state_dict()
    assert loaded.keys() == weights.keys()
    assert all(np.array_equal(loaded[name].numpy(), array) for name, array in weights.items())
    untouched = "encoder.word_embeddings.weight"
    assert np.array_equal(weights[untouched], base[untouched]) and untouched not in stored


def test_mean_embedding_of_the_training_texts_is_subtracted(ships, mine):
    model = bertsmith.load(mine, precision="fp32")
    texts = [text for row in ROWS for text in row.values()]
    np.testing.assert_allclose(model.embed(texts).mean(0), 0, atol=1e-4)
    again = bertsmith.load(train_adapter("more", model=str(mine), lora=None)["out"], precision="fp32")
    np.testing.assert_allclose(again.embed(texts).mean(0), 0, atol=1e-4)
    assert again.model.config.heads == model.model.config.heads  # in the bias that was there


def test_projection_is_trained_from_the_identity(ships):
    train_adapter("projected", task={"kind": "similar", "projection": 24, "center": True})
    weights = read_arrays(Path("projected"))
    weight = weights["heads.embedding.layers.0.weight"]
    assert weight.shape == (24, 32) and 0.01 < np.abs(weight - np.eye(24, 32)).max() < 0.5
    model = bertsmith.load("projected", precision="fp32")
    assert model.embed(TEXTS).shape == (3, 24) and len(model.model.config.heads["embedding"].layers) == 1
    with pytest.raises(UserError, match="has dense layers already"):
        train_adapter("twice", model="projected", lora=None, task={"kind": "similar", "projection": 24})


def test_dimensions_truncate_and_normalize(ships, mine):
    model = bertsmith.load(mine, precision="fp32")
    vectors, short = model.embed(TEXTS), model.embed(TEXTS, dimensions=8)
    np.testing.assert_allclose(short, vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True), rtol=1e-5)
    assert model.embed(TEXTS[0], dimensions=8).shape == (8,)
    np.testing.assert_allclose(bertsmith.embed(model=str(mine), text=TEXTS[0], dimensions=8), short[0], atol=2e-3)
    for dimensions in (0, 33, True, "8"):
        with pytest.raises(UserError, match=f"dimensions={dimensions} is not a number from 1 to 32"):
            model.embed(TEXTS, dimensions=dimensions)


def test_graphs_take_the_merged_weights(ships, mine):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install bertsmith[export]")
    facts = tomllib.loads(write_facts(Path()).read_text(encoding="utf-8"))
    ship_adapter(mine, Path("shipped"), from_dict(CardFacts, facts))
    mine = Path("shipped")
    assert {"model.onnx", "embedding_head.onnx", "card.md"} <= {path.name for path in mine.iterdir()}
    card = (mine / "card.md").read_text(encoding="utf-8")
    assert "merged into those of tiny-en at load" in card and "model.fill" not in card and 'load("shipped")' in card
    assert "identity" not in json.loads((mine / "card.json").read_text())
    by_torch, by_graph = (bertsmith.load(mine, backend=backend, precision="fp32") for backend in ("torch", "onnx"))
    np.testing.assert_allclose(by_graph.embed(TEXTS), by_torch.embed(TEXTS), atol=1e-4)
    assert by_graph.num_parameters == by_torch.num_parameters


def test_fine_tuning_starts_from_the_plain_weights_of_the_base(ships, mine):
    """An adapter beside a model changes nothing in it."""
    before = {name: array.copy() for name, array in read_arrays(ships / "tiny-en").items()}
    train_adapter("other")
    after = read_arrays(ships / "tiny-en")
    assert all(np.array_equal(before[name], array) for name, array in after.items())
    rows = str(write_jsonl(Path("labels.jsonl"), [{"text": text, "label": text[0]} for text in TEXTS]))
    result = bertsmith.finetune(task="classify", model="tiny-en", data={"train": rows}, out="tuned", max_length=16,
                                freeze="all", train={"steps": 1, "batch_tokens": 64}, quiet=True)  # fmt: skip
    tuned = read_arrays(Path(result["out"]))
    name = "encoder.stack.layers.0.mixer.projections.qkv.weight"
    assert np.array_equal(tuned[name], before[name])


def test_base_in_a_folder_is_found_beside_the_adapter(ships, tmp_path):
    shutil.copytree(ships / "tiny-en", "models/base")
    train_adapter("models/mine", model="models/base")
    assert read_config(Path("models/mine"))["adapter"]["base"] == "../base"
    vectors = bertsmith.load("models/mine", precision="fp32").embed(TEXTS)
    Path("models").rename("moved")
    assert np.array_equal(bertsmith.load("moved/mine", precision="fp32").embed(TEXTS), vectors)


def test_saved_and_exported_models_are_whole(ships, mine):
    model = bertsmith.load(mine, precision="fp32")
    saved = bertsmith.load(model.save("saved"), precision="fp32")
    assert "adapter" not in read_config(Path("saved")) and np.array_equal(saved.embed(TEXTS), model.embed(TEXTS))
    bertsmith.export(model=str(mine), out="packed", format="int8", quiet=True)
    assert "adapter" not in read_config(Path("packed"))
    np.testing.assert_allclose(bertsmith.load("packed", precision="fp32").embed(TEXTS), model.embed(TEXTS), atol=0.1)


def edit_config(folder: Path, **values) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["adapter"] |= values
    path.write_text(json.dumps(config))
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base": "tiny-fr"}, "is an adapter of tiny-fr, and there is no such model"),
        ({"base": "../mine"}, "which is an adapter itself"),
        ({"base": 3}, "does not say of which model"),
        ({"scaling": "2"}, "does not say of which model"),
        ({"base_sha256": "0" * 64}, "whose weights are not those that it was trained on"),
    ],
)
def test_damaged_records_are_one_error(ships, mine, values, message):
    edit_config(mine, **values)
    with pytest.raises(UserError, match=message):
        bertsmith.load(mine)


def test_updates_that_do_not_fit_are_one_error(ships, mine):
    path = mine / "adapter.safetensors"
    stored = checkpoint.tensors.load_tensors(path)
    name = next(name for name in stored if name.endswith(":lora_B"))
    (mine / "manifest.json").unlink()
    for changed in ({name: stored[name][:, :-1].contiguous()}, {name: stored[name][..., :1].contiguous()}, {name: None}):
        checkpoint.tensors.save_tensors({k: v for k, v in (stored | changed).items() if v is not None}, path)
        with pytest.raises(UserError, match="does not fit its base model"):
            bertsmith.load(mine, backend="torch")


def test_adapter_of_an_adapter_is_refused_before_training(ships, mine):
    with pytest.raises(UserError, match="is an adapter itself"):
        train_adapter("second", model="mine")
    assert not Path("second").exists()
