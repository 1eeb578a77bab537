"""A race: one budget for all members, one table of results, also with failures and interruptions."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bertsmith import cli
from bertsmith.artifacts import read_json
from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.racing import execution, run
from bertsmith.racing.budget import fit_to_budget, measure_step_flops
from bertsmith.racing.entries import build_entries
from bertsmith.recipes import read_recipe
from tests.support.racing import CAUSAL, SMALL, race_settings, write_files

SVG = "{http://www.w3.org/2000/svg}"
EXTRA_MEMBERS = {"broken": {"model": SMALL | {"hidden_size": 33}}, "untrained": {"model": SMALL, "untrained": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("race"))


@pytest.fixture(scope="module")
def finished_race(folder):
    """Recipe, result and folder of a race with a member that cannot be built."""
    settings = race_settings(folder, folder / "whole")
    settings["members"] |= EXTRA_MEMBERS
    recipe = from_dict(run.RaceRecipe, settings)
    return recipe, run.race(recipe, quiet=True), folder / "whole"


def member_row(result, name):
    return next(member for member in result["members"] if member["name"] == name)


def test_race_members_spend_the_same_budget(finished_race):
    recipe, result, out = finished_race
    for name in ("bert", "left"):
        member = member_row(result, name)
        step_flops = member["flops"] / member["steps"]
        assert member["flops"] <= recipe.budget.flops < member["flops"] + step_flops
        train_result = read_json(out / "members" / name / "card.json")["result"]
        assert member["steps"] == train_result["step"] and member["parameters"] == train_result["parameters"]
    assert (
        member_row(result, "untrained")["flops"] == 0
        and member_row(result, "left-lstm")["flops"] == member_row(result, "left")["flops"]
    )


def test_race_flops_are_steps_times_step_flops(finished_race):
    recipe, result, out = finished_race
    (bert, *_) = build_entries(recipe, out, Console(True))
    assert member_row(result, "bert")["flops"] == pytest.approx(
        member_row(result, "bert")["steps"] * measure_step_flops(bert.recipe, Corpus.open(bert.text.corpus_path))[0]
    )


def test_race_budget_limits_epochs(finished_race):
    recipe, _, _ = finished_race
    (bert, *_) = build_entries(recipe, Path(recipe.out), Console(True))
    open_corpus = Corpus.open(bert.text.corpus_path)
    step_flops, updates_per_epoch = measure_step_flops(bert.recipe, open_corpus)
    short, spent_flops = fit_to_budget(bert.recipe, open_corpus, 1e15, 0.5)
    assert short.train.steps == math.ceil(0.5 * updates_per_epoch) and spent_flops == pytest.approx(
        short.train.steps * step_flops
    )
    assert fit_to_budget(bert.recipe, open_corpus, 1.0, None)[0].train.steps == 1


def test_race_bits_per_byte_are_of_causal_models(finished_race):
    _, race_result, out = finished_race
    valid = next(Corpus.open(path) for path in (out / "corpora").glob("*-valid"))
    result = read_json(out / "members" / "left" / "card.json")["result"]
    nll_per_byte = result["valid_loss"] * valid.card["tokens"] / valid.card["bytes"]
    assert member_row(race_result, "left")["bits_per_byte"] == pytest.approx(nll_per_byte / 0.6931471805599453)
    assert (
        "bits_per_byte" not in member_row(race_result, "bert") and member_row(race_result, "bert")["pseudo_bits_per_byte"] > 0
    )
    assert not {"bits_per_byte", "pseudo_bits_per_byte"} & member_row(race_result, "untrained").keys()


def test_race_failed_member_does_not_stop_others(finished_race):
    _, result, out = finished_race
    assert member_row(result, "broken")["errors"] == [
        "a hidden_size of 33 does not divide into 2 heads; try model.mixer.num_attention_heads=1"
    ]
    assert run.code(result) == 1 and result["num_pending"] == 0
    for name in ("bert", "left", "untrained"):
        assert (
            member_row(result, name)["errors"] == [] and member_row(result, name)["scores"]["frozen"]["about"]["num_seeds"] == 1
        )
    assert member_row(result, "left-lstm")["scores"]["tuned"]["about"]["num_seeds"] == 1
    assert member_row(result, "left-lstm")["scores"]["frozen"]["about"] is None
    page = (out / "report.html").read_text()
    assert "a hidden_size of 33 does not divide" in page and not re.search(r"https?://|<script|<link", page)


def test_race_plot_has_scored_members_best_first(finished_race):
    _, result, out = finished_race
    svg = ElementTree.fromstring((out / "race.svg").read_text())
    names = [text.text for text in svg.iter(f"{SVG}text") if text.get("class") == "end"]
    best = {
        member["name"]: max((mode["average"]["mean"] for mode in member["scores"].values() if mode["average"]), default=None)
        for member in result["members"]
    }
    scored = {name: score for name, score in best.items() if score is not None and not math.isnan(score)}
    assert set(names) == set(scored) and "broken" not in names and len(names) > 3
    assert [scored[name] for name in names] == sorted(scored.values(), reverse=True)


def test_race_majority_baseline_predicts_most_frequent_label(finished_race, folder):
    labels = [line.split("\t")[1] for line in (folder / "dev.tsv").read_text().splitlines()[1:]]
    score = member_row(finished_race[1], "majority")["scores"]["tuned"]["about"]["mean"]
    assert score == pytest.approx(labels.count("time") / len(labels)) and score > 0.5


def test_race_removes_fine_tuned_models_unless_keep(finished_race):
    _, _, out = finished_race
    assert not list((out / "runs").rglob("model.safetensors"))
    assert len(list((out / "runs").rglob("seed-0.json"))) == 7
    assert (out / "members" / "bert" / "model.safetensors").exists()


def test_race_rerun_reads_finished_results(finished_race, monkeypatch):
    recipe, result, out = finished_race
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    monkeypatch.setattr(execution, "finetune", lambda *_: pytest.fail("a run that is done is done again"))
    again = run.race(recipe, quiet=True)
    assert again == result and before == {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}


def test_interrupted_race_resumes(finished_race, folder, tmp_path, monkeypatch, capsys):
    settings = race_settings(folder, tmp_path / "half") | {"texts": [str(folder / "text.txt")]}
    settings["members"] |= EXTRA_MEMBERS
    path = tmp_path / "race.toml"
    path.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in settings.items()))
    finetune, calls = execution.finetune, []

    def interrupted(recipe, quiet=False):
        calls.append(recipe.out)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return finetune(recipe, quiet)

    monkeypatch.setattr(execution, "finetune", interrupted)
    assert cli.main(["race", str(path), "--quiet"]) == 130
    half_result = read_json(tmp_path / "half" / "race.json")
    assert half_result["num_pending"] > 0 and "run the same command again to resume" in capsys.readouterr().err
    assert cli.main(["race", str(path), "--quiet", "--json"]) == 1
    assert len(calls) == 3 + 5  # seven runs, and the one that was interrupted
    full_result = json.loads(capsys.readouterr().out.splitlines()[-1])
    for member, other in zip(full_result["members"], finished_race[1]["members"], strict=True):
        assert (member["scores"], member.get("flops")) == (other["scores"], other.get("flops"))


def test_race_with_two_jobs_gives_same_scores(finished_race, folder, tmp_path):
    settings = race_settings(folder, tmp_path / "two", jobs=2)
    settings["members"] = {
        "bert": settings["members"]["bert"] | {"frozen": False},
        "dying": {"model": SMALL, "train": {"device": "cuda:99"}},
    }
    result = run.race(from_dict(run.RaceRecipe, settings), quiet=True)
    assert (
        member_row(result, "bert")["errors"] == []
        and member_row(result, "bert")["scores"]["tuned"] == member_row(finished_race[1], "bert")["scores"]["tuned"]
    )
    assert len(member_row(result, "dying")["errors"]) == 1 and member_row(result, "dying")["scores"]["tuned"]["about"] is None


def test_race_dependent_of_failed_member_fails(folder, tmp_path):
    settings = race_settings(folder, tmp_path / "out")
    settings["members"] = {"broken": {"model": SMALL | {"hidden_size": 33}}, "heir": {"of": "broken"}, "bert": {"model": SMALL}}
    result = run.race(from_dict(run.RaceRecipe, settings), quiet=True)
    assert (
        member_row(result, "heir")["errors"] == ["broken failed"]
        and result["num_pending"] == 0
        and not member_row(result, "bert")["errors"]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"members": {"a": {"model": SMALL, "objectiv": "clm"}}},
            "members.a: unknown key 'objectiv'; did you mean 'objective'?",
        ),
        ({"members": {"a": {"model": SMALL, "train": {"steps": 9}}}}, "members.a.train.steps .*: budget sets the duration"),
        ({"members": {"a": {"of": "b"}}}, "members.a.of=b is not a member"),
        (
            {"members": {"a": {"model": SMALL}, "b": {"of": "a", "model": CAUSAL}}},
            "members.b.model has no effect, since the member uses the checkpoint of a",
        ),
        ({"members": {"a/b": {"model": SMALL}}}, "members.a/b: the name is also that of a folder"),
        ({"members": {"a": {"model": SMALL, "tuned": {"seed": 3}}}}, "members.a.tuned.seed is set by the race"),
        ({"corpus": "x"}, "give either texts=FILES or corpus=FOLDER"),
        ({"seeds": [1, 1]}, "contains duplicates"),
        ({"seeds": []}, "needs at least one of members"),
    ],
)
def test_race_rejects_wrong_recipe_before_any_work(folder, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run.race(from_dict(run.RaceRecipe, race_settings(folder, tmp_path / "out", **changes)), quiet=True)
    assert not (tmp_path / "out" / "members").exists()


def test_race_rejects_unreadable_task_before_training(folder, tmp_path):
    settings = race_settings(folder, tmp_path / "out")
    settings["tasks"]["about"]["data"]["dev"] = str(folder / "none.tsv")
    with pytest.raises(UserError, match=r"tasks.about: .*none\.tsv"):
        run.race(from_dict(run.RaceRecipe, settings), quiet=True)
    assert not (tmp_path / "out" / "members").exists()


def to_toml(value):
    """TOML of a value: JSON, but for tables (and null, which does not occur)."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(item)}" for key, item in value.items()) + " }"
    return msgspec.json.encode(value).decode()


