"""What a person gives by mistake is refused in words, or answered in its place, and never means something else silently."""

import json

import msgspec
import pytest

import bertsmith
from bertsmith.commands import evaluate
from bertsmith.errors import UserError
from bertsmith.pretraining.setup import PretrainRecipe, build_model_config
from bertsmith.tasks import TextClassification
from tests.journeys.test_pretraining import answer, ran, refused
from tests.test_predict import TASKS, saved
from tests.test_predict_files import written


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    lenient = {"lenient": TextClassification(labels=("bad", "good"), skip_bad=True)}
    columns = {"columns": msgspec.structs.replace(TASKS["tag"], columns={"tags": "3"})}
    return {kind: saved(folder / kind, task) for kind, task in {**TASKS, **lenient, **columns, "words": None}.items()}


def told(stdout):
    return [json.loads(line) for line in stdout.splitlines()]


BAD = [{"text": "the", "label": "good"}, {"text": None, "label": "bad"}, {"text": "now", "label": "bad"}]


def test_bad_rows_stop_predict_whatever_training_did_or_are_answered_in_their_place(folders, tmp_path):
    data, out = written(tmp_path / "rows.jsonl", BAD), tmp_path / "out.jsonl"
    words = ["predict", f"model={folders['lenient']}", f"data={data}"]
    assert "line 2: text is null; mend the row, or leave such rows out by skip_bad=true" in refused(*words)
    said = ran(*words, "skip_bad=true", f"out={out}")
    rows = told(out.read_text())
    assert ["label" in row for row in rows] == [True, False, True] and "1 rows could not be used" in said.stderr
    assert rows[1] == {"error": f"{data}, line 2: text is null"}
    single = bertsmith.load(folders["lenient"])
    assert rows[2]["label"] == single("now")["label"]


def test_masks_of_a_file_with_bad_rows_stand_beside_their_rows(folders, tmp_path):
    data = written(tmp_path / "rows.jsonl", [{"text": 1}, {"text": "the [MASK]"}])
    rows = told(ran("predict", f"model={folders['words']}", f"data={data}", "skip_bad=true").stdout)
    assert list(rows[0]) == ["error"] and len(rows[1]["masks"]) == 1


def test_bad_rows_stop_evaluate_or_are_counted(folders, tmp_path):
    data = written(tmp_path / "rows.jsonl", BAD)
    words = ["evaluate", f"model={folders['lenient']}", f"data={data}"]
    assert "line 2: text is null" in refused(*words)
    assert "1 rows left out" in ran(*words, "skip_bad=true", f"out={tmp_path / 'out'}").stderr
    result = answer(*words, "skip_bad=true")
    assert result["skipped"] == json.loads((tmp_path / "out" / "scores.json").read_text())["skipped"] == 1
    assert result["examples"] == 2


def test_hints_name_the_keys_of_the_command(folders, tmp_path):
    data = written(tmp_path / "rows.jsonl", [{"headline": "the"}])
    assert "columns.text, or in finetune data.columns.text=" in refused(
        "predict", f"model={folders['classify']}", f"data={data}"
    )
    written(data, [{"text": 3}])
    fault = refused("embed", f"model={folders['words']}", f"data={data}", f"out={tmp_path / 'a.npy'}")
    assert "line 1: text is 3, not a text; mend the row" in fault and "skip_bad" not in fault


@pytest.mark.parametrize("stage", ["predict", "embed", "evaluate", "export", "finetune"])
def test_a_folder_that_others_made_is_refused_with_the_way_to_import_it(tmp_path, stage):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "bert"}')
    data = written(tmp_path / "a.jsonl", [{"text": "the", "label": "good"}])
    words = {
        "predict": ["text=a"],
        "embed": ["text=a"],
        "evaluate": [f"data={data}"],
        "export": [f"out={tmp_path / 'out'}"],
        "finetune": ["task=classify", f"data.train={data}", f"out={tmp_path / 'out'}"],
    }
    fault = refused(stage, f"model={tmp_path / 'hf'}", *words[stage])
    assert "is not a folder that bertsmith made; `bertsmith import source=" in fault


