"""`export format=packed`: a checkpoint folder like any other, a quarter as large, checked and sealed."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import bertsmith
from bertsmith import cli, tensors
from bertsmith.artifacts import read_json, write_json
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.int8 import INT8_FORMAT, SCALE_SUFFIX
from bertsmith.pretrained.card import SECTIONS
from tests.pretrained.conftest import told


@pytest.fixture
def folder(package: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(package / "tiny-en", tmp_path / "tiny-en")
    return tmp_path / "tiny-en"


def changed(folder: Path, change) -> None:
    """The stored tensors changed, and sealed no longer, so that names and shapes are what is looked at."""
    stored = checkpoint.read_tensors(folder)
    change(stored)
    tensors.save_tensors(stored, folder / checkpoint.WEIGHTS_FILE)
    (folder / "manifest.json").unlink()


def test_the_packed_model_answers_as_its_source_nearly_does(source, package):
    ours, small = bertsmith.load(source), bertsmith.load(package / "tiny-en")
    texts = ["the people said that it was so", "one of these"]
    before, after = torch.from_numpy(ours.embed(texts)), torch.from_numpy(small.embed(texts))
    assert 0 < float((before - after).norm() / before.norm()) < 0.05
    state = small.model.state_dict()
    for name, weight in ours.model.state_dict().items():
        most = weight.abs().amax(1, keepdim=True) / 127 * 0.5001 if weight.ndim > 1 else torch.zeros_like(weight)
        assert state[name].dtype == torch.float32 and bool(((state[name] - weight).abs() <= most).all()), name


def test_the_folder_says_how_its_weights_are_stored_and_keeps_what_its_source_told(source, package):
    record, before = read_json(package / "tiny-en" / "config.json"), read_json(source / "config.json")
    assert record == {**before, "weights": INT8_FORMAT}
    assert read_json(package / "tiny-en" / "card.json") == {"result": {"step": 7}}  # by another identity than its source
    assert (package / "tiny-en" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert set(read_json(package / "tiny-en" / "manifest.json")["files"]) == {
        "card.json", "card.md", "config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip


def test_matrices_are_int8_and_the_file_is_small(source, package):
    stored = checkpoint.read_tensors(package / "tiny-en")
    matrices = [name for name, tensor in stored.items() if tensor.ndim > 1]
    assert matrices and all(stored[name].dtype == torch.int8 and name + SCALE_SUFFIX in stored for name in matrices)
    sizes = [(place / checkpoint.WEIGHTS_FILE).stat().st_size for place in (source, package / "tiny-en")]
    assert sizes[1] < 0.4 * sizes[0]  # a tiny model is biases and names to a good part


def test_what_the_stage_tells(source, tmp_path, capsys):
    found = bertsmith.export(model=source, out=tmp_path / "small", format="packed")
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "small").iterdir())
    assert 0.4 < found["steps"] < 0.501 and 0 < found["hidden"] < 0.05
    assert "MB; hidden states of random ids lie" in capsys.readouterr().err
    assert not (tmp_path / "small" / "card.md").exists()


def test_the_log_of_training_goes_along(source, tmp_path):
    shutil.copytree(source, tmp_path / "bert")
    (tmp_path / "bert" / "metrics.jsonl").write_text('{"step": 1}\n')
    bertsmith.export(model=tmp_path / "bert", out=tmp_path / "small", format="packed", quiet=True)
    assert (tmp_path / "small" / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_packed_folder_is_packed_again_and_written_as_float_by_whoever_trains_it(package, tmp_path):
    bertsmith.export(model=package / "tiny-en", out=tmp_path / "again", format="packed", quiet=True)
    once, twice = (checkpoint.load(place)[0].state_dict() for place in (package / "tiny-en", tmp_path / "again"))
    for name, weight in once.items():
        torch.testing.assert_close(twice[name], weight, rtol=1e-6, atol=0)
    model, tokenizer, card = checkpoint.load(package / "tiny-en")
    checkpoint.save(tmp_path / "plain", model, tokenizer, card, checkpoint.read_config(package / "tiny-en"))
    assert "weights" not in read_json(tmp_path / "plain" / "config.json")
    assert all(torch.equal(weight, once[name]) for name, weight in checkpoint.read_tensors(tmp_path / "plain").items())


def test_an_out_that_is_taken_is_refused_and_nothing_is_left_behind(source, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other things"):
        bertsmith.export(model=source, out=tmp_path / "small", format="packed", quiet=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["small", "mine.txt"]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"format": "packed", "check": True}, "check=true is for format=hf"),
        ({"card": "facts.toml"}, "card is for format=packed"),
        ({"format": "packed", "card": "absent.toml"}, "there is no recipe absent.toml"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(source, tmp_path, settings, fault):
    with pytest.raises(UserError, match=fault):
        bertsmith.export(model=source, out=tmp_path / "small", quiet=True, **settings)


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"summary": "two\nlines"}, "summary = "),
        ({"data": {"Letters": {"licence": "CC0"}}}, "data.about is missing"),
        ({"data": {}}, "data: expected `object` of length >= 1"),
        ({"minutes": 0}, "minutes = 0"),
        ({"colour": "blue"}, "colour is not known"),
        ({"examples": ["no mask"]}, "MASK"),
    ],
)
def test_wrong_facts_are_told_and_nothing_is_written(source, tmp_path, facts, fault):
    card = told(tmp_path, **facts)
    with pytest.raises(UserError, match=fault):
        bertsmith.export(model=source, out=tmp_path / "small", format="packed", card=card, quiet=True)
    assert list(tmp_path.iterdir()) == [card]


def test_damage_is_found_by_the_checksum(folder):
    data = bytearray((folder / checkpoint.WEIGHTS_FILE).read_bytes())
    data[-1] ^= 1
    (folder / checkpoint.WEIGHTS_FILE).write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        bertsmith.load(folder)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda stored: stored.pop("encoder.norm.weight"), r"missing \['encoder.norm.weight'\]"),
        (
            lambda stored: stored.pop(f"encoder.tokens.weight{SCALE_SUFFIX}"),
            "encoder.tokens.weight is packed, and has no scale",
        ),
        (lambda stored: stored.update(more=torch.ones(2)), r"not known \['more'\]"),
        (
            lambda stored: stored.update(
                {
                    "encoder.tokens.weight": torch.ones(3, 4, dtype=torch.int8),
                    f"encoder.tokens.weight{SCALE_SUFFIX}": torch.ones(3),
                }
            ),
            r"encoder.tokens.weight is \[3, 4\], not \[\d+, 32\]",
        ),
        (lambda stored: stored.update({"encoder.norm.weight": torch.ones(7)}), r"encoder.norm.weight is \[7\], not \[32\]"),
    ],
)
def test_names_and_shapes_are_held_to_the_config(folder, change, fault):
    changed(folder, change)
    with pytest.raises(UserError, match=f"does not fit its config.json: .*{fault}"):
        bertsmith.load(folder)


@pytest.mark.parametrize("weights", [{"kind": "packed", "bits": 4, "scale": "row"}, "packed"])
def test_a_way_of_storing_that_is_not_known_is_refused(folder, weights):
    write_json(folder / "config.json", {**read_json(folder / "config.json"), "weights": weights})
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"stored as .*, which this bertsmith does not know"):
        bertsmith.load(folder)


def test_int8_weights_that_the_config_does_not_speak_of_are_not_taken_for_numbers(folder):
    record = read_json(folder / "config.json")
    del record["weights"]
    write_json(folder / "config.json", record)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"not known .*encoder.tokens.weight:scale"):
        bertsmith.load(folder)


def test_the_card_shows_what_the_packed_model_fills(source, tmp_path):
    card = told(tmp_path, examples=["the [MASK] was", "a [MASK] of [MASK]"])
    bertsmith.export(model=source, out=tmp_path / "tiny", format="packed", card=card, quiet=True)
    card, model = (tmp_path / "tiny" / "card.md").read_text(encoding="utf-8"), bertsmith.load(tmp_path / "tiny")
    words = [one["word"] for one in model.fill("the [MASK] was")[0]]
    assert f"| the [MASK] was | {', '.join(words)} |".replace(", |,", ", \\|,") in card
    assert f"| parameters | {sum(p.numel() for p in model.model.parameters()):,} |" in card
    assert card.startswith("# tiny: a tiny English BERT\n") and all(f"\n## {title}\n" in card for title in SECTIONS)


def test_the_command_line_makes_folder_and_card(source, tmp_path, capsys):
    words = [f"model={source}", f"out={tmp_path / 'x'}", "format=packed", f"card={told(tmp_path)}"]
    assert cli.main(["export", *words, "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "packed"
    assert "| SST-2 | 51.0 | 50.0 |" in (tmp_path / "x" / "card.md").read_text(encoding="utf-8")
