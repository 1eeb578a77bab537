"""Invalid input is refused with a readable message or reported in place; it is never silently misread."""

import json

import msgspec
import pytest

import bertsmith
from bertsmith.commands import evaluate
from bertsmith.errors import UserError
from bertsmith.pretraining.setup import PretrainRecipe, build_model_config
from bertsmith.tasks import TextClassification
from tests.support.cli import run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import write_jsonl


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    lenient = {"lenient": TextClassification(labels=("bad", "good"), skip_bad=True)}
    columns = {"columns": msgspec.structs.replace(TASKS["tag"], columns={"tags": "3"})}
    return {kind: save_model(folder / kind, task) for kind, task in {**TASKS, **lenient, **columns, "words": None}.items()}


def parse_lines(stdout):
    return [json.loads(line) for line in stdout.splitlines()]


ROWS_WITH_BAD_ONE = [{"text": "the", "label": "good"}, {"text": None, "label": "bad"}, {"text": "now", "label": "bad"}]


def test_bad_rows_in_predict_are_refused_or_reported_in_place(folders, tmp_path):
    data, out = write_jsonl(tmp_path / "rows.jsonl", ROWS_WITH_BAD_ONE), tmp_path / "out.jsonl"
    argv = ["predict", f"model={folders['lenient']}", f"data={data}"]
    assert "line 2: text is null; fix the row, or skip such rows with skip_bad=true" in run_cli_error(*argv)
    completed = run_cli(*argv, "skip_bad=true", f"out={out}")
    rows = parse_lines(out.read_text())
    assert ["label" in row for row in rows] == [True, False, True] and "1 invalid rows" in completed.stderr
    assert rows[1] == {"error": f"{data}, line 2: text is null"}
    predictor = bertsmith.load(folders["lenient"])
    assert rows[2]["label"] == predictor("now")["label"]


