"""A race: one budget for all, one table in the end, whatever fails or stops on the way."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bertsmith import cli
from bertsmith.artifacts import read_json
from bertsmith.config import from_dict, read_recipe
from bertsmith.console import Console
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.race import execution, run
from bertsmith.race.budget import fit_to_budget, measure_step_flops
from bertsmith.race.entries import build_entries
from tests.race.builders import CAUSAL, SMALL, files, settings

SVG = "{http://www.w3.org/2000/svg}"
MORE = {"broken": {"model": SMALL | {"width": 33}}, "untrained": {"model": SMALL, "untrained": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return files(tmp_path_factory.mktemp("race"))


@pytest.fixture(scope="module")
def ran(folder):
    """A whole race with a member that cannot be built, and what it told."""
    told = settings(folder, folder / "whole")
    told["members"] |= MORE
    recipe = from_dict(run.RaceRecipe, told)
    return recipe, run.race(recipe, quiet=True), folder / "whole"


def row(told, name):
    return next(one for one in told["members"] if one["name"] == name)


def test_every_member_spends_the_same_budget_and_no_more(ran):
    recipe, told, out = ran
    for name in ("bert", "left"):
        one = row(told, name)
        each = one["flops"] / one["steps"]
        assert one["flops"] <= recipe.budget.flops < one["flops"] + each
        made = read_json(out / "members" / name / "card.json")["result"]
        assert one["steps"] == made["step"] and one["parameters"] == made["parameters"]
    assert row(told, "untrained")["flops"] == 0 and row(told, "left-lstm")["flops"] == row(told, "left")["flops"]


def test_a_step_costs_what_the_model_is_counted_to(ran):
    recipe, told, out = ran
    (bert, *_) = build_entries(recipe, out, Console(True))
    assert row(told, "bert")["flops"] == pytest.approx(
        row(told, "bert")["steps"] * measure_step_flops(bert.recipe, Corpus.open(bert.text.corpus_path))[0]
    )


def test_a_member_that_costs_little_reads_the_text_so_often_and_stops(ran):
    recipe, _, _ = ran
    (bert, *_) = build_entries(recipe, Path(recipe.out), Console(True))
    opened = Corpus.open(bert.text.corpus_path)
    each, an_epoch = measure_step_flops(bert.recipe, opened)
    short, spent = fit_to_budget(bert.recipe, opened, 1e15, 0.5)
    assert short.train.steps == math.ceil(0.5 * an_epoch) and spent == pytest.approx(short.train.steps * each)
    assert fit_to_budget(bert.recipe, opened, 1.0, None)[0].train.steps == 1


def test_bits_are_told_of_those_who_read_from_left_to_right(ran):
    _, told, out = ran
    valid = next(Corpus.open(path) for path in (out / "corpora").glob("*-valid"))
    result = read_json(out / "members" / "left" / "card.json")["result"]
    nats = result["valid_loss"] * valid.card["tokens"] / valid.card["bytes"]
    assert row(told, "left")["bits_per_byte"] == pytest.approx(nats / 0.6931471805599453)
    assert "bits_per_byte" not in row(told, "bert") and row(told, "bert")["pseudo_bits_per_byte"] > 0
    assert not {"bits_per_byte", "pseudo_bits_per_byte"} & row(told, "untrained").keys()


def test_a_member_that_fails_says_why_and_stops_no_other(ran):
    _, told, out = ran
    assert row(told, "broken")["faults"] == ["a width of 33 does not divide into 2 heads; try model.mixer.heads=1"]
    assert run.code(told) == 1 and told["left"] == 0
    for name in ("bert", "left", "untrained"):
        assert row(told, name)["faults"] == [] and row(told, name)["scores"]["frozen"]["about"]["seeds"] == 1
    assert row(told, "left-lstm")["scores"]["tuned"]["about"]["seeds"] == 1
    assert row(told, "left-lstm")["scores"]["frozen"]["about"] is None
    page = (out / "report.html").read_text()
    assert "a width of 33 does not divide" in page and not re.search(r"https?://|<script|<link", page)


def test_the_ladder_has_a_rung_for_each_that_scored_the_best_above(ran):
    _, told, out = ran
    drawn = ElementTree.fromstring((out / "race.svg").read_text())
    names = [text.text for text in drawn.iter(f"{SVG}text") if text.get("class") == "end"]
    best = {one["name"]: max((way["average"]["mean"] for way in one["scores"].values() if way["average"]), default=None)
            for one in told["members"]}  # fmt: skip
    scored = {name: score for name, score in best.items() if score is not None and not math.isnan(score)}
    assert set(names) == set(scored) and "broken" not in names and len(names) > 3
    assert [scored[name] for name in names] == sorted(scored.values(), reverse=True)


def test_the_baseline_answers_what_is_most_usual(ran, folder):
    labels = [line.split("\t")[1] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    found = row(ran[1], "majority")["scores"]["tuned"]["about"]["mean"]
    assert found == pytest.approx(labels.count("time") / len(labels)) and found > 0.5


def test_only_scores_are_left_of_runs_unless_models_are_to_be_kept(ran):
    _, _, out = ran
    assert not list((out / "runs").rglob("model.safetensors"))
    assert len(list((out / "runs").rglob("seed-0.json"))) == 7
    assert (out / "members" / "bert" / "model.safetensors").exists()


def test_the_same_command_reads_what_is_done(ran, monkeypatch):
    recipe, told, out = ran
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    monkeypatch.setattr(execution, "finetune", lambda *_: pytest.fail("a run that is done is done again"))
    again = run.race(recipe, quiet=True)
    assert again == told and before == {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}


def test_a_half_done_race_goes_on(ran, folder, tmp_path, monkeypatch, capsys):
    told = settings(folder, tmp_path / "half") | {"texts": [str(folder / "text.txt")]}
    told["members"] |= MORE
    path = tmp_path / "race.toml"
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in told.items()))
    real, calls = execution.finetune, []

    def interrupted(recipe, quiet=False):
        calls.append(recipe.out)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(recipe, quiet)

    monkeypatch.setattr(execution, "finetune", interrupted)
    assert cli.main(["race", str(path), "--quiet"]) == 130
    half = read_json(tmp_path / "half" / "race.json")
    assert half["left"] > 0 and "go on" in capsys.readouterr().err
    assert cli.main(["race", str(path), "--quiet", "--json"]) == 1
    assert len(calls) == 3 + 5  # seven runs, and the one that was interrupted
    whole = json.loads(capsys.readouterr().out.splitlines()[-1])
    for one, other in zip(whole["members"], ran[1]["members"], strict=True):
        assert (one["scores"], one.get("flops")) == (other["scores"], other.get("flops"))


def test_two_processes_come_to_the_same_table(ran, folder, tmp_path):
    told = settings(folder, tmp_path / "two", jobs=2)
    told["members"] = {
        "bert": told["members"]["bert"] | {"frozen": False},
        "dying": {"model": SMALL, "train": {"device": "cuda:99"}},
    }
    found = run.race(from_dict(run.RaceRecipe, told), quiet=True)
    assert (
        row(found, "bert")["faults"] == [] and row(found, "bert")["scores"]["tuned"] == row(ran[1], "bert")["scores"]["tuned"]
    )
    assert len(row(found, "dying")["faults"]) == 1 and row(found, "dying")["scores"]["tuned"]["about"] is None


def test_who_takes_the_checkpoint_of_a_member_that_failed_fails_with_it(folder, tmp_path):
    told = settings(folder, tmp_path / "out")
    told["members"] = {"broken": {"model": SMALL | {"width": 33}}, "heir": {"of": "broken"}, "bert": {"model": SMALL}}
    found = run.race(from_dict(run.RaceRecipe, told), quiet=True)
    assert row(found, "heir")["faults"] == ["broken failed"] and found["left"] == 0 and not row(found, "bert")["faults"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"members": {"a": {"model": SMALL, "objectiv": "causal"}}},
            "members.a: objectiv is not known; did you mean 'objective'",
        ),
        ({"members": {"a": {"model": SMALL, "train": {"steps": 9}}}}, "members.a.train.steps .* the budget says how long"),
        ({"members": {"a": {"of": "b"}}}, "members.a.of=b is not a member"),
        (
            {"members": {"a": {"model": SMALL}, "b": {"of": "a", "model": CAUSAL}}},
            "members.b.model: it takes the checkpoint of a",
        ),
        ({"members": {"a/b": {"model": SMALL}}}, "members.a/b: the name is that of a folder"),
        ({"members": {"a": {"model": SMALL, "tuned": {"seed": 3}}}}, "members.a.tuned.seed is for the race to say"),
        ({"corpus": "x"}, "texts=FILES or corpus=FOLDER, one of the two"),
        ({"seeds": [1, 1]}, "name one twice"),
        ({"seeds": []}, "needs members and seeds"),
    ],
)
def test_a_wrong_recipe_is_refused_before_anything_is_made(folder, tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        run.race(from_dict(run.RaceRecipe, settings(folder, tmp_path / "out", **changes)), quiet=True)
    assert not (tmp_path / "out" / "members").exists()


def test_a_task_that_cannot_be_read_is_named_before_anything_learns(folder, tmp_path):
    told = settings(folder, tmp_path / "out")
    told["tasks"]["about"]["data"]["dev"] = str(folder / "none.tsv")
    with pytest.raises(UserError, match=r"tasks.about: .*none\.tsv"):
        run.race(from_dict(run.RaceRecipe, told), quiet=True)
    assert not (tmp_path / "out" / "members").exists()


def _toml(value):
    """JSON is TOML but for tables and null."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return msgspec.json.encode(value).decode()


