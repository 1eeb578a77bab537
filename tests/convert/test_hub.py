"""Download from a Hugging Face hub: needed files only, cached, with readable errors."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.cli import main
from bertsmith.convert.huggingface.hub import _select_files, download
from bertsmith.errors import UserError
from bertsmith.hub_names import find_repo_id
from tests.support.hub_server import serve_hub
from tests.support.huggingface_models import save_random_model

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub that serves tmp_path/hub as HF_ENDPOINT; the download cache is tmp_path/cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "hub/org").mkdir(parents=True)
    with serve_hub(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


def download_error(name):
    with pytest.raises(UserError) as caught:
        download(name, quiet=True)
    return str(caught.value)


def test_hub_import_by_repo_id_downloads_only_needed_files(tmp_path, server, capsys):
    folder = tmp_path / "hub/org/small"
    original = save_random_model("BertForMaskedLM", folder)
    torch.save(original.state_dict(), folder / "pytorch_model.bin")
    for unneeded in ("README.md", "tf_model.h5", "onnx/model.onnx", "onnx/config.json"):
        (folder / unneeded).parent.mkdir(exist_ok=True)
        (folder / unneeded).write_bytes(b"not needed")
    assert main(["import", "source=org/small", f"out={tmp_path / 'ours'}", "--json", "--quiet"]) == 0
    assert server.downloaded == {"config.json", "model.safetensors", "vocab.txt"}
    assert json.loads(capsys.readouterr().out)["heads"] == ["lm"]
    weights = load_file(tmp_path / "ours/model.safetensors")
    assert torch.equal(weights["encoder.word_embeddings.weight"], original.bert.embeddings.word_embeddings.weight)


def test_hub_download_is_cached_for_offline_use(tmp_path, server, monkeypatch):
    save_random_model("BertModel", tmp_path / "hub/org/small")
    cached = download("org/small", quiet=True)
    assert (tmp_path / "cache") in cached.parents
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert download("org/small", quiet=True) == cached
    message = download_error("org/other")
    assert "there is no folder org/other" in message and "give source=FOLDER" in message


def test_hub_download_errors_suggest_a_fix(tmp_path, server, monkeypatch):
    (tmp_path / "hub/org/empty").mkdir()
    (tmp_path / "hub/org/empty/README.md").write_text("nothing")
    for name in ("org/nothing", "org/private"):
        assert f"there is no folder {name}, and {server.address} has no public model" in download_error(name)
    assert "accept its terms" in download_error("org/gated")
    assert "500" in download_error("org/broken")
    assert "contains no config.json" in download_error("org/empty")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # no server
    assert "try again with a network connection, or give source=FOLDER" in download_error("org/nothing")


def test_hub_default_endpoint_is_used_without_hf_endpoint(monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "there is no folder org/nothing, and http://127.0.0.1:9 could not be reached" in download_error("org/nothing")


def test_hub_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"no folder org/name.*pip install 'bertsmith\[hub\]'"):
        download("org/name")


@pytest.mark.parametrize("name", ["org/name", "google-bert/bert-base_1.0"])
def test_hub_repo_ids_are_recognised(name):
    assert find_repo_id(name) == name


@pytest.mark.parametrize("path", ["name", "./name", "../name", "/org/name", "a/b/c", "~/name/", "org/..", "C:\\a", "org/a b"])
def test_hub_paths_are_not_repo_ids(path):
    assert find_repo_id(path) is None


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("available", "selected"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], ["config.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin", "merges.txt"], ["config.json", "merges.txt", "pytorch_model.bin"]),
        ([*SHARDS, "model.safetensors.index.json", "model-old.safetensors"], [*SHARDS, "model.safetensors.index.json"]),
        (["tf_model.h5", "sub/config.json"], []),
    ],
)
def test_hub_selects_only_files_that_import_reads(available, selected):
    assert _select_files(available) == selected


def test_hub_files_of_sentence_transformers_and_of_other_weight_names_are_needed():
    modules = ["modules.json", "sentence_bert_config.json", "1_Pooling/config.json"]
    names = ["config.json", "vocab.txt", "bert.safetensors", "onnx/model.safetensors", "README.md", *modules]
    assert _select_files(names) == sorted(["config.json", "vocab.txt", "bert.safetensors", *modules])
    with pytest.raises(UserError, match=r"several \.safetensors files"):
        _select_files([*names, "second.safetensors"])


def test_hub_name_without_owner_is_downloaded_from_its_owner(tmp_path, server):
    save_random_model("BertModel", tmp_path / "hub/google-bert/bert-base-uncased")
    assert main(["import", "source=bert-base-uncased", f"out={tmp_path / 'ours'}", "--quiet"]) == 0
    assert (tmp_path / "ours/model.safetensors").exists()