def test_bad_rows_in_fill_mask_are_reported_in_place(folders, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", [{"text": 1}, {"text": "the [MASK]"}])
    rows = parse_lines(run_cli("predict", f"model={folders['words']}", f"data={data}", "skip_bad=true").stdout)
    assert list(rows[0]) == ["error"] and len(rows[1]["predictions"]) == 5 and rows[1]["text"]


def test_bad_rows_in_evaluate_are_refused_or_counted(folders, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", ROWS_WITH_BAD_ONE)
    argv = ["evaluate", f"model={folders['lenient']}", f"data={data}"]
    assert "line 2: text is null" in run_cli_error(*argv)
    assert "skipped 1 invalid row" in run_cli(*argv, "skip_bad=true", f"out={tmp_path / 'out'}").stderr
    result = run_cli_json(*argv, "skip_bad=true")
    assert result["num_skipped"] == json.loads((tmp_path / "out" / "scores.json").read_text())["num_skipped"] == 1
    assert result["num_examples"] == 2


def test_bad_input_hints_name_the_keys_of_the_stage(folders, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", [{"headline": "the"}])
    assert "columns.text, or in finetune data.columns.text=" in run_cli_error(
        "predict", f"model={folders['classify']}", f"data={data}"
    )
    write_jsonl(data, [{"text": 3}])
    message = run_cli_error("embed", f"model={folders['words']}", f"data={data}", f"out={tmp_path / 'a.npy'}")
    assert "line 1: text is 3, not a text; fix the row" in message and "skip_bad" not in message


@pytest.mark.parametrize("stage", ["predict", "embed", "evaluate", "export", "finetune"])
def test_bad_input_foreign_checkpoint_suggests_import(tmp_path, stage):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "bert"}')
    data = write_jsonl(tmp_path / "a.jsonl", [{"text": "the", "label": "good"}])
    settings = {
        "predict": ["text=a"],
        "embed": ["text=a"],
        "evaluate": [f"data={data}"],
        "export": [f"out={tmp_path / 'out'}"],
        "finetune": ["task=classify", f"data.train={data}", f"out={tmp_path / 'out'}"],
    }
    message = run_cli_error(stage, f"model={tmp_path / 'hf'}", *settings[stage])
    assert "is a Hugging Face folder, not a bertsmith checkpoint; convert it with `bertsmith import source=" in message


def test_bad_input_foreign_checkpoint_as_init_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    recipe = PretrainRecipe(corpus="c", out="o", init=str(tmp_path))
    with pytest.raises(UserError, match="not a bertsmith checkpoint"):
        build_model_config(recipe, None)  # before the corpus is opened


def test_bad_input_embed_takes_generators_and_refuses_other_types(folders):
    predictor = bertsmith.load(folders["words"])
    assert predictor.embed(text for text in ("the", "now")).shape == (2, 32)
    for value in (None, 0, 1.5, ["the", 0], ["the", None], ["the", "", b"now"], {"the": 1}, b"the"):
        with pytest.raises(UserError, match="is not a text"):
            predictor.embed(value)


BAD_CALLS = {
    "candidates that are one text": lambda predictor: predictor.fill("the [MASK]", candidates="way"),
    "candidates that are one number": lambda predictor: predictor.fill("the [MASK]", candidates=5),
    "candidates that are numbers": lambda predictor: predictor.fill("the [MASK]", candidates=[1]),
    "a number in a list to fill": lambda predictor: predictor.fill(["the [MASK]", 5]),
    "nothing to fill": lambda predictor: predictor.fill(None),
    "fewer than no words": lambda predictor: predictor.fill("the [MASK]", top_k=-1),
    "fewer than no words iteratively": lambda predictor: predictor.fill("the [MASK]", top_k=0, iterative=True),
    "an unknown pool": lambda predictor: predictor.embed("the", pooling="max"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_arguments_are_refused(folders, name):
    with pytest.raises(UserError):
        BAD_CALLS[name](bertsmith.load(folders["words"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp16"}, "precision=fp16"),
        ({"device": "1"}, "is not a device"),
        ({"device": 1}, "is not a device"),
        ({"device": "cuda:"}, "is not a device"),
    ],
)
def test_bad_input_precision_and_device_are_refused(folders, settings, message):
    with pytest.raises(UserError, match=message):
        bertsmith.load(folders["words"], **settings)


def test_bad_input_none_is_refused(folders):
    with pytest.raises(UserError, match="text is missing"):
        bertsmith.load(folders["tag"])([None])
    with pytest.raises(UserError, match="text_b is 5, not a text"):
        bertsmith.load(folders["classify"])(["a"], 5)


SENTENCES = ["Mary said no", "She did", "", "我爱北京天安门，你呢？"]


@pytest.mark.parametrize("texts", [SENTENCES, SENTENCES[:1], SENTENCES[3:]])
def test_predict_tags_lines_of_raw_text(folders, tmp_path, texts):
    (tmp_path / "raw.txt").write_text("\n".join(texts), encoding="utf-8")
    model = bertsmith.load(folders["tag"])
    rows = parse_lines(run_cli("predict", f"model={folders['tag']}", f"data={tmp_path / 'raw.txt'}").stdout)
    assert [row["text"] for row in rows] == texts
    spans = [[(entity["word"], entity["start"], entity["end"]) for entity in row["entities"]] for row in rows]
    assert spans == [[(entity["word"], entity["start"], entity["end"]) for entity in model(text)] for text in texts]


@pytest.mark.parametrize("text", ["Mary B-PER\nsaid O\n\nno O\n", "Mary\tNNP\nsaid\tVBD\n\nno\tDT\n", "Mary\nsaid\n\nno\n"])
@pytest.mark.parametrize("model", ["tag", "columns"])
def test_predict_tags_columns_of_tokens(folders, tmp_path, model, text):
    (tmp_path / "columns.txt").write_text(text)
    rows = parse_lines(run_cli("predict", f"model={folders[model]}", f"data={tmp_path / 'columns.txt'}").stdout)
    assert [row["text"] for row in rows] == ["Mary said", "no"]


def test_bad_rows_null_tokens(folders, tmp_path):
    data = write_jsonl(tmp_path / "rows.jsonl", [{"tokens": None}, {"tokens": ["now"]}])
    assert "line 1: tokens is null" in run_cli_error("predict", f"model={folders['tag']}", f"data={data}")
    rows = parse_lines(run_cli("predict", f"model={folders['tag']}", f"data={data}", "skip_bad=true").stdout)
    assert "tokens is null" in rows[0]["error"] and rows[1]["text"] == "now"


@pytest.mark.parametrize("stage", ["predict", "embed"])
def test_bad_input_out_is_checked_before_loading(folders, tmp_path, stage):
    data = write_jsonl(tmp_path / "a.jsonl", [{"text": "the"}])
    (tmp_path / "out.npy").mkdir()
    argv = [stage, f"model={tmp_path / 'not there'}", f"data={data}"]
    assert "is a folder" in run_cli_error(*argv, f"out={tmp_path / 'out.npy'}")
    documents = [f"documents={data}"] if stage == "embed" else []
    assert "is also the input file" in run_cli_error(*argv, *documents, f"out={data}")
    assert parse_lines(data.read_text()) == [{"text": "the"}]


@pytest.mark.parametrize("kind", ["words", "classify", "tag", "embed"])
def test_bad_input_empty_file_leaves_no_output(folders, tmp_path, kind):
    (tmp_path / "empty.txt").touch()
    stage = "embed" if kind == "embed" else "predict"
    model = folders["words" if kind == "embed" else kind]
    message = run_cli_error(stage, f"model={model}", f"data={tmp_path / 'empty.txt'}", f"out={tmp_path / 'out.npy'}")
    assert "has no usable rows" in message
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_evaluate_ignores_negative_texts_of_pairs(folders, tmp_path):
    pairs = [("the", "now", 1), ("people said", "the people", 3), ("water", "water now", 2)]
    without_negatives = [{"text": a, "text_b": b, "score": score} for a, b, score in pairs]
    results = []
    for name, rows in (("pairs", without_negatives), ("threes", [row | {"negative": "she"} for row in without_negatives])):
        data = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        results.append(evaluate.run(evaluate.Recipe(model=str(folders["similar"]), data=str(data)), quiet=True)["scores"])
    assert results[0] == pytest.approx(results[1], abs=1e-5)


def test_evaluate_refuses_tags_of_another_scheme(folders, tmp_path):
    data = tmp_path / "tags.conll"
    data.write_text("the O\nnow B-PER\n\nthe NOUN\n", encoding="utf-8")
    stderr = run_cli("evaluate", f"model={folders['tag']}", f"data={data}", code=2).stderr
    assert f"error: {data}, line 4: tag 'NOUN' does not follow the tagging scheme" in stderr