def test_the_recipe_that_comes_with_the_project_names_members_that_can_run(folder, tmp_path):
    words = [
        "every.train.batch_tokens=1024",
        f"texts={folder / 'text.txt'}",
        f"valid={folder / 'valid.txt'}",
        f"out={tmp_path}",
    ]
    recipe = read_recipe(run.RaceRecipe, Path(run.__file__).parents[3] / "recipes" / "race.toml", [*words, "prepare.workers=1"])
    runners = build_entries(recipe, tmp_path, Console(True))
    assert len(runners) >= 10 and all(one.errors == () for one in runners)
    kinds = {one.recipe.objective.__struct_config__.tag for one in runners if one.recipe}
    assert kinds >= {"pairs", "masked", "causal", "both-ways", "skip-gram", "glove"}
    spent = {one.name: one.flops for one in runners}
    assert spent["bert-untrained"] == 0 < spent["word2vec"] < spent["bert"] <= recipe.budget.flops


def test_the_race_of_characters_names_members_that_can_run(folder, tmp_path):
    words = [f"texts={folder / 'text.txt'}", f"valid={folder / 'valid.txt'}", f"out={tmp_path}", "prepare.workers=1"]
    recipe = read_recipe(run.RaceRecipe, Path(run.__file__).parents[3] / "recipes" / "characters.toml", words)
    runners = build_entries(recipe, tmp_path, Console(True))
    assert all(one.errors == () and one.flops <= recipe.budget.flops for one in runners)
    kinds = {one.recipe.model.mixer.__struct_config__.tag for one in runners}
    assert kinds == {"dense", "recurrent", "window", "adaptive", "hashed", "long-short"}


def test_a_race_of_text_alone_has_no_tasks(folder):
    """Bits per byte are all that is asked of who reads from left to right."""
    told = settings(folder, folder / "text alone", members={"left": {"model": CAUSAL, "objective": "causal"}}, tasks={})
    found = run.race(from_dict(run.RaceRecipe, told), quiet=True)
    (left,) = found["members"]
    assert left["bits_per_byte"] > 0 and left["scores"] == {} and not left["faults"]
    assert "Measured by" not in (folder / "text alone" / "report.html").read_text()