def test_race_recipe_members_can_run(folder, tmp_path):
    overrides = [
        "every.train.batch_tokens=1024",
        f"texts={folder / 'text.txt'}",
        f"valid={folder / 'valid.txt'}",
        f"out={tmp_path}",
    ]
    recipe = read_recipe(
        run.RaceRecipe, Path(run.__file__).parents[3] / "recipes" / "race.toml", [*overrides, "prepare.workers=1"]
    )
    entries = build_entries(recipe, tmp_path, Console(True))
    assert len(entries) >= 10 and all(entry.errors == () for entry in entries)
    kinds = {entry.recipe.objective.__struct_config__.tag for entry in entries if entry.recipe}
    assert kinds >= {"mlm-nsp", "mlm", "clm", "bilm", "skip-gram", "glove"}
    flops = {entry.name: entry.flops for entry in entries}
    assert flops["bert-untrained"] == 0 < flops["word2vec"] < flops["bert"] <= recipe.budget.flops


def test_characters_race_recipe_members_can_run(folder, tmp_path):
    overrides = [f"texts={folder / 'text.txt'}", f"valid={folder / 'valid.txt'}", f"out={tmp_path}", "prepare.workers=1"]
    recipe = read_recipe(run.RaceRecipe, Path(run.__file__).parents[3] / "recipes" / "characters.toml", overrides)
    entries = build_entries(recipe, tmp_path, Console(True))
    assert all(entry.errors == () and entry.flops <= recipe.budget.flops for entry in entries)
    kinds = {entry.recipe.model.mixer.__struct_config__.tag for entry in entries}
    assert kinds == {"attention", "transformer-xl", "longformer", "adaptive-span", "reformer", "lite-transformer"}


def test_race_without_tasks(folder):
    """Only bits per byte are measured."""
    settings = race_settings(folder, folder / "text alone", members={"left": {"model": CAUSAL, "objective": "clm"}}, tasks={})
    result = run.race(from_dict(run.RaceRecipe, settings), quiet=True)
    (member,) = result["members"]
    assert member["bits_per_byte"] > 0 and member["scores"] == {} and not member["errors"]
    assert "Metrics:" not in (folder / "text alone" / "report.html").read_text()
