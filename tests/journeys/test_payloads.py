"""From hex payloads to answers by the command line: a byte model, guide tokens, and pairs joined by cross-attention."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith import config
from bertsmith.commands import load_stage
from tests.conftest import WORDS
from tests.journeys.test_finetuning import FAST, bert, written  # noqa: F401
from tests.journeys.test_pretraining import ROOT, SMALL, answer, ran, refused

COLUMNS = ("label", "direction", "payload_hex")


def packet(seed):
    """Who speaks is in the first byte; what is meant takes the direction too, which the bytes do not say."""
    rng = np.random.default_rng(seed)
    loud, direction = bool(rng.integers(2)), str(rng.choice(["c", "s"]))
    payload = bytes([0xFF if loud else 0x01, *rng.integers(2, 255, int(rng.integers(3, 20))).tolist()])
    return {"label": f"{'loud' if loud else 'soft'}-{direction}", "direction": direction, "payload_hex": payload.hex()}


def table(path, rows, columns=COLUMNS):
    path.write_text("".join("\t".join(row) + "\n" for row in [columns, *([row[name] for name in columns] for row in rows)]))
    return path


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory):
    """Pre-trained a little on the payloads themselves."""
    folder = tmp_path_factory.mktemp("payloads")
    texts = [f"texts={table(folder / 'all.tsv', [packet(seed) for seed in range(300)])}", "column=payload_hex"]
    ran("tokenizer", *texts, "kind=byte", "hex=true", f"out={folder / 'tokenizer'}")
    made = answer("prepare", *texts, f"tokenizer={folder / 'tokenizer'}", f"out={folder / 'corpus'}", "workers=1")
    assert made["documents"] == 300 and made["unknown_rate"] == 0
    model = ["model.deviation=0.15", "model.norm=before", "objective=masked", "objective.view=doc-sentences"]
    ran("pretrain", f"corpus={folder / 'corpus'}", f"out={folder / 'model'}", *SMALL, *model, "train.steps=5")
    return folder / "model"


def test_payloads_are_classified_with_what_their_guides_say(bytes_model, tmp_path):
    train, dev = (table(tmp_path / f"{n}.tsv", [packet(n + seed) for seed in range(n)]) for n in (600, 100))
    words = ["finetune", "task=classify", f"model={bytes_model}", f"data.train={train}", f"data.dev={dev}", *FAST]
    words += ["data.columns.text=payload_hex", "train.epochs=6"]
    blind = answer(*words, f"out={tmp_path / 'blind'}")["dev"]["accuracy"]
    template = "task.template='[direction={direction}] {text}'"
    made = answer(*words, template, f"out={tmp_path / 'out'}")
    assert made["dev"]["accuracy"] > 0.95 > 0.7 > blind
    judged = answer("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")
    assert judged["scores"]["accuracy"] == pytest.approx(made["dev"]["accuracy"])


def test_a_raw_file_is_answered_from_the_folder_alone(bytes_model, tmp_path):
    train = table(tmp_path / "train.tsv", [packet(seed) for seed in range(600)])
    out = tmp_path / "out"
    words = [f"model={bytes_model}", f"data.train={train}", "data.columns.text=payload_hex", f"out={out}", *FAST]
    ran("finetune", "task=classify", *words, "task.template='[direction={direction}] {text}'", "train.epochs=6")
    rows = [packet(seed) for seed in range(900, 940)]
    raw = table(tmp_path / "raw.tsv", [*rows, dict(rows[0], direction="sideways")], COLUMNS[1:])
    ran("predict", f"model={out}", f"data={raw}", f"out={tmp_path / 'answers.jsonl'}")
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert np.mean([one["label"] == row["label"] for one, row in zip(answers, rows, strict=False)]) > 0.9
    assert answers[-1]["label"].startswith(rows[0]["label"][:4])  # another direction than any of training's: still answered
    assert bertsmith.load(out)("ff1234")["label"].startswith("loud")
    assert "has no column 'direction'" in refused(
        "predict", f"model={out}", f"data={table(tmp_path / 'x.tsv', rows, COLUMNS[2:])}"
    )
    bad = table(tmp_path / "bad.tsv", [*rows[:2], dict(rows[2], payload_hex="f0f")])
    assert "bad.tsv, line 4: text is not hex" in refused("evaluate", f"model={out}", f"data={bad}")


def test_new_rows_of_the_table_are_the_mean_of_the_known_bytes(bytes_model, tmp_path):
    train = table(tmp_path / "train.tsv", [packet(seed) for seed in range(20)])
    words = [f"model={bytes_model}", f"data.train={train}", "data.columns.text=payload_hex", f"out={tmp_path / 'out'}"]
    words += [
        "task.template='[direction={direction}] {text}'",
        "length=32",
        "train.steps=1",
        "train.rate=1e-12",
        "train.decay=0",
    ]
    ran("finetune", "task=classify", *words)
    before, after = (bertsmith.load(folder) for folder in (bytes_model, tmp_path / "out"))
    old, new = (one.model.encoder.tokens.weight for one in (before, after))
    assert after.tokenizer.id_to_token[len(before.tokenizer) :] == ["[direction=?]", "[direction=c]", "[direction=s]"]
    assert new[: len(old)].allclose(old, atol=1e-6)
    assert new[len(old) :].allclose(old[before.tokenizer.non_special_ids].mean(0).expand(3, -1), atol=1e-6)


def test_text_is_refused_by_a_model_of_bytes_and_hex_by_a_model_of_text(bytes_model, bert, tmp_path):  # noqa: F811
    rows = [{"text": "the people", "label": "a"}, {"text": "of time", "label": "b"}]
    train = written(tmp_path / "train.jsonl", rows)
    begin = ["finetune", "task=classify", f"data.train={train}", f"out={tmp_path / 'out'}", *FAST]
    assert "line 1: text is not hex: 't'" in refused(*begin, f"model={bytes_model}")
    assert "task.hex=true, but" in refused(*begin, f"model={bert}", "task.hex=true")


def alike(seed, size=40):
    """Whether the last words of two long texts are the same: together they do not fit."""
    rng = np.random.default_rng(seed)
    ends = ["people", "water"] if rng.integers(2) else ["people", "people"]
    texts = [" ".join([*rng.choice(WORDS[:20], size), end]) for end in rng.permutation(ends)]
    return {"text": texts[0], "text_b": texts[1], "label": "other" if len(set(ends)) > 1 else "same"}


@pytest.mark.parametrize("pair", ["cross", "joint"])
def test_long_pairs_have_the_whole_length_each_by_cross_attention(bert, tmp_path, pair):  # noqa: F811
    train, dev = (written(tmp_path / f"{n}.jsonl", [alike(seed + n) for seed in range(n)]) for n in (400, 80))
    words = [f"model={bert}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST, "length=48"]
    made = answer("finetune", "task=classify", f"task.pair={pair}", *words, "train.epochs=8", "train.batch_tokens=1024")
    assert made["dev"]["accuracy"] > 0.9 if pair == "cross" else made["dev"]["accuracy"] < 0.8
    judged = answer("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")
    assert judged["scores"]["accuracy"] == pytest.approx(made["dev"]["accuracy"])


def test_a_pair_is_rated_by_cross_attention_and_its_way_is_kept(bert, tmp_path):  # noqa: F811
    rows = [dict(row, label=float(row["label"] == "same")) for row in (alike(seed, 8) for seed in range(300))]
    train, dev = written(tmp_path / "train.jsonl", rows[:240]), written(tmp_path / "dev.jsonl", rows[240:])
    words = [f"model={bert}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST, "train.epochs=10"]
    made = answer("finetune", "task=regress", "task.pair=cross", "task.pair.blocks=1", *words)
    assert made["dev"]["pearson"] > 0.8
    record = json.loads((tmp_path / "out" / "config.json").read_text())
    assert record["task"]["pair"] == {"kind": "cross", "blocks": 1} and record["model"]["heads"]["task"]["kind"] == "cross"
    model = bertsmith.load(tmp_path / "out")
    row = next(row for row in rows if row["label"] == 1.0)
    assert model(row["text"], text_b=row["text_b"])["value"] > 0.5
    ran("predict", f"model={tmp_path / 'out'}", f"data={dev}", f"out={tmp_path / 'answers.jsonl'}")
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 60


def test_what_cross_attention_cannot_do_is_refused(bert, tmp_path):  # noqa: F811
    train = written(tmp_path / "train.jsonl", [{"text": "the", "label": "a"}, {"text": "of", "label": "b"}])
    begin = ["finetune", "task=classify", "task.pair=cross", f"model={bert}", f"data.train={train}", f"out={tmp_path / 'out'}"]
    assert "line 1 has no text_b" in refused(*begin, *FAST)
    assert "leave out task.long=window" in refused(*begin, *FAST, "task.long=window")
    assert "features are what a plain head reads" in refused(*begin, *FAST, "features.layers=sum")


@pytest.mark.parametrize(("recipe", "name"), [("payloads-pretrain", "pretrain"), ("payloads-ndpi", "finetune"),
                                              ("payloads-ustc", "finetune"), ("pairs-cross", "finetune")])  # fmt: skip
def test_the_recipes_can_be_read(recipe, name):
    read = config.read_recipe(load_stage(name).Recipe, ROOT / "recipes" / f"{recipe}.toml")
    if recipe == "payloads-ndpi":
        assert read.task.fill_template({"direction": "c", "transport": "TCP"}.get) == ("[direction=c]", "[transport=TCP]")
    if recipe == "pairs-cross":
        assert read.task.pair.blocks == 2
