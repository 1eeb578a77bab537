"""`bertsmith doctor` on runs: a run broken by one setting has the finding that names this setting."""

import json
import shutil
import struct

import pytest

import bertsmith
from bertsmith.artifacts import write_manifest
from bertsmith.config import from_dict
from bertsmith.corpus import collate
from bertsmith.diagnostics import run_log
from bertsmith.errors import UserError
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.writing import lock_output
from tests.support.diagnostics import (
    WORDS,
    doctor_findings,
    doctor_problems,
    generate_text,
    prepare_corpus,
    pretrain_recipe,
    run_pretraining,
)


@pytest.fixture(scope="module")
def unordered_corpus(tmp_path_factory):
    """Independent words: there is nothing to learn but their frequencies."""
    return prepare_corpus(tmp_path_factory.mktemp("unordered_corpus"), generate_text(300, ordered=False))


def remove_corpus_path(run):
    """As if the corpus had been moved."""
    record = json.loads((run / "config.json").read_text())
    record["recipe"]["corpus"] = "gone"
    (run / "config.json").write_text(json.dumps(record))
    write_manifest(run)


def test_healthy_run_has_no_findings(healthy_run):
    assert doctor_findings(healthy_run) == {}


def test_healthy_nsp_run_has_no_findings(corpus_folder, tmp_path):
    assert (
        doctor_findings(
            run_pretraining(corpus_folder, tmp_path / "pairs", steps=220, objective={"kind": "mlm-nsp", "mlm_probability": 0.2})
        )
        == {}
    )


def test_loss_at_unigram_entropy_is_a_problem(unordered_corpus, tmp_path):
    findings = doctor_findings(run_pretraining(unordered_corpus, tmp_path / "run", steps=100))
    assert list(findings) == ["loss at the unigram baseline"]
    assert "the unigram baseline has" in findings["loss at the unigram baseline"]["observation"]
    remove_corpus_path(tmp_path / "run")
    result = bertsmith.doctor(folder=str(tmp_path / "run"), quiet=True)
    assert [finding["name"] for finding in result["findings"]] == ["loss at the unigram baseline"]  # from the log alone
    assert "pseudo-log-likelihood loss of validation text" in result["findings"][0]["observation"]
    assert "the corpus of the run, gone, is not here" in result["not_checked"][0]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_lr_too_high_is_reported_as_cause(corpus_folder, tmp_path, norm):
    findings = doctor_findings(run_pretraining(corpus_folder, tmp_path / "run", {"norm": norm}, learning_rate=1.0))
    assert list(findings)[:3] == ["learning rate too high", "loss at the unigram baseline", "collapsed hidden states"]
    suggested_lr = float(findings["learning rate too high"]["setting"].removeprefix("train.learning_rate="))
    assert suggested_lr < 0.01 and findings["learning rate too high"]["severity"] == "problem"
    assert findings["loss at the unigram baseline"]["suggestion"].endswith("learning rate too high")
    assert "word order ignored" not in findings


def test_lr_too_high_is_found_in_log_of_nan_run(corpus_folder, tmp_path):
    with pytest.raises(UserError, match="training diverged"):
        run_pretraining(corpus_folder, tmp_path / "run", learning_rate=1e9, max_grad_norm=0.0)
    findings = doctor_findings(tmp_path / "run")
    assert list(findings)[:2] == ["interrupted", "learning rate too high"]
    assert (
        "loss is nan" in findings["learning rate too high"]["observation"]
        and "rolled back 3 times" in findings["learning rate too high"]["observation"]
    )


def test_lr_too_high_by_rising_loss_and_gradients(healthy_run, tmp_path):
    """The log of a good run followed by diverging rows, as after a restart at a high learning rate."""
    run = shutil.copytree(healthy_run, tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "learning_rate" in row][-1]
    diverging = [{**last, "step": last["step"] + 5 * n, "loss": 3.7, "mlm_loss": 3.7, "grad_norm": 20.0} for n in range(1, 30)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *diverging]))
    write_manifest(run)
    observation = doctor_findings(run)["learning rate too high"]["observation"]
    assert "the loss rose from" in observation and "the gradient norm grew from" in observation


