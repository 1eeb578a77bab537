"""A run: its identity, its checkpoints, its lock, stop signals, and what it publishes."""

import shutil

import pytest
import torch

from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.runs import RUN_FILE, RUN_ID_EXCLUDED, Run, compute_run_id, list_checkpoints, open_run
from bertsmith.train.config import TrainConfig
from bertsmith.writing import write_json

QUIET = Console(quiet=True)


def run_id(corpus, **train):
    recipe = {"corpus": str(corpus), "out": str(train.pop("out", "out")), "train": {"steps": 5, **train}}
    return compute_run_id(from_dict(PretrainRecipe, recipe), corpus=str(corpus))


CHANGES = {
    "learning_rate": 0.5, "batch_tokens": 64, "gradient_accumulation_steps": 7, "warmup_steps": 3, "precision": "bf16",
    "lr_scheduler_type": "cosine", "optimizer": "lamb", "max_grad_norm": 0.25, "compile": True, "gradient_checkpointing": True,
    "workers": 3, "device": "cpu", "save_total_limit": 5, "save_every": 17, "eval_every": 17, "log_every": 17,
    "tensorboard": True,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_run_id_depends_on_what_determines_the_result(name, corpus):
    assert name in TrainConfig.__struct_fields__
    is_same = run_id(corpus, **{name: CHANGES[name]}) == run_id(corpus)
    assert is_same == (name in RUN_ID_EXCLUDED)


def test_run_id_depends_on_intervals_that_choose_weights(corpus):
    for choice, interval in (("early_stopping_patience", "eval_every"), ("average_checkpoints", "save_every")):
        assert run_id(corpus, **{choice: 2, interval: 3}) != run_id(corpus, **{choice: 2, interval: 4})


def test_run_id_depends_on_contents_not_on_paths(corpus, chinese, tmp_path):
    shutil.copytree(corpus, tmp_path / "copy")
    assert run_id(tmp_path / "copy", out="elsewhere") == run_id(corpus) != run_id(chinese)


def save(run, step, limit=10):
    weights = torch.arange(6.0).view(2, 3) + step
    # views of one storage, which safetensors alone would refuse
    run.save_checkpoint(step, {"model": {"a": weights, "b": weights.t()}, "optimizer": {}}, {"step": step}, limit)


def test_run_checkpoint_round_trips(tmp_path):
    run = Run(tmp_path, "identity", QUIET)
    assert run.load_latest_checkpoint(pytest.fail) is None
    save(run, 2)
    save(run, 10)
    latest = run.load_latest_checkpoint(pytest.fail)
    assert latest.folder.name == "step-10" and latest.progress == {"step": 10, "fingerprint": "identity"}
    assert (
        torch.equal(latest.tensors["model"]["b"], torch.arange(6.0).view(2, 3).t() + 10) and latest.tensors["optimizer"] == {}
    )


def test_run_keeps_the_newest_checkpoints_and_later_ones_after_a_rollback(tmp_path):
    run = Run(tmp_path, "", QUIET)
    for step in (1, 2, 30, 4):  # 4 after a rollback from 30
        save(run, step, limit=2)
    (run.state / "step-x").mkdir()
    assert [path.name for path in list_checkpoints(run.state)] == ["step-2", "step-4", "step-30"]


def test_run_skips_damaged_checkpoints_with_a_warning(tmp_path):
    run, warnings = Run(tmp_path, "", QUIET), []
    for step in (1, 2):
        save(run, step)
    path = run.state / "step-2" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert run.load_latest_checkpoint(warnings.append).folder.name == "step-1"
    assert (
        len(warnings) == 1 and "model.safetensors" in warnings[0] and warnings[0].endswith("; trying the checkpoint before it")
    )


def test_run_refuses_checkpoints_of_another_recipe(tmp_path):
    save(Run(tmp_path, "first", QUIET), 1)
    with pytest.raises(UserError, match=r"another recipe \(first, not second\); choose another `out`, or remove"):
        Run(tmp_path, "second", QUIET).load_latest_checkpoint(pytest.fail)


def test_checkpoints_of_another_recipe_are_refused_before_the_folder_is_used(tmp_path):
    """GloVe counts co-occurrences in the folder before it looks for a checkpoint."""
    for step in (1, 2):
        save(Run(tmp_path / "out", "first", QUIET), step, limit=2)
    (tmp_path / "out" / "state" / "step-2" / "progress.json").write_text("{")  # damaged
    with pytest.raises(UserError, match=r"another recipe \(first, not second\)"), open_run(tmp_path / "out", "second", QUIET):
        pytest.fail("the run was opened")
    with open_run(tmp_path / "out", "first", QUIET) as run:
        assert run.finished_result is None


def publish(run, recipe):
    def write_model(folder, card, config):
        write_json(folder / "card.json", card)
        write_json(folder / "config.json", config)
        for name in ("tokenizer.json", "metrics.jsonl", "model.safetensors"):
            (folder / name).write_text("{}")

    run.publish(write_model, {"result": {"step": 5}}, {"stage": "pretrain"}, recipe)


def test_published_run_is_found_finished_by_the_same_recipe_only(tmp_path, corpus):
    recipe = from_dict(PretrainRecipe, {"corpus": str(corpus), "out": str(tmp_path / "out"), "train": {"steps": 5}})
    with open_run(tmp_path / "out", "identity", QUIET) as run:
        assert run.finished_result is None
        save(run, 3)
        publish(run, recipe)
        assert not run.state.exists()
    with open_run(tmp_path / "out", "identity", QUIET) as run:
        assert run.finished_result == {"out": str(tmp_path / "out"), "created": False, "step": 5}
    with pytest.raises(UserError, match="contains a model of another recipe"), open_run(tmp_path / "out", "other", QUIET):
        pass


def test_run_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("text")
    with (
        pytest.raises(UserError, match="already exists and contains other files; choose another out"),
        open_run(tmp_path, "identity", QUIET),
    ):
        pass


def test_run_that_died_before_its_first_checkpoint_starts_again(tmp_path):
    """It had written only what it is (`state/run.json`), and the same command was refused for ever."""
    (tmp_path / "state").mkdir()
    write_json(tmp_path / "state" / RUN_FILE, {"stage": "finetune"})
    with open_run(tmp_path, "identity", QUIET) as run:
        assert run.finished_result is None and run.load_latest_checkpoint(pytest.fail) is None
