"""Every way to fine-tune, from a file of examples to an answer, by the command line."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.journeys.test_finetuning import FAST, bert, classified, tagged, written  # noqa: F401
from tests.journeys.test_pretraining import ROOT, answer, killed_command, ran, refused

WAYS = {
    "features": ["recipes/features.toml", "features.last=2", "train.rate=2e-2"],
    "mix": ["features.layers=mix"],
    "lstm": ["freeze=all", "features={layers='sum',last=2,lstm=1}"],
    "top": ["freeze=1"],
    "lora": ["recipes/lora.toml", "lora.rank=4", "train.rate=1e-2"],
    "gradual": ["recipes/gradual.toml"],
    "steady": ["recipes/steady.toml", "adversary.size=0.1", "adversary.stride=0.1"],
    "pgd": ["adversary=pgd", "adversary.size=0.1"],
    "quick head": ["train.head_rate=5"],
}


def files(folder, make, train=400, dev=100):
    return [written(folder / f"{n}.jsonl", [make(np.random.default_rng(i + n)) for i in range(n)]) for n in (train, dev)]


def words(kind, model, folder, make, *more):
    train, dev = files(folder, make)
    more = [str(ROOT / word) if word.endswith(".toml") else word for word in more]
    return [f"task={kind}", f"model={model}", f"data.train={train}", f"data.dev={dev}", f"out={folder / 'out'}", *FAST, *more]


@pytest.mark.parametrize("way", WAYS)
def test_a_way_learns_and_its_folder_answers(bert, tmp_path, way):  # noqa: F811
    kind, make, metric = ("tag", tagged, "f1") if way in ("lstm", "mix") else ("classify", classified, "accuracy")
    made = answer("finetune", *words(kind, bert, tmp_path, make, "train.epochs=8", *WAYS[way]))
    assert made["dev"][metric] > 0.8
    judged = answer("evaluate", f"model={tmp_path / 'out'}", f"data={tmp_path / '100.jsonl'}")
    assert judged["scores"][metric] == pytest.approx(made["dev"][metric])
    if kind == "classify":
        assert bertsmith.load(tmp_path / "out")("people are here")["label"] == "good"


@pytest.mark.parametrize(("way", "still"), [("features", ("tokens", "blocks.0", "blocks.1")), ("top", ("tokens", "blocks.0"))])
def test_what_is_frozen_is_as_it_was(bert, tmp_path, way, still):  # noqa: F811
    answer("finetune", *words("classify", bert, tmp_path, classified, *WAYS[way], "train.epochs=1"))
    before, after = load_tensors(bert / "model.safetensors"), load_tensors(tmp_path / "out" / "model.safetensors")
    same = {name for name in before.keys() & after.keys() if (before[name] == after[name]).all()}
    frozen = {name for name in after if name.startswith("encoder.") and any(part in name for part in still)}
    assert frozen and frozen <= same
    assert "encoder.pooler.weight" not in same or way == "features"


def test_dropout_may_be_another_than_in_pre_training(bert, tmp_path):  # noqa: F811
    given = words("classify", bert, tmp_path, classified, "train.steps=2", "dropout=0.5")
    losses = [answer("finetune", *given)["loss"], answer("finetune", *given[:-1], f"out={tmp_path / 'other'}")["loss"]]
    assert losses[0] != losses[1]
    assert json.loads((tmp_path / "out/config.json").read_text())["model"]["encoder"]["dropout"] == 0.5


def test_several_seeds_give_a_mean_a_deviation_and_the_best(bert, tmp_path):  # noqa: F811
    given = words("classify", bert, tmp_path, classified, "recipes/seeds.toml", "train.epochs=1", "seeds=[0,1,2]")
    made = answer("finetune", *given)
    scores = [made["seeds"][str(seed)]["accuracy"] for seed in range(3)]
    assert made["mean"]["accuracy"] == pytest.approx(np.mean(scores))
    assert made["deviation"]["accuracy"] == pytest.approx(np.std(scores, ddof=1))
    assert made["dev"]["accuracy"] == max(scores) and scores[made["seed"]] == max(scores)
    judged = answer("evaluate", f"model={tmp_path / 'out'}", f"data={tmp_path / '100.jsonl'}")
    assert judged["scores"]["accuracy"] == max(scores)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []
    assert not answer("finetune", *given)["made"]
    one = [word.replace("/out", "/one") for word in given if not word.startswith(("seeds", "/"))]
    alone = answer("finetune", *one, f"seed={made['seed']}")
    assert alone["dev"] == made["dev"]  # a seed among others is the seed alone


def test_seeds_that_were_killed_go_on(bert, tmp_path):  # noqa: F811
    given = words("classify", bert, tmp_path, classified, "train.epochs=1", "seeds=[0,1]", "train.save_every=2")
    killed_command("finetune", *given, until=tmp_path / "out/seeds/seed-1/state/step-2")
    made = answer("finetune", *given)
    whole = [word.replace("/out", "/whole") for word in given]
    assert made["seeds"] == answer("finetune", *whole)["seeds"]
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole")]
    assert same[0] == same[1]


def test_early_stop_keeps_the_best_weights(bert, tmp_path):  # noqa: F811
    given = words("classify", bert, tmp_path, classified, "train.epochs=60", "train.stop=2")
    made = answer("finetune", *given)
    assert made["dev"]["accuracy"] > 0.9
    assert made["best_step"] < made["step"]
    assert not list((tmp_path / "out").glob("state/*"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["freeze=9"], "freeze=9 is more than the model's 2 blocks"),
        (["freeze=all", "lora.rank=2"], "leave out freeze"),
        (["scratch=true", "freeze=1"], "scratch"),
        (["features.last=9"], "features.last=9"),
        (["seeds=[1,1]"], "twice"),
        (["best=loudness", "train.stop=1"], "best=loudness is not a score"),
        (["adversary=fmg"], "did you mean 'fgm'"),
        (["train.stop=1", "data.dev="], "give a dev file"),
        (["seeds=[1,2]", "data.dev="], "give data.dev"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(bert, tmp_path, settings, said):  # noqa: F811
    given = words("classify", bert, tmp_path, classified, "train.epochs=1", *settings)
    assert said in refused("finetune", *given)


def test_a_long_document_is_read_by_parts_and_joined(bert, tmp_path):  # noqa: F811
    """The word that decides stands far beyond the length: cut, it is never seen."""

    def far(rng):
        row = classified(rng)
        return {"text": " ".join(["river"] * 60) + " " + row["text"], "label": row["label"]}

    scores = {}
    for long in ("truncate", "hierarchical", "window"):
        (tmp_path / long).mkdir()
        given = words(
            "classify",
            bert,
            tmp_path / long,
            far,
            "train.epochs=8",
            "recipes/long-documents.toml",
            f"long={long}",
            "task.stride=16",
            *FAST,
            "train.batch_tokens=4096",
        )
        scores[long] = answer("finetune", *given)["dev"]["accuracy"]
    assert scores["truncate"] < 0.7 < 0.8 < min(scores["hierarchical"], scores["window"])
    ran(
        "predict",
        f"model={tmp_path / 'hierarchical/out'}",
        f"data={tmp_path / 'hierarchical/100.jsonl'}",
        f"out={tmp_path / 'a'}",
    )
    answers = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    truths = [json.loads(line)["label"] for line in (tmp_path / "hierarchical/100.jsonl").read_text().splitlines()]
    assert np.mean([a["label"] == t for a, t in zip(answers, truths, strict=True)]) == scores["hierarchical"]


@pytest.mark.parametrize(
    ("kind", "row", "settings", "said"),
    [
        ("classify", {"text": "a b"}, [], "has no column 'label'"),
        ("tag", {"tokens": ["a"]}, [], "nothing to be judged by"),
        ("tag", {"tokens": ["a"], "tags": ["NOUN"]}, [], "line 1: the tag 'NOUN' is not of the kind that was learnt"),
        ("similar", {"text": "a", "text_b": "b"}, [], "needs its score"),
        ("similar", {"text": "a", "text_b": "b", "score": 1}, ["freeze=all"], "every weight of the model is frozen"),
        ("similar", {"text": "a", "text_b": "b", "score": 1}, ["train.thaw=0.5"], "no head"),
        ("classify", {"text": "a b", "label": "x"}, ["task.template='[way={way}] {text}'", "lora.rank=2"], "guide tokens"),
        ("classify", {"text": "a b", "label": "good"}, ["best=accuracy"], "chooses among seeds"),
    ],
)
def test_what_would_spoil_an_hour_is_said_before_it(bert, tmp_path, kind, row, settings, said):  # noqa: F811
    make = {"classify": classified, "tag": tagged}.get(
        kind, lambda rng: row | ({"score": int(rng.integers(5))} if "score" in row else {})
    )
    given = words(kind, bert, tmp_path, make, "train.steps=2", *settings)
    written(tmp_path / "100.jsonl", [row, row | {"score": 0} if "score" in row else row])
    assert said in refused("finetune", *given)


def test_the_same_files_elsewhere_are_the_same_run_and_another_rhythm_of_stopping_is_not(bert, tmp_path):  # noqa: F811
    given = words("classify", bert, tmp_path, classified, "train.steps=4", "train.stop=1", "train.eval_every=2")
    answer("finetune", *given)
    (tmp_path / "moved").mkdir()
    (tmp_path / "400.jsonl").rename(tmp_path / "moved/other.jsonl")
    moved = [f"data.train={tmp_path / 'moved/other.jsonl'}" if word.startswith("data.train") else word for word in given]
    assert not answer("finetune", *moved)["made"]
    assert "another recipe" in refused("finetune", *moved, "train.eval_every=1")


def test_seeds_go_on_after_a_mistake_and_a_type_that_only_some_answers_have(bert, tmp_path):  # noqa: F811
    """The training file has a tag that the dev file has not: seeds that answer with it and seeds that do not are compared."""

    def rare(rng):
        row = tagged(rng)
        return row | {"tags": [*row["tags"][:-1], "B-MISC"]} if len(row["tokens"]) and rng.random() < 0.5 else row

    given = words("tag", bert, tmp_path, rare, "train.steps=30", "seeds=[0,1]")
    written(tmp_path / "100.jsonl", [tagged(np.random.default_rng(i)) for i in range(30)])
    refused("finetune", *given, "freeze=9")  # leaves nothing behind that the next run would stumble over
    made = answer("finetune", *given)
    assert "f1.MISC" in made["mean"]
