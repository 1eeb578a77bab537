"""Weight formats of Hugging Face folders, and errors for weights and configs that do not fit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from tests.support.huggingface_models import VOCAB_SIZE, import_folder, rewrite_weights, save_random_model


@pytest.mark.parametrize("storage", ["sharded", "bin", "sharded bin", "old names", "no prefix", "tied twice", "half"])
def test_huggingface_weight_formats_give_the_same_model(storage, tmp_path):
    original = save_random_model("BertForPreTraining", tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "plain")
    folder = tmp_path / "other"
    shutil.copytree(tmp_path / "hf", folder)
    single = folder / "model.safetensors"
    weights = load_file(single)
    if storage == "sharded":
        single.unlink()
        original.save_pretrained(folder, max_shard_size="20KB")
        assert (folder / "model.safetensors.index.json").exists()
    elif storage == "bin":
        single.unlink()
        torch.save(original.state_dict(), folder / "pytorch_model.bin")
    elif storage == "sharded bin":
        single.unlink()
        names = list(weights)
        for shard, shard_names in enumerate((names[:9], names[9:])):
            torch.save({key: weights[key] for key in shard_names}, folder / f"part-{shard}.bin")
        index = {key: f"part-{int(i >= 9)}.bin" for i, key in enumerate(names)}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    elif storage == "old names":
        old_suffixes = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        old_names = {key: next((key.replace(a, b) for a, b in old_suffixes.items() if a in key), key) for key in weights}
        save_file({old_names[key]: weight for key, weight in weights.items()}, single)
    elif storage == "no prefix":
        save_file({key.removeprefix("bert."): weight for key, weight in weights.items()}, single)
    elif storage == "tied twice":
        table = weights["bert.embeddings.word_embeddings.weight"].clone()
        save_file({**weights, "cls.predictions.decoder.weight": table, "bert.embeddings.position_ids": torch.arange(9)}, single)
    elif storage == "half":
        save_file({key: weight.bfloat16() for key, weight in weights.items()}, single)
    _, model, _ = import_folder(folder, tmp_path / "ours")
    for key, weight in checkpoint.load(tmp_path / "plain")[0].state_dict().items():
        assert torch.equal(weight.bfloat16().float() if storage == "half" else weight, model.state_dict()[key]), key


def test_huggingface_unexpected_keys_of_heads_are_listed_of_encoders_refused(tmp_path):
    save_random_model("BertForMaskedLM", tmp_path / "hf")
    rewrite_weights(
        tmp_path / "hf", lambda weights: {**weights, "classifier.weight": torch.ones(3, 32), "classifier.bias": torch.ones(3)}
    )
    result, _, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert result["unexpected_keys"] == ["classifier.bias", "classifier.weight"]
    assert result["missing_keys"] == ["encoder.pooler.weight", "encoder.pooler.bias"]
    rewrite_weights(tmp_path / "hf", lambda weights: {**weights, "bert.encoder.layer.1.adapter.weight": torch.ones(3, 32)})
    with pytest.raises(UserError, match=r"bertsmith does not support: bert\.encoder\.layer\.1\.adapter\.weight"):
        import_folder(tmp_path / "hf", tmp_path / "again")
    assert not (tmp_path / "again").exists()


BAD_WEIGHTS = {
    "missing": (lambda weights: {key: w for key, w in weights.items() if "layer.1.output.dense" not in key}, "lacks tensors"),
    "half a head": (
        lambda weights: {key: w for key, w in weights.items() if key != "cls.predictions.bias"},
        r"cls\.predictions\.bias",
    ),
    "depth": (lambda weights: {key: w for key, w in weights.items() if ".layer.1." not in key}, "weights of 1 layers"),
    "shape": (
        lambda weights: {**weights, "bert.embeddings.LayerNorm.bias": torch.ones(31)},
        r"LayerNorm\.bias has shape \[31\]",
    ),
    "untied": (
        lambda weights: {**weights, "cls.predictions.decoder.weight": torch.ones(VOCAB_SIZE, 32)},
        "have different values, but bertsmith ties",
    ),
    "twice": (lambda weights: {**weights, "bert.embeddings.LayerNorm.beta": torch.ones(32)}, "twice"),
    "integers": (
        lambda weights: {**weights, "bert.embeddings.LayerNorm.bias": torch.ones(32, dtype=torch.int8)},
        "quantized models cannot be imported",
    ),
}


@pytest.mark.parametrize("fault", BAD_WEIGHTS)
def test_huggingface_bad_weights_are_refused(fault, tmp_path):
    save_random_model("BertForMaskedLM", tmp_path / "hf")
    change, message = BAD_WEIGHTS[fault]
    rewrite_weights(tmp_path / "hf", change)
    with pytest.raises(UserError, match=message):
        import_folder(tmp_path / "hf", tmp_path / "ours")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "albert"}, "weights of 0 layers"),
        ({"model_type": "llama"}, "supported: bert, roberta, longformer, distilbert, albert, electra, gpt2, openai-gpt"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ({"inner_group_num": 2}, "inner_group_num"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most"),
        ({"hidden_size": 10**12, "num_attention_heads": 1}, "cannot be built"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be at least 1, not 0$"),
        ({"num_attention_heads": 5}, "does not divide"),
        ({"hidden_size": "wide"}, "hidden_size takes a whole number, not 'wide'"),
        ({"intermediate_size": 0}, "feedforward.intermediate_size is called intermediate_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"intermediate_size": None}, "has no intermediate_size"),
    ],
)
def test_huggingface_unsupported_configs_are_refused(settings, message, tmp_path):
    save_random_model("BertForMaskedLM", tmp_path / "hf")
    path = tmp_path / "hf/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(UserError, match=message):
        import_folder(tmp_path / "hf", tmp_path / "ours")


class MaliciousPickle:
    def __reduce__(self):
        return print, ("a pickle ran code",)


@pytest.mark.parametrize("contents", [MaliciousPickle(), {"x": 1}, b"cut"], ids=["code", "no tensors", "cut off"])
def test_huggingface_bin_loads_tensors_only(contents, tmp_path, capsys):
    save_random_model("BertModel", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    path = tmp_path / "pytorch_model.bin"
    torch.save(contents, path)
    if contents == b"cut":
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"pytorch_model\.bin"):
        import_folder(tmp_path, tmp_path / "ours")
    assert "ran code" not in capsys.readouterr().out


@pytest.mark.parametrize("names", [{"a": "../model.safetensors"}, {"a": "gone.safetensors"}, {"a": 3}, {}, []])
def test_huggingface_bad_shard_index_is_refused(names, tmp_path):
    save_random_model("BertModel", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json"):
        import_folder(tmp_path, tmp_path / "ours")


def test_huggingface_incomplete_folder_is_refused(tmp_path):
    save_random_model("BertModel", tmp_path / "hf")
    for name, message in (
        ("vocab.txt", "tokenizer=FILE"),
        ("model.safetensors", "no weights"),
        ("config.json", "contains no config.json"),
    ):
        (tmp_path / "hf" / name).unlink()
        with pytest.raises(UserError, match=message):
            import_folder(tmp_path / "hf", tmp_path / "ours")
    with pytest.raises(UserError, match="there is no folder"):
        import_folder(tmp_path / "nothing", tmp_path / "ours")