def test_few_skipped_updates_are_noted(healthy_run, tmp_path):
    run = shutil.copytree(healthy_run, tmp_path / "run")
    for reason, severities in (
        ("fp16 overflow, the loss scale is halved", []),
        ("gradient norm 9 is over 30 times its median of 0.1", ["note"]),
    ):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 200, "skip_reason": reason}) + "\n")
        write_manifest(run)
        assert [finding["severity"] for finding in doctor_findings(run).values()] == severities
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 201, "skip_reason": "loss is nan"}) + "\n")
    write_manifest(run)
    assert doctor_problems(run) == ["learning rate too high"]


def test_lr_too_low_is_the_only_cause(corpus_folder, tmp_path):
    findings = doctor_findings(run_pretraining(corpus_folder, tmp_path / "run", learning_rate=1e-6))
    assert list(findings)[:2] == ["learning rate too low", "loss at the unigram baseline"]
    assert 1e-4 < float(findings["learning rate too low"]["setting"].removeprefix("train.learning_rate=")) < 0.1
    assert "all 32 position embeddings have their initial values" in findings["positions untrained"]["observation"]


def test_run_too_short_is_not_lr_too_low(corpus_folder, tmp_path):
    findings = doctor_findings(run_pretraining(corpus_folder, tmp_path / "run", steps=20, learning_rate=2e-3))
    assert next(iter(findings)) == "run too short" and findings["run too short"]["setting"].startswith("train.steps=")


def test_missing_masks_are_a_problem(corpus_folder, tmp_path):
    with pytest.raises(UserError, match="have no target"):  # the run itself ends
        run_pretraining(corpus_folder, tmp_path / "run", objective={"kind": "mlm", "mlm_probability": 1e-6}, steps=20)
    few = run_pretraining(corpus_folder, tmp_path / "few", objective={"kind": "mlm", "mlm_probability": 0.03}, steps=20)
    assert doctor_findings(few)["few masks"]["severity"] == "note"


def test_unmasked_targets_are_a_problem(corpus_folder, tmp_path, monkeypatch):
    mask_tokens = collate.mask_tokens
    with monkeypatch.context() as patch:
        patch.setattr(collate, "mask_tokens", lambda ids, *rest: unmask(mask_tokens(ids, *rest), ids))
        run = run_pretraining(corpus_folder, tmp_path / "run", steps=100)
    findings = doctor_findings(run)
    assert (
        next(iter(findings)) == "no masked tokens"
        and "the loss of tokens replaced by [MASK] is" in findings["no masked tokens"]["observation"]
    )
    remove_corpus_path(run)
    assert "the validation loss is" in doctor_findings(run)["no masked tokens"]["observation"]


def unmask(masked, ids):
    return type(masked)(ids, masked.output_indices, masked.target_ids)


def test_overfitting_is_a_problem(tmp_path):
    small_corpus = prepare_corpus(tmp_path, generate_text(16, ordered=False))
    run = run_pretraining(small_corpus, tmp_path / "run", {"hidden_size": 64}, steps=160, eval_every=20, validation_split=0.2)
    findings = doctor_findings(run)
    assert (
        findings["overfitting"]["severity"] == "problem"
        and "validation loss rose from" in findings["overfitting"]["observation"]
    )
    assert int(findings["overfitting"]["setting"].removeprefix("train.steps=")) < 160
    assert "epochs" in findings["overfitting"]["observation"]


def test_too_many_epochs_are_noted(healthy_run, tmp_path):
    run = shutil.copytree(healthy_run, tmp_path / "run")
    card = json.loads((run / "card.json").read_text())
    card["corpus"]["tokens"] //= 20
    (run / "card.json").write_text(json.dumps(card))
    write_manifest(run)
    assert {name: finding["severity"] for name, finding in doctor_findings(run).items()} == {"too many epochs": "note"}


class StopTraining(Exception):
    pass