def test_pretraining_does_not_begin_from_a_folder_that_others_made(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    recipe = PretrainRecipe(corpus="c", out="o", init=str(tmp_path))
    with pytest.raises(UserError, match="is not a folder that bertsmith made"):
        build_model_config(recipe, None)  # before anything is asked of the corpus


def test_generators_of_texts_are_read_whole_and_other_things_are_refused(folders):
    words = bertsmith.load(folders["words"])
    assert words.embed(one for one in ("the", "now")).shape == (2, 32)
    for wrong in (None, 0, 1.5, ["the", 0], ["the", None], ["the", "", b"now"], {"the": 1}, b"the"):
        with pytest.raises(UserError, match="is not a text"):
            words.embed(wrong)


WRONG = {
    "candidates that are one text": lambda words: words.fill("the [MASK]", candidates="way"),
    "candidates that are one number": lambda words: words.fill("the [MASK]", candidates=5),
    "candidates that are numbers": lambda words: words.fill("the [MASK]", candidates=[1]),
    "a list to fill": lambda words: words.fill(["the [MASK]"]),
    "nothing to fill": lambda words: words.fill(None),
    "fewer than no words": lambda words: words.fill("the [MASK]", top=-1),
    "fewer than no words together": lambda words: words.fill("the [MASK]", top=0, together=True),
    "an unknown pool": lambda words: words.embed("the", pool="max"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(folders, name):
    with pytest.raises(UserError):
        WRONG[name](bertsmith.load(folders["words"]))


@pytest.mark.parametrize("words", [{"precision": "fp16"}, {"device": "1"}, {"device": 1}, {"device": "cuda:"}])
def test_unknown_numbers_and_devices_are_refused(folders, words):
    with pytest.raises(UserError, match="is not known"):
        bertsmith.load(folders["words"], **words)


def test_questions_that_are_none_are_refused(folders):
    with pytest.raises(UserError, match="text is missing"):
        bertsmith.load(folders["tag"])([None])
    with pytest.raises(UserError, match="as many second ones"):
        bertsmith.load(folders["classify"])(["a"], 5)


SENTENCES = ["Mary said no", "She did", "", "我爱北京天安门，你呢？"]


@pytest.mark.parametrize("some", [SENTENCES, SENTENCES[:1], SENTENCES[3:]])
def test_lines_of_raw_text_are_tagged_as_texts(folders, tmp_path, some):
    (tmp_path / "raw.txt").write_text("\n".join(some), encoding="utf-8")
    model = bertsmith.load(folders["tag"])
    rows = told(ran("predict", f"model={folders['tag']}", f"data={tmp_path / 'raw.txt'}").stdout)
    assert [row["tokens"] for row in rows] == [model(one)["tokens"] for one in some]


@pytest.mark.parametrize("text", ["Mary B-PER\nsaid O\n\nno O\n", "Mary\tNNP\nsaid\tVBD\n\nno\tDT\n", "Mary\nsaid\n\nno\n"])
@pytest.mark.parametrize("model", ["tag", "columns"])
def test_columns_of_tokens_are_tagged_as_sentences(folders, tmp_path, model, text):
    (tmp_path / "columns.txt").write_text(text)
    rows = told(ran("predict", f"model={folders[model]}", f"data={tmp_path / 'columns.txt'}").stdout)
    assert [len(row["tags"]) for row in rows] == [2, 1]


def test_tokens_that_are_null_are_a_bad_row(folders, tmp_path):
    data = written(tmp_path / "rows.jsonl", [{"tokens": None}, {"tokens": ["now"]}])
    assert "line 1: tokens is null" in refused("predict", f"model={folders['tag']}", f"data={data}")
    rows = told(ran("predict", f"model={folders['tag']}", f"data={data}", "skip_bad=true").stdout)
    assert "tokens is null" in rows[0]["error"] and len(rows[1]["tags"]) == 1


@pytest.mark.parametrize("stage", ["predict", "embed"])
def test_out_is_looked_at_before_the_work(folders, tmp_path, stage):
    data = written(tmp_path / "a.jsonl", [{"text": "the"}])
    (tmp_path / "out.npy").mkdir()
    words = [stage, f"model={tmp_path / 'not there'}", f"data={data}"]
    assert "is a folder" in refused(*words, f"out={tmp_path / 'out.npy'}")
    documents = [f"documents={data}"] if stage == "embed" else []
    assert "is the file that is read" in refused(*words, *documents, f"out={data}")
    assert told(data.read_text()) == [{"text": "the"}]


@pytest.mark.parametrize("kind", ["words", "classify", "tag", "embed"])
def test_of_an_empty_file_nothing_is_left(folders, tmp_path, kind):
    (tmp_path / "empty.txt").touch()
    stage = "embed" if kind == "embed" else "predict"
    model = folders["words" if kind == "embed" else kind]
    fault = refused(stage, f"model={model}", f"data={tmp_path / 'empty.txt'}", f"out={tmp_path / 'out.npy'}")
    assert "holds nothing that can be used" in fault
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_a_text_unlike_both_is_not_looked_at_when_pairs_are_judged(folders, tmp_path):
    pairs = [("the", "now", 1), ("people said", "the people", 3), ("water", "water now", 2)]
    bare = [{"text": a, "text_b": b, "score": score} for a, b, score in pairs]
    results = []
    for name, rows in (("pairs", bare), ("threes", [one | {"negative": "she"} for one in bare])):
        data = written(tmp_path / f"{name}.jsonl", rows)
        results.append(evaluate.run(evaluate.Recipe(model=str(folders["similar"]), data=str(data)), quiet=True)["scores"])
    assert results[0] == pytest.approx(results[1], abs=1e-5)
