"""Whatever way a Hugging Face folder keeps its weights, the same model comes of it; what does not fit is refused by name."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from tests.parity.huggingface_models import WORDS, imported, renamed, theirs


@pytest.mark.parametrize("way", ["sharded", "bin", "sharded bin", "old names", "no prefix", "tied twice", "half"])
def test_every_way_of_keeping_weights_gives_the_same_model(way, tmp_path):
    original = theirs("BertForPreTraining", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "plain")
    folder = tmp_path / "other"
    shutil.copytree(tmp_path / "hf", folder)
    single = folder / "model.safetensors"
    weights = load_file(single)
    if way == "sharded":
        single.unlink()
        original.save_pretrained(folder, max_shard_size="20KB")
        assert (folder / "model.safetensors.index.json").exists()
    elif way == "bin":
        single.unlink()
        torch.save(original.state_dict(), folder / "pytorch_model.bin")
    elif way == "sharded bin":
        single.unlink()
        names = list(weights)
        for number, some in enumerate((names[:9], names[9:])):
            torch.save({key: weights[key] for key in some}, folder / f"part-{number}.bin")
        index = {key: f"part-{int(at >= 9)}.bin" for at, key in enumerate(names)}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    elif way == "old names":
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        new = {key: next((key.replace(a, b) for a, b in old.items() if a in key), key) for key in weights}
        save_file({new[key]: weight for key, weight in weights.items()}, single)
    elif way == "no prefix":
        save_file({key.removeprefix("bert."): weight for key, weight in weights.items()}, single)
    elif way == "tied twice":
        table = weights["bert.embeddings.word_embeddings.weight"].clone()
        save_file({**weights, "cls.predictions.decoder.weight": table, "bert.embeddings.position_ids": torch.arange(9)}, single)
    elif way == "half":
        save_file({key: weight.bfloat16() for key, weight in weights.items()}, single)
    _, model, _ = imported(folder, tmp_path / "ours")
    for key, weight in checkpoint.load(tmp_path / "plain")[0].state_dict().items():
        assert torch.equal(weight.bfloat16().float() if way == "half" else weight, model.state_dict()[key]), key


def test_a_head_without_a_place_is_named_and_an_encoders_part_is_refused(tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    renamed(tmp_path / "hf", lambda held: {**held, "classifier.weight": torch.ones(3, 32), "classifier.bias": torch.ones(3)})
    result, _, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert result["unmatched"] == ["classifier.bias", "classifier.weight"]
    assert result["initialised"] == ["encoder.pooler.weight", "encoder.pooler.bias"]
    renamed(tmp_path / "hf", lambda held: {**held, "bert.encoder.layer.1.adapter.weight": torch.ones(3, 32)})
    with pytest.raises(UserError, match=r"no place for: bert\.encoder\.layer\.1\.adapter\.weight"):
        imported(tmp_path / "hf", tmp_path / "again")
    assert not (tmp_path / "again").exists()


FAULTS = {
    "missing": (lambda held: {key: w for key, w in held.items() if "layer.1.output.dense" not in key}, "lacks what"),
    "half a head": (
        lambda held: {key: w for key, w in held.items() if key != "cls.predictions.bias"},
        r"cls\.predictions\.bias",
    ),
    "depth": (lambda held: {key: w for key, w in held.items() if ".layer.1." not in key}, "holds 1 blocks"),
    "shape": (lambda held: {**held, "bert.embeddings.LayerNorm.bias": torch.ones(31)}, r"LayerNorm\.bias is \[31\]"),
    "untied": (lambda held: {**held, "cls.predictions.decoder.weight": torch.ones(WORDS, 32)}, "a table of its own"),
    "twice": (lambda held: {**held, "bert.embeddings.LayerNorm.beta": torch.ones(32)}, "twice"),
    "integers": (lambda held: {**held, "bert.embeddings.LayerNorm.bias": torch.ones(32, dtype=torch.int8)}, "not real numbers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_refused_by_name(fault, tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    change, words = FAULTS[fault]
    renamed(tmp_path / "hf", change)
    with pytest.raises(UserError, match=words):
        imported(tmp_path / "hf", tmp_path / "ours")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "albert"}, "holds 0 blocks"),
        ({"model_type": "llama"}, "known: bert, roberta, longformer, distilbert, albert, electra, gpt2, openai-gpt"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ({"inner_group_num": 2}, "inner_group_num"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_hidden_layers": 10**9}, "holds 2 blocks"),
        ({"hidden_size": 10**12, "num_attention_heads": 1}, "cannot be built"),
        ({"max_position_embeddings": 0}, "positions is their max_position_embeddings"),
        ({"num_attention_heads": 5}, "does not divide"),
        ({"hidden_size": "wide"}, "width is their hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"intermediate_size": None}, "does not say intermediate_size"),
    ],
)
def test_models_this_one_cannot_be_are_refused_by_name(settings, words, tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    path = tmp_path / "hf/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(UserError, match=words):
        imported(tmp_path / "hf", tmp_path / "ours")


class Trap:
    def __reduce__(self):
        return print, ("a pickle ran code",)


@pytest.mark.parametrize("held", [Trap(), {"x": 1}, b"cut"], ids=["code", "no tensors", "cut off"])
def test_a_bin_gives_nothing_but_tensors(held, tmp_path, capsys):
    theirs("BertModel", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    path = tmp_path / "pytorch_model.bin"
    torch.save(held, path)
    if held == b"cut":
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"pytorch_model\.bin"):
        imported(tmp_path, tmp_path / "ours")
    assert "ran code" not in capsys.readouterr().out


@pytest.mark.parametrize("names", [{"a": "../model.safetensors"}, {"a": "gone.safetensors"}, {"a": 3}, {}, []])
def test_an_index_that_names_no_files_is_refused(names, tmp_path):
    theirs("BertModel", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json"):
        imported(tmp_path, tmp_path / "ours")


def test_a_folder_without_weights_config_or_tokenizer_is_refused(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    for name, words in (("vocab.txt", "tokenizer=FILE"), ("model.safetensors", "no weights"), ("config.json", "neither")):
        (tmp_path / "hf" / name).unlink()
        with pytest.raises(UserError, match=words):
            imported(tmp_path / "hf", tmp_path / "ours")
    with pytest.raises(UserError, match="there is no folder"):
        imported(tmp_path / "nothing", tmp_path / "ours")
