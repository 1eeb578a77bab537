"""Fine-tuning options (feature extraction, LoRA, freezing, adversarial training, seeds, early stopping) on the command line."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.support.cli import (
    FAST,
    ROOT,
    kill_cli_when_exists,
    run_cli,
    run_cli_error,
    run_cli_json,
)
from tests.support.rows import classification_row, tagging_row, write_jsonl

OPTIONS = {
    "features": ["recipes/features.toml", "features.last=2", "train.learning_rate=2e-2"],
    "mix": ["features.layers=mix"],
    "lstm": ["freeze=all", "features={layers='sum',last=2,lstm=1}"],
    "top": ["freeze=1"],
    "lora": ["recipes/lora.toml", "lora.r=4", "train.learning_rate=1e-2"],
    "gradual": ["recipes/gradual.toml"],
    "steady": ["recipes/steady.toml", "adversary.epsilon=0.1", "adversary.step_size=0.1"],
    "pgd": ["adversary=pgd", "adversary.epsilon=0.1"],
    "quick head": ["train.head_lr_multiplier=5"],
}


def write_files(folder, make_row, train=400, dev=100):
    return [
        write_jsonl(folder / f"{n}.jsonl", [make_row(np.random.default_rng(i + n)) for i in range(n)]) for n in (train, dev)
    ]


def finetune_args(kind, model, folder, make_row, *extra):
    train, dev = write_files(folder, make_row)
    extra = [str(ROOT / word) if word.endswith(".toml") else word for word in extra]
    return [f"task={kind}", f"model={model}", f"data.train={train}", f"data.dev={dev}", f"out={folder / 'out'}", *FAST, *extra]


@pytest.mark.parametrize("option", OPTIONS)
def test_finetuning_option_learns_and_predicts(bert, tmp_path, option):
    kind, make_row, metric = (
        ("tag", tagging_row, "f1") if option in ("lstm", "mix") else ("classify", classification_row, "accuracy")
    )
    result = run_cli_json("finetune", *finetune_args(kind, bert, tmp_path, make_row, "train.epochs=8", *OPTIONS[option]))
    assert result["dev"][metric] > 0.8
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={tmp_path / '100.jsonl'}")
    assert evaluation["scores"][metric] == pytest.approx(result["dev"][metric])
    if kind == "classify":
        assert bertsmith.load(tmp_path / "out")("people are here")["label"] == "good"


@pytest.mark.parametrize(
    ("option", "frozen_parts"),
    [("features", ("word_embeddings", "layers.0", "layers.1")), ("top", ("word_embeddings", "layers.0"))],
)
def test_finetuning_keeps_frozen_weights(bert, tmp_path, option, frozen_parts):
    run_cli_json("finetune", *finetune_args("classify", bert, tmp_path, classification_row, *OPTIONS[option], "train.epochs=1"))
    before, after = load_tensors(bert / "model.safetensors"), load_tensors(tmp_path / "out" / "model.safetensors")
    unchanged = {name for name in before.keys() & after.keys() if (before[name] == after[name]).all()}
    frozen = {name for name in after if name.startswith("encoder.") and any(part in name for part in frozen_parts)}
    assert frozen and frozen <= unchanged
    assert "encoder.pooler.weight" not in unchanged or option == "features"


def test_finetuning_overrides_dropout(bert, tmp_path):
    args = finetune_args("classify", bert, tmp_path, classification_row, "train.steps=2", "hidden_dropout_prob=0.5")
    losses = [
        run_cli_json("finetune", *args)["loss"],
        run_cli_json("finetune", *args[:-1], f"out={tmp_path / 'other'}")["loss"],
    ]
    assert losses[0] != losses[1]
    assert json.loads((tmp_path / "out/config.json").read_text())["model"]["encoder"]["hidden_dropout_prob"] == 0.5


def test_finetuning_seeds_report_mean_deviation_and_best(bert, tmp_path):
    args = finetune_args(
        "classify", bert, tmp_path, classification_row, "recipes/seeds.toml", "train.epochs=1", "seeds=[0,1,2]"
    )
    result = run_cli_json("finetune", *args)
    scores = [result["seeds"][str(seed)]["accuracy"] for seed in range(3)]
    assert result["mean"]["accuracy"] == pytest.approx(np.mean(scores))
    assert result["std"]["accuracy"] == pytest.approx(np.std(scores, ddof=1))
    assert result["dev"]["accuracy"] == max(scores) and scores[result["seed"]] == max(scores)
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={tmp_path / '100.jsonl'}")
    assert evaluation["scores"]["accuracy"] == max(scores)
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == []
    assert not run_cli_json("finetune", *args)["created"]
    single_args = [word.replace("/out", "/one") for word in args if not word.startswith(("seeds", "/"))]
    single_result = run_cli_json("finetune", *single_args, f"seed={result['seed']}")
    assert single_result["dev"] == result["dev"]  # a seed among several gives the same result as alone


def test_finetuning_seeds_resume_after_kill(bert, tmp_path):
    args = finetune_args("classify", bert, tmp_path, classification_row, "train.epochs=1", "seeds=[0,1]", "train.save_every=2")
    kill_cli_when_exists("finetune", *args, until=tmp_path / "out/seeds/seed-1/state/step-2")
    result = run_cli_json("finetune", *args)
    uninterrupted_args = [word.replace("/out", "/whole") for word in args]
    assert result["seeds"] == run_cli_json("finetune", *uninterrupted_args)["seeds"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "whole")]
    assert weights[0] == weights[1]


def test_early_stopping_keeps_the_best_weights(bert, tmp_path):
    args = finetune_args("classify", bert, tmp_path, classification_row, "train.epochs=60", "train.early_stopping_patience=2")
    result = run_cli_json("finetune", *args)
    assert result["dev"]["accuracy"] > 0.9
    assert result["best_step"] < result["step"]
    assert not list((tmp_path / "out").glob("state/*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["freeze=9"], "freeze=9 is more than the model's 2 layers"),
        (["freeze=all", "lora.r=2"], "leave out freeze"),
        (["random_init=true", "freeze=1"], "random_init"),
        (["features.last=9"], "features.last=9"),
        (["seeds=[1,1]"], "contains duplicates"),
        (
            ["metric_for_best_model=loudness", "train.early_stopping_patience=1"],
            "metric_for_best_model=loudness is not a metric",
        ),
        (["adversary=fmg"], "did you mean 'fgm'"),
        (["train.early_stopping_patience=1", "data.dev=", "data.validation_split=0"], "give a dev file"),
        (["seeds=[1,2]", "data.dev=", "data.validation_split=0"], "set data.dev"),
    ],
)
def test_finetuning_rejects_invalid_options(bert, tmp_path, settings, message):
    args = finetune_args("classify", bert, tmp_path, classification_row, "train.epochs=1", *settings)
    assert message in run_cli_error("finetune", *args)


def test_finetuning_long_documents_hierarchical_and_windows(bert, tmp_path):
    """The decisive word is far beyond max_length: truncation loses it."""

    def long_row(rng):
        row = classification_row(rng)
        return {"text": " ".join(["river"] * 60) + " " + row["text"], "label": row["label"]}

    scores = {}
    for long in ("truncate", "hierarchical", "window"):
        (tmp_path / long).mkdir()
        args = finetune_args(
            "classify",
            bert,
            tmp_path / long,
            long_row,
            "train.epochs=8",
            "recipes/long-documents.toml",
            f"long_text={long}",
            "task.doc_stride=16",
            *FAST,
            "train.batch_tokens=4096",
        )
        scores[long] = run_cli_json("finetune", *args)["dev"]["accuracy"]
    assert scores["truncate"] < 0.7 < 0.8 < min(scores["hierarchical"], scores["window"])
    run_cli(
        "predict",
        f"model={tmp_path / 'hierarchical/out'}",
        f"data={tmp_path / 'hierarchical/100.jsonl'}",
        f"out={tmp_path / 'a'}",
    )
    predictions = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    labels = [json.loads(line)["label"] for line in (tmp_path / "hierarchical/100.jsonl").read_text().splitlines()]
    assert (
        np.mean([prediction["label"] == label for prediction, label in zip(predictions, labels, strict=True)])
        == scores["hierarchical"]
    )


@pytest.mark.parametrize(
    ("kind", "row", "settings", "message"),
    [
        ("classify", {"text": "a b"}, [], "has no column 'label'"),
        ("tag", {"tokens": ["a"]}, [], "cannot be used for evaluation"),
        ("tag", {"tokens": ["a"], "tags": ["NOUN"]}, [], "line 1: tag 'NOUN' does not follow the tagging scheme"),
        ("similar", {"text": "a", "text_b": "b"}, [], "every example needs a score"),
        ("similar", {"text": "a", "text_b": "b", "score": 1}, ["freeze=all"], "every weight of the model is frozen"),
        ("similar", {"text": "a", "text_b": "b", "score": 1}, ["train.gradual_unfreezing=0.5"], "has no task head"),
        (
            "classify",
            {"text": "a b", "label": "x"},
            ["task.template='[way={way}] {text}'", "lora.r=2"],
            "task.template adds tokens",
        ),
        ("classify", {"text": "a b", "label": "good"}, ["metric_for_best_model=accuracy"], "has no effect without seeds"),
    ],
)
def test_finetuning_rejects_bad_data_before_training(bert, tmp_path, kind, row, settings, message):
    make_row = {"classify": classification_row, "tag": tagging_row}.get(
        kind, lambda rng: row | ({"score": int(rng.integers(5))} if "score" in row else {})
    )
    args = finetune_args(kind, bert, tmp_path, make_row, "train.steps=2", *settings)
    write_jsonl(tmp_path / "100.jsonl", [row, row | {"score": 0} if "score" in row else row])
    assert message in run_cli_error("finetune", *args)


def test_finetuning_run_identity_ignores_paths_but_not_eval_every(bert, tmp_path):
    args = finetune_args(
        "classify", bert, tmp_path, classification_row, "train.steps=4", "train.early_stopping_patience=1", "train.eval_every=2"
    )
    run_cli_json("finetune", *args)
    (tmp_path / "moved").mkdir()
    (tmp_path / "400.jsonl").rename(tmp_path / "moved/other.jsonl")
    moved_args = [f"data.train={tmp_path / 'moved/other.jsonl'}" if word.startswith("data.train") else word for word in args]
    assert not run_cli_json("finetune", *moved_args)["created"]
    assert "another recipe" in run_cli_error("finetune", *moved_args, "train.eval_every=1")


def test_finetuning_seeds_after_error_and_with_rare_entity_type(bert, tmp_path):
    """The training file has a tag that is not in the dev file: metrics of seeds that do and do not predict it are combined."""

    def rare_row(rng):
        row = tagging_row(rng)
        return row | {"tags": [*row["tags"][:-1], "B-MISC"]} if len(row["tokens"]) and rng.random() < 0.5 else row

    args = finetune_args("tag", bert, tmp_path, rare_row, "train.steps=30", "seeds=[0,1]")
    write_jsonl(tmp_path / "100.jsonl", [tagging_row(np.random.default_rng(i)) for i in range(30)])
    run_cli_error("finetune", *args, "freeze=9")  # leaves no files that would block the next run
    result = run_cli_json("finetune", *args)
    assert "f1.MISC" in result["mean"]