@pytest.fixture(scope="module")
def unfinished_run(corpus_folder, tmp_path_factory):
    """A run that was interrupted after 40 of its 200 steps."""
    out = tmp_path_factory.mktemp("unfinished_run") / "run"

    def interrupt(step, row):
        if step == 40:
            raise StopTraining

    with pytest.raises(StopTraining):
        pretrain(
            from_dict(PretrainRecipe, pretrain_recipe(corpus_folder, out, steps=200, save_every=20)),
            quiet=True,
            on_step=interrupt,
        )
    return out


def test_interrupted_run_is_a_problem(unfinished_run, corpus_folder):
    findings = doctor_findings(unfinished_run)
    assert list(findings) == ["interrupted"] and "checkpoint is of step 40" in findings["interrupted"]["observation"]
    findings_with_corpus = doctor_findings(unfinished_run, corpus_folder)
    assert list(findings_with_corpus) == [
        "interrupted",
        "loss at the unigram baseline",
    ]  # the corpus shows that 40 steps are not enough
    assert "fix these findings first" not in findings_with_corpus["loss at the unigram baseline"]["suggestion"]


def test_running_run_is_noted(unfinished_run):
    with lock_output(unfinished_run):
        assert {name: finding["severity"] for name, finding in doctor_findings(unfinished_run).items()} == {
            "still training": "note"
        }


def test_damaged_checkpoint_is_a_problem(healthy_run, tmp_path):
    run = shutil.copytree(healthy_run, tmp_path / "run")
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    (run / "model.safetensors").write_bytes(data)
    assert list(doctor_findings(run)) == ["damaged folder"]
    write_manifest(run)
    assert doctor_problems(run) == ["non-finite weights"]


def test_corpus_of_another_tokenizer_is_a_problem(healthy_run, tmp_path):
    other = prepare_corpus(tmp_path, generate_text(60), [".", *reversed(WORDS)])
    result = bertsmith.doctor(folder=str(healthy_run), corpus=str(other), quiet=True)
    assert [finding["name"] for finding in result["findings"]] == ["tokenizer: mismatch"]
    assert "another tokenizer" in result["not_checked"][0]


def test_empty_log_is_none(tmp_path):
    assert run_log.read_log(tmp_path) is None
    (tmp_path / "metrics.jsonl").touch()
    assert run_log.read_log(tmp_path) is None


def test_continued_pretraining_is_checked_by_its_change(healthy_run, corpus_folder, tmp_path):
    values = {
        name: value
        for name, value in pretrain_recipe(corpus_folder, tmp_path / "on", steps=40, learning_rate=1e-3).items()
        if name != "model"
    }
    bertsmith.pretrain(quiet=True, init=str(healthy_run), **values)
    assert doctor_findings(tmp_path / "on") == {}
    unchanged = {**values, "out": str(tmp_path / "still"), "train": {**values["train"], "learning_rate": 1e-8}}
    bertsmith.pretrain(quiet=True, init=str(healthy_run), **unchanged)
    assert doctor_problems(tmp_path / "still") == ["learning rate too low"]


@pytest.mark.parametrize(("learning_rate", "names"), [(3e-3, []), (1e-8, ["learning rate too low"])])
def test_finetuned_model_is_checked_by_log_and_corpus(healthy_run, corpus_folder, tmp_path, learning_rate, names):
    lines = [line for line in generate_text(30, seed=3).splitlines() if line]
    rows = "".join(json.dumps({"text": line, "label": "early" if line < "m" else "late"}) + "\n" for line in lines)
    (tmp_path / "rows.jsonl").write_text(rows)
    data = {"train": str(tmp_path / "rows.jsonl"), "dev": str(tmp_path / "rows.jsonl")}
    train = {"steps": 40, "learning_rate": learning_rate, "batch_tokens": 512, "log_every": 2, "eval_every": 20}
    bertsmith.finetune(
        task="classify", model=str(healthy_run), data=data, out=str(tmp_path / "run"), max_length=32, train=train, quiet=True
    )
    assert doctor_problems(tmp_path / "run") == names
    result = bertsmith.doctor(folder=str(tmp_path / "run"), corpus=str(corpus_folder), quiet=True)
    assert result["problems"] == len(names) and result["not_checked"] == []
