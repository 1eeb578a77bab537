"""`export format=int8`: a checkpoint folder with int8 weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import bertsmith
from bertsmith import cli, tensors
from bertsmith.artifacts import read_json
from bertsmith.commands import export
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.folder import INT8_FORMAT, SCALE_SUFFIX
from bertsmith.pretrained.card import SECTIONS
from bertsmith.writing import write_json
from tests.support.model_facts import write_facts


@pytest.fixture
def folder(package: Path, tmp_path: Path) -> Path:
    """A copy of tiny-en to modify."""
    shutil.copytree(package / "tiny-en", tmp_path / "tiny-en")
    return tmp_path / "tiny-en"


def change_weights(folder: Path, change) -> None:
    """Modify the stored tensors and remove the manifest, so that loading checks names and shapes."""
    stored = checkpoint.read_tensors(folder)
    change(stored)
    tensors.save_tensors(stored, folder / checkpoint.WEIGHTS_FILE)
    (folder / "manifest.json").unlink()


def test_int8_export_is_within_half_a_step_of_its_source(source, package):
    ours, int8 = bertsmith.load(source), bertsmith.load(package / "tiny-en")
    texts = ["the people said that it was so", "one of these"]
    before, after = torch.from_numpy(ours.embed(texts)), torch.from_numpy(int8.embed(texts))
    assert 0 < float((before - after).norm() / before.norm()) < 0.05
    state = int8.model.state_dict()
    for name, weight in ours.model.state_dict().items():
        max_error = weight.abs().amax(1, keepdim=True) / 127 * 0.5001 if weight.ndim > 1 else torch.zeros_like(weight)
        assert state[name].dtype == torch.float32 and bool(((state[name] - weight).abs() <= max_error).all()), name


def test_int8_export_folder_keeps_config_card_and_tokenizer(source, package):
    record, source_record = read_json(package / "tiny-en" / "config.json"), read_json(source / "config.json")
    assert record == {**source_record, "weights": INT8_FORMAT}
    assert read_json(package / "tiny-en" / "card.json") == {"result": {"step": 7}}  # without the run id of its source
    assert (package / "tiny-en" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert set(read_json(package / "tiny-en" / "manifest.json")["files"]) == {
        "card.json", "card.md", "config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip


def test_int8_export_stores_matrices_as_int8(source, package):
    stored = checkpoint.read_tensors(package / "tiny-en")
    matrices = [name for name, tensor in stored.items() if tensor.ndim > 1]
    assert matrices and all(stored[name].dtype == torch.int8 and name + SCALE_SUFFIX in stored for name in matrices)
    sizes = [(folder / checkpoint.WEIGHTS_FILE).stat().st_size for folder in (source, package / "tiny-en")]
    assert sizes[1] < 0.4 * sizes[0]  # biases and names take a good part of a tiny model


def test_int8_export_reports_size_and_error(source, tmp_path, capsys):
    result = bertsmith.export(model=source, out=tmp_path / "small", format="int8")
    assert result["bytes"] == sum(path.stat().st_size for path in (tmp_path / "small").iterdir())
    assert 0.4 < result["max_rounding_error"] < 0.501 and 0 < result["hidden_state_error"] < 0.05
    assert "MB; hidden states of random ids differ by" in capsys.readouterr().err
    assert not (tmp_path / "small" / "card.md").exists()


def test_int8_export_copies_metrics(source, tmp_path):
    shutil.copytree(source, tmp_path / "bert")
    (tmp_path / "bert" / "metrics.jsonl").write_text('{"step": 1}\n')
    bertsmith.export(model=tmp_path / "bert", out=tmp_path / "small", format="int8", quiet=True)
    assert (tmp_path / "small" / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_int8_export_again_and_saved_as_float(package, tmp_path):
    bertsmith.export(model=package / "tiny-en", out=tmp_path / "again", format="int8", quiet=True)
    exported_once, exported_twice = (
        checkpoint.load(folder)[0].state_dict() for folder in (package / "tiny-en", tmp_path / "again")
    )
    for name, weight in exported_once.items():
        torch.testing.assert_close(exported_twice[name], weight, rtol=1e-6, atol=0)
    model, tokenizer, card = checkpoint.load(package / "tiny-en")
    checkpoint.save(tmp_path / "plain", model, tokenizer, card, checkpoint.read_config(package / "tiny-en"))
    assert "weights" not in read_json(tmp_path / "plain" / "config.json")
    assert all(torch.equal(weight, exported_once[name]) for name, weight in checkpoint.read_tensors(tmp_path / "plain").items())


def test_int8_export_refuses_an_occupied_out(source, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="contains other files"):
        bertsmith.export(model=source, out=tmp_path / "small", format="int8", quiet=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["small", "mine.txt"]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"format": "int8", "check": True}, "check=true applies to format=hf"),
        ({"card": "facts.toml"}, "card applies to format=int8"),
        ({"format": "int8", "card": "absent.toml"}, "there is no recipe file absent.toml"),
    ],
)
def test_int8_export_conflicting_settings_are_refused(source, tmp_path, settings, fault):
    with pytest.raises(UserError, match=fault):
        bertsmith.export(model=source, out=tmp_path / "small", quiet=True, **settings)


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"summary": "two\nlines"}, "summary must match the pattern"),
        ({"data": {"Letters": {"licence": "CC0"}}}, "data.about is required"),
        ({"data": {}}, "data must not be empty"),
        ({"minutes": 0}, "minutes must be greater than 0, not 0"),
        ({"colour": "blue"}, "unknown key 'colour'"),
        ({"examples": ["no mask"]}, "MASK"),
    ],
)
def test_int8_export_invalid_facts_are_refused(source, tmp_path, facts, fault):
    card = write_facts(tmp_path, **facts)
    with pytest.raises(UserError, match=fault):
        bertsmith.export(model=source, out=tmp_path / "small", format="int8", card=card, quiet=True)
    assert list(tmp_path.iterdir()) == [card]


def test_int8_checkpoint_damage_is_detected(folder):
    data = bytearray((folder / checkpoint.WEIGHTS_FILE).read_bytes())
    data[-1] ^= 1
    (folder / checkpoint.WEIGHTS_FILE).write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        bertsmith.load(folder)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda stored: stored.pop("encoder.embedding_norm.weight"), r"missing keys \['encoder.embedding_norm.weight'\]"),
        (
            lambda stored: stored.pop(f"encoder.word_embeddings.weight{SCALE_SUFFIX}"),
            "encoder.word_embeddings.weight is int8, but has no scale",
        ),
        (lambda stored: stored.update(more=torch.ones(2)), r"unexpected keys \['more'\]"),
        (
            lambda stored: stored.update(
                {
                    "encoder.word_embeddings.weight": torch.ones(3, 4, dtype=torch.int8),
                    f"encoder.word_embeddings.weight{SCALE_SUFFIX}": torch.ones(3),
                }
            ),
            r"encoder.word_embeddings.weight has shape \[3, 4\], not \[\d+, 32\]",
        ),
        (
            lambda stored: stored.update({"encoder.embedding_norm.weight": torch.ones(7)}),
            r"encoder.embedding_norm.weight has shape \[7\], not \[32\]",
        ),
    ],
)
def test_int8_checkpoint_names_and_shapes_are_checked(folder, change, fault):
    change_weights(folder, change)
    with pytest.raises(UserError, match=f"does not match its config.json: .*{fault}"):
        bertsmith.load(folder)


@pytest.mark.parametrize("weights", [{"kind": "int8", "bits": 4, "scale": "row"}, "int8"])
def test_int8_checkpoint_unknown_storage_is_refused(folder, weights):
    write_json(folder / "config.json", {**read_json(folder / "config.json"), "weights": weights})
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"has weights = .*, which this version of bertsmith cannot read"):
        bertsmith.load(folder)


def test_int8_weights_without_storage_in_config_are_refused(folder):
    record = read_json(folder / "config.json")
    del record["weights"]
    write_json(folder / "config.json", record)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"unexpected keys .*\.weight:scale"):
        bertsmith.load(folder)


def test_int8_export_card_shows_predictions_of_the_int8_model(source, tmp_path):
    card = write_facts(tmp_path, examples=["the [MASK] was", "a [MASK] of [MASK]"])
    bertsmith.export(model=source, out=tmp_path / "tiny", format="int8", card=card, quiet=True)
    card, model = (tmp_path / "tiny" / "card.md").read_text(encoding="utf-8"), bertsmith.load(tmp_path / "tiny")
    words = [prediction["token_str"] for prediction in model.fill("the [MASK] was")]
    assert f"| the [MASK] was | {', '.join(words)} |".replace(", |,", ", \\|,") in card
    assert f"| parameters | {sum(p.numel() for p in model.model.parameters()):,} |" in card
    assert card.startswith("# tiny: a tiny English BERT\n") and all(f"\n## {title}\n" in card for title in SECTIONS)


def test_int8_export_from_the_command_line(source, tmp_path, capsys):
    words = [f"model={source}", f"out={tmp_path / 'x'}", "format=int8", f"card={write_facts(tmp_path)}"]
    assert cli.main(["export", *words, "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "int8"
    assert "| SST-2 | 51.0 | 50.0 |" in (tmp_path / "x" / "card.md").read_text(encoding="utf-8")


def test_int8_export_with_a_card_names_no_folders_of_this_machine(source, tmp_path):
    """As models are shipped: absolute paths of the recipe and the command are only names."""
    shutil.copytree(source, tmp_path / "trained")
    (tmp_path / "trained" / "manifest.json").unlink()
    record = read_json(source / "config.json") | {
        "recipe": {"corpus": "/home/me/corpus", "texts": ["C:\\data\\a.txt", "b.txt"]}
    }
    write_json(tmp_path / "trained" / "config.json", record)
    command = ["bertsmith", "pretrain", "recipes/a.toml", "out=/home/me/out/a", "model=a/b", "~/x", "--json"]
    write_json(tmp_path / "trained" / "card.json", {"command": command, "about": "1/2 of it"})
    recipe = {"model": str(tmp_path / "trained"), "format": "int8"}
    export.run(export.Recipe(**recipe, out=str(tmp_path / "shared"), card=str(write_facts(tmp_path))), True)
    export.run(export.Recipe(**recipe, out=str(tmp_path / "mine")), True)
    shared, mine = (read_json(tmp_path / name / "config.json")["recipe"] for name in ("shared", "mine"))
    assert shared == {"corpus": "corpus", "texts": ["a.txt", "b.txt"]} and mine == record["recipe"]
    assert read_json(tmp_path / "shared" / "card.json") == {
        "command": ["bertsmith", "pretrain", "recipes/a.toml", "out=a", "model=a/b", "x", "--json"], "about": "1/2 of it",
    }  # fmt: skip
