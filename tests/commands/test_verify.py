"""`bertsmith verify`, and the manifests that every stage compares with what it reads."""

import json
import os
import random
import shutil

import pytest

import bertsmith
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import SequenceHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.cli import run_cli, run_cli_error, run_cli_json
from tests.support.texts import VOCAB, make_english_text

ENCODER = EncoderConfig(num_hidden_layers=1, hidden_size=16, mixer=Attention(num_attention_heads=2), max_position_embeddings=32)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A sealed folder of each kind, never changed."""
    root = tmp_path_factory.mktemp("sealed")
    (root / "text.txt").write_text(make_english_text(5), encoding="utf-8")
    run_cli("tokenizer", f"texts={root}/text.txt", "vocab_size=150", f"out={root}/tokenizer", "--quiet")
    inputs = (f"texts={root}/text.txt", f"tokenizer={root}/tokenizer", "workers=1")
    run_cli("prepare", *inputs, f"out={root}/corpus", "--quiet")
    config = ModelConfig(encoder=ENCODER, vocab_size=len(VOCAB), heads={"task": SequenceHeadConfig(outputs=2)})
    task = {"kind": "classify", "labels": ["bad", "good"]}
    checkpoint.save(root / "model", build_model(config, 0), Tokenizer.from_vocab(VOCAB), {"result": {}}, {"task": task})
    run_cli("export", f"model={root}/model", f"out={root}/hf", "--quiet")
    return root


@pytest.fixture
def folders(originals, tmp_path):
    shutil.copytree(originals, tmp_path / "out")
    return tmp_path / "out"


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["tokenizer", "corpus", "model", "hf"])
def test_intact_folder_is_reported_with_its_files_and_kind(folders, name):
    result = run_cli_json("verify", folders / name)
    assert result["intact"] and not result["damaged"] and result["files"] == len(os.listdir(folders / name)) - 1
    kind = {"model": "fine-tuned model", "hf": "Hugging Face folder"}.get(name, name)
    assert [(folder["kind"], folder["unsealed"]) for folder in result["folders"]] == [(kind, [])]


def test_every_damaged_file_of_every_folder_is_reported(folders):
    flip(folders / "model" / "model.safetensors", -1)
    flip(folders / "corpus" / "tokens.bin", 0)
    (folders / "tokenizer" / "tokenizer.json").unlink()
    with (folders / "hf" / "config.json").open("a") as file:
        file.write(" ")
    output = run_cli("verify", folders, code=1).stderr
    assert "corpus (corpus): tokens.bin: is damaged (its checksum differs from manifest.json)" in output
    assert "model (fine-tuned model): model.safetensors: is damaged" in output
    assert "tokenizer.json: is missing, but listed in manifest.json" in output
    assert "config.json: is too long: " in output
    result = bertsmith.verify(folder=str(folders))
    assert not result["intact"] and result["damaged"] == 4


def test_files_that_no_manifest_lists_are_named(folders):
    (folders / "model" / "notes").mkdir()
    (folders / "model" / "notes" / "mine.txt").write_text("mine")
    assert "model): without a checksum: notes/mine.txt" in run_cli("verify", folders / "model").stderr
    assert f"{folders}: without a checksum: text.txt" in run_cli("verify", folders).stderr


def test_folder_without_a_manifest_is_not_intact(folders, tmp_path):
    (folders / "model" / "manifest.json").unlink()
    assert (
        "has no manifest.json, so nothing tells whether its files are intact"
        in run_cli("verify", folders / "model", code=1).stderr
    )
    assert run_cli_error("verify", tmp_path / "absent").endswith("give one that bertsmith wrote\n")


@pytest.mark.parametrize(
    "data", ["{", "[]", '{"files": {"a": 1}}', '{"files": {"../../etc/passwd": {"bytes": 1, "sha256": ""}}}']
)
def test_damaged_manifest_is_reported(folders, data):
    (folders / "model" / "manifest.json").write_text(data)
    assert "manifest.json is damaged" in run_cli("verify", folders / "model", code=1).stderr
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        bertsmith.load(folders / "model")


def test_forty_flipped_bits_of_a_tokenizer_are_refused_by_every_reader(folders):
    path, rng = folders / "tokenizer" / "tokenizer.json", random.Random(0)
    original = path.read_bytes()
    for _ in range(40):
        flip(path, rng.randrange(len(original)), rng.randrange(8))
        for source in (path, path.parent):
            with pytest.raises(UserError, match=r"tokenizer\.json is damaged \(its checksum differs from manifest\.json\)"):
                Tokenizer.load(source)
        path.write_bytes(original)
    flip(path, 1000)
    arguments = (f"texts={folders}/text.txt", f"tokenizer={folders}/tokenizer", f"out={folders}/new")
    assert "tokenizer.json is damaged" in run_cli_error("prepare", *arguments, "workers=1")
    assert not (folders / "new").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"])
def test_import_checks_what_export_wrote(folders, name):
    flip(folders / "hf" / name, -2)
    error = run_cli_error("import", f"source={folders}/hf", f"out={folders}/new")
    assert f"{name} is damaged (its checksum differs from manifest.json)" in error
    assert "or remove manifest.json if you changed the folder on purpose" in error
    (folders / "hf" / "manifest.json").write_text('{"name": "of another program"}')
    flip(folders / "hf" / name, -2)
    run_cli("import", f"source={folders}/hf", f"out={folders}/new", "--quiet")


@pytest.mark.parametrize("name", ["config.json", "card.json", "model.safetensors", "tokenizer.json"])
def test_model_with_a_flipped_bit_is_not_loaded(folders, name):
    flip(folders / "model" / name, -2)
    with pytest.raises(UserError, match="is damaged"):
        bertsmith.load(folders / "model")


def test_model_without_a_manifest_is_loaded_with_one_warning(folders, caplog):
    (folders / "model" / "manifest.json").unlink()
    for _ in range(3):
        bertsmith.load(folders / "model")("a film")
    warnings = [record.getMessage() for record in caplog.records if "manifest" in record.getMessage()]
    assert warnings == [f"{folders / 'model'} has no manifest.json, so nothing tells whether its files are intact"]
    output = run_cli("predict", f"model={folders}/model", "text=a", "device=cpu").stderr
    assert output.count("manifest.json") == 0  # said already in this process


def test_shards_lie_in_the_folder(folders):
    folder = folders / "model"
    (folder / "model.safetensors").rename(folders / "outside.safetensors")
    (folder / "manifest.json").unlink()
    for name in ("../outside.safetensors", str(folders / "outside.safetensors"), "sub/a.safetensors", "a.bin", 1, None):
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"encoder.word_embeddings.weight": name}})
        )
        with pytest.raises(UserError, match="is not a weights file in the same folder"):
            bertsmith.load(folder)


@pytest.mark.parametrize("name", ["config.json", "card.json", "model.safetensors", "tokenizer.json", "manifest.json"])
def test_pipe_in_place_of_a_file_is_refused_at_once(folders, name):
    (folders / "model" / name).unlink()
    os.mkfifo(folders / "model" / name)
    with pytest.raises(UserError, match=rf"{name} is a named pipe, but must be a regular file"):
        bertsmith.load(folders / "model")
