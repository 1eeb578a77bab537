"""Hex payloads on the command line: byte model, template special tokens, and cross-attention pairs."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith import recipes
from bertsmith.commands import load_stage
from tests.support.cli import (
    FAST,
    ROOT,
    SMALL,
    run_cli,
    run_cli_error,
    run_cli_json,
)
from tests.support.rows import write_jsonl
from tests.support.texts import WORDS

COLUMNS = ("label", "direction", "payload_hex")


def packet(seed):
    """The label depends on the first byte and on the direction, which is not in the payload."""
    rng = np.random.default_rng(seed)
    is_loud, direction = bool(rng.integers(2)), str(rng.choice(["c", "s"]))
    payload = bytes([0xFF if is_loud else 0x01, *rng.integers(2, 255, int(rng.integers(3, 20))).tolist()])
    return {"label": f"{'loud' if is_loud else 'soft'}-{direction}", "direction": direction, "payload_hex": payload.hex()}


def write_table(path, rows, columns=COLUMNS):
    path.write_text("".join("\t".join(row) + "\n" for row in [columns, *([row[name] for name in columns] for row in rows)]))
    return path


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory):
    """Barely pretrained on the payloads themselves."""
    folder = tmp_path_factory.mktemp("payloads")
    texts = [f"texts={write_table(folder / 'all.tsv', [packet(seed) for seed in range(300)])}", "column=payload_hex"]
    run_cli("tokenizer", *texts, "kind=byte", "hex=true", f"out={folder / 'tokenizer'}")
    result = run_cli_json("prepare", *texts, f"tokenizer={folder / 'tokenizer'}", f"out={folder / 'corpus'}", "workers=1")
    assert result["documents"] == 300 and result["unknown_rate"] == 0
    model = ["model.initializer_range=0.15", "model.norm=pre", "objective=mlm", "objective.packing=doc-sentences"]
    run_cli("pretrain", f"corpus={folder / 'corpus'}", f"out={folder / 'model'}", *SMALL, *model, "train.steps=5")
    return folder / "model"


def test_payload_classification_uses_special_tokens(bytes_model, tmp_path):
    train, dev = (write_table(tmp_path / f"{n}.tsv", [packet(n + seed) for seed in range(n)]) for n in (600, 100))
    args = ["finetune", "task=classify", f"model={bytes_model}", f"data.train={train}", f"data.dev={dev}", *FAST]
    args += ["data.columns.text=payload_hex", "train.epochs=6"]
    without_template = run_cli_json(*args, f"out={tmp_path / 'blind'}")["dev"]["accuracy"]
    template = "task.template=[direction={direction}] {text}"
    result = run_cli_json(*args, template, f"out={tmp_path / 'out'}")
    assert result["dev"]["accuracy"] > 0.95 > 0.7 > without_template
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")
    assert evaluation["scores"]["accuracy"] == pytest.approx(result["dev"]["accuracy"])


def test_payload_prediction_from_model_folder(bytes_model, tmp_path):
    train = write_table(tmp_path / "train.tsv", [packet(seed) for seed in range(600)])
    out = tmp_path / "out"
    args = [f"model={bytes_model}", f"data.train={train}", "data.columns.text=payload_hex", f"out={out}", *FAST]
    run_cli("finetune", "task=classify", *args, "task.template=[direction={direction}] {text}", "train.epochs=6")
    rows = [packet(seed) for seed in range(900, 940)]
    raw = write_table(tmp_path / "raw.tsv", [*rows, dict(rows[0], direction="sideways")], COLUMNS[1:])
    run_cli("predict", f"model={out}", f"data={raw}", f"out={tmp_path / 'answers.jsonl'}")
    predictions = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert np.mean([prediction["label"] == row["label"] for prediction, row in zip(predictions, rows, strict=False)]) > 0.9
    assert predictions[-1]["label"].startswith(rows[0]["label"][:4])  # a direction not seen in training
    assert bertsmith.load(out)("ff1234")["label"].startswith("loud")
    assert "has no column 'direction'" in run_cli_error(
        "predict", f"model={out}", f"data={write_table(tmp_path / 'x.tsv', rows, COLUMNS[2:])}"
    )
    bad = write_table(tmp_path / "bad.tsv", [*rows[:2], dict(rows[2], payload_hex="f0f")])
    assert "bad.tsv, line 4: text is not hex" in run_cli_error("evaluate", f"model={out}", f"data={bad}")


def test_payload_new_embeddings_are_the_mean_of_known_bytes(bytes_model, tmp_path):
    train = write_table(tmp_path / "train.tsv", [packet(seed) for seed in range(20)])
    args = [f"model={bytes_model}", f"data.train={train}", "data.columns.text=payload_hex", f"out={tmp_path / 'out'}"]
    args += [
        "task.template=[direction={direction}] {text}",
        "max_length=32",
        "train.steps=1",
        "train.learning_rate=1e-12",
        "train.weight_decay=0",
    ]
    run_cli("finetune", "task=classify", *args)
    before, after = (bertsmith.load(folder) for folder in (bytes_model, tmp_path / "out"))
    old, new = (predictor.model.encoder.word_embeddings.weight for predictor in (before, after))
    assert after.tokenizer.id_to_token[len(before.tokenizer) :] == ["[direction=?]", "[direction=c]", "[direction=s]"]
    assert new[: len(old)].allclose(old, atol=1e-6)
    assert new[len(old) :].allclose(old[before.tokenizer.non_special_ids].mean(0).expand(3, -1), atol=1e-6)


def test_payload_hex_and_text_models_reject_each_other(bytes_model, bert, tmp_path):
    rows = [{"text": "the people", "label": "a"}, {"text": "of time", "label": "b"}]
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    args = ["finetune", "task=classify", f"data.train={train}", f"out={tmp_path / 'out'}", *FAST]
    assert "line 1: text is not hex: 't'" in run_cli_error(*args, f"model={bytes_model}")
    assert "task.hex=true needs a model with a tokenizer of hex bytes" in run_cli_error(*args, f"model={bert}", "task.hex=true")


def same_ending_row(seed, size=40):
    """Whether the last words of two long texts are equal; both texts together exceed max_length."""
    rng = np.random.default_rng(seed)
    ends = ["people", "water"] if rng.integers(2) else ["people", "people"]
    texts = [" ".join([*rng.choice(WORDS[:20], size), end]) for end in rng.permutation(ends)]
    return {"text": texts[0], "text_b": texts[1], "label": "other" if len(set(ends)) > 1 else "same"}


@pytest.mark.parametrize("pair", ["cross", "joint"])
def test_cross_attention_pairs_have_max_length_per_text(bert, tmp_path, pair):
    train, dev = (write_jsonl(tmp_path / f"{n}.jsonl", [same_ending_row(seed + n) for seed in range(n)]) for n in (400, 80))
    args = [f"model={bert}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST, "max_length=48"]
    result = run_cli_json("finetune", "task=classify", f"task.pair={pair}", *args, "train.epochs=8", "train.batch_tokens=1024")
    assert result["dev"]["accuracy"] > 0.9 if pair == "cross" else result["dev"]["accuracy"] < 0.8
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")
    assert evaluation["scores"]["accuracy"] == pytest.approx(result["dev"]["accuracy"])


def test_cross_attention_regression_keeps_pair_config(bert, tmp_path):
    rows = [dict(row, label=float(row["label"] == "same")) for row in (same_ending_row(seed, 8) for seed in range(300))]
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows[:240]), write_jsonl(tmp_path / "dev.jsonl", rows[240:])
    args = [f"model={bert}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST, "train.epochs=10"]
    result = run_cli_json("finetune", "task=regress", "task.pair=cross", "task.pair.blocks=1", *args)
    assert result["dev"]["pearson"] > 0.8
    record = json.loads((tmp_path / "out" / "config.json").read_text())
    assert record["task"]["pair"] == {"kind": "cross", "blocks": 1}
    assert record["model"]["heads"]["task"]["kind"] == "cross-attention"
    model = bertsmith.load(tmp_path / "out")
    row = next(row for row in rows if row["label"] == 1.0)
    assert model(row["text"], text_b=row["text_b"])["score"] > 0.5
    run_cli("predict", f"model={tmp_path / 'out'}", f"data={dev}", f"out={tmp_path / 'answers.jsonl'}")
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 60


def test_cross_attention_rejects_unsupported_options(bert, tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", [{"text": "the", "label": "a"}, {"text": "of", "label": "b"}])
    args = ["finetune", "task=classify", "task.pair=cross", f"model={bert}", f"data.train={train}", f"out={tmp_path / 'out'}"]
    assert "line 1 has no text_b" in run_cli_error(*args, *FAST)
    assert "leave out task.long_text=window" in run_cli_error(*args, *FAST, "task.long_text=window")
    assert "features cannot be combined with task.pair=cross" in run_cli_error(*args, *FAST, "features.layers=sum")


@pytest.mark.parametrize(("recipe", "name"), [("payloads-pretrain", "pretrain"), ("payloads-ndpi", "finetune"),
                                              ("payloads-ustc", "finetune"), ("pairs-cross", "finetune")])  # fmt: skip
def test_payload_recipes_are_valid(recipe, name):
    loaded = recipes.read_recipe(load_stage(name).Recipe, ROOT / "recipes" / f"{recipe}.toml")
    if recipe == "payloads-ndpi":
        assert loaded.task.fill_template({"direction": "c", "transport": "TCP"}.get) == ("[direction=c]", "[transport=TCP]")
    if recipe == "pairs-cross":
        assert loaded.task.pair.blocks == 2
