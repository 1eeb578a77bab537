"""A name on a hub is fetched, only what is needed of it, once; where it cannot be, the reason is said."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.cli import main
from bertsmith.convert.huggingface.hub import _select_files, download, is_repo_id
from bertsmith.errors import UserError
from tests.convert.hub_server import serving
from tests.parity.huggingface_models import theirs

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub over tmp_path/hub, asked by whoever asks one; what is fetched is kept in tmp_path/cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "hub/org").mkdir(parents=True)
    with serving(tmp_path / "hub") as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        yield found


def refusal(name):
    with pytest.raises(UserError) as caught:
        download(name, quiet=True)
    return str(caught.value)


def test_a_name_is_imported_as_its_folder_would_be(tmp_path, server, capsys):
    folder = tmp_path / "hub/org/small"
    original = theirs("BertForMaskedLM", folder)
    torch.save(original.state_dict(), folder / "pytorch_model.bin")
    for unneeded in ("README.md", "tf_model.h5", "onnx/model.onnx", "onnx/config.json"):
        (folder / unneeded).parent.mkdir(exist_ok=True)
        (folder / unneeded).write_bytes(b"not needed")
    assert main(["import", "source=org/small", f"out={tmp_path / 'ours'}", "--json", "--quiet"]) == 0
    assert server.asked == {"config.json", "model.safetensors", "vocab.txt"}
    assert json.loads(capsys.readouterr().out)["heads"] == ["words"]
    held = load_file(tmp_path / "ours/model.safetensors")
    assert torch.equal(held["encoder.tokens.weight"], original.bert.embeddings.word_embeddings.weight)


def test_what_was_fetched_before_serves_without_the_network(tmp_path, server, monkeypatch):
    theirs("BertModel", tmp_path / "hub/org/small")
    before = download("org/small", quiet=True)
    assert (tmp_path / "cache") in before.parents
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert download("org/small", quiet=True) == before
    told = refusal("org/other")
    assert "there is no folder org/other" in told and "give a folder" in told


def test_what_cannot_be_fetched_is_said_with_the_way_out(tmp_path, server, monkeypatch):
    (tmp_path / "hub/org/empty").mkdir()
    (tmp_path / "hub/org/empty/README.md").write_text("nothing")
    for name in ("org/nothing", "org/private"):
        assert f"there is no folder {name}, and {server.address} has no model" in refusal(name)
    assert "accept its terms" in refusal("org/gated")
    assert "500" in refusal("org/broken")
    assert "holds no config.json" in refusal("org/empty")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody is there
    assert "try again with the network, or give a folder" in refusal("org/nothing")


def test_the_usual_hub_is_asked_where_none_is_named(monkeypatch):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "there is no folder org/nothing, and http://127.0.0.1:9 did not give" in refusal("org/nothing")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"no folder org/name.*pip install 'bertsmith\[hub\]'"):
        download("org/name")


@pytest.mark.parametrize("name", ["org/name", "google-bert/bert-base_1.0"])
def test_names(name):
    assert is_repo_id(name)


@pytest.mark.parametrize("path", ["name", "./name", "../name", "/org/name", "a/b/c", "~/name/", "org/..", "C:\\a", "org/a b"])
def test_paths_are_no_names(path):
    assert not is_repo_id(path)


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], ["config.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin", "merges.txt"], ["config.json", "merges.txt", "pytorch_model.bin"]),
        ([*SHARDS, "model.safetensors.index.json", "model-old.safetensors"], [*SHARDS, "model.safetensors.index.json"]),
        (["tf_model.h5", "sub/config.json"], []),
    ],
)
def test_only_the_files_an_import_reads_are_wanted(held, wanted):
    assert _select_files(held) == wanted
