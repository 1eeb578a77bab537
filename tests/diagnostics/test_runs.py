"""A run that was broken by one setting is told by its folder, and what is told is that setting."""

import json
import shutil
import struct

import pytest

import bertsmith
from bertsmith.artifacts import lock_output, write_manifest
from bertsmith.config import from_dict
from bertsmith.corpus import collate
from bertsmith.diagnostics import run_log
from bertsmith.errors import UserError
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe
from tests.diagnostics.builders import WORDS, chained, corpus, found, problems, recipe, trained


@pytest.fixture(scope="module")
def unordered(tmp_path_factory):
    """Words drawn one by one: there is nothing to learn but how frequent they are."""
    return corpus(tmp_path_factory.mktemp("unordered"), chained(300, ordered=False))


def without_corpus(run):
    """As if the corpus had been moved."""
    record = json.loads((run / "config.json").read_text())
    record["recipe"]["corpus"] = "gone"
    (run / "config.json").write_text(json.dumps(record))
    write_manifest(run)


def test_a_healthy_run_has_no_finding(healthy):
    assert found(healthy) == {}


def test_sentence_pairs_are_healthy_too(text, tmp_path):
    assert found(trained(text, tmp_path / "pairs", steps=220, objective={"kind": "pairs", "rate": 0.2})) == {}


def test_a_loss_at_the_unigram_entropy_is_told(unordered, tmp_path):
    one = found(trained(unordered, tmp_path / "run", steps=100))
    assert list(one) == ["loss at the unigram entropy"]
    assert "knowing only frequencies" in one["loss at the unigram entropy"]["seen"]
    without_corpus(tmp_path / "run")
    told = bertsmith.doctor(folder=str(tmp_path / "run"), quiet=True)
    assert [two["name"] for two in told["findings"]] == ["loss at the unigram entropy"]  # from the log alone
    assert "held-out words, each hidden alone" in told["findings"][0]["seen"]
    assert "gone is not there any more" in told["not_looked_at"][0]


@pytest.mark.parametrize("norm", ["after", "before"])
def test_a_rate_too_high_is_told_first_and_what_follows_points_to_it(text, tmp_path, norm):
    one = found(trained(text, tmp_path / "run", {"norm": norm}, rate=1.0))
    assert list(one)[:3] == ["learning rate too high", "loss at the unigram entropy", "collapsed hidden states"]
    rate = float(one["learning rate too high"]["setting"].removeprefix("train.rate="))
    assert rate < 0.01 and one["learning rate too high"]["severity"] == "problem"
    assert one["loss at the unigram entropy"]["way_out"].endswith("learning rate too high")
    assert "positions unused" not in one


def test_a_run_that_became_nan_is_told_from_its_log(text, tmp_path):
    with pytest.raises(UserError, match="training failed"):
        trained(text, tmp_path / "run", rate=1e9, clip=0.0)
    one = found(tmp_path / "run")
    assert list(one)[:2] == ["stopped half-way", "learning rate too high"]
    assert "the loss is nan" in one["learning rate too high"]["seen"] and "3 times" in one["learning rate too high"]["seen"]


def test_a_run_whose_loss_rises_is_told(healthy, tmp_path):
    """The log of a good run, and behind it the log of its ruin, as a restart at a high rate writes it."""
    run = shutil.copytree(healthy, tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "rate" in row][-1]
    worse = [{**last, "step": last["step"] + 5 * n, "loss": 3.7, "loss.words": 3.7, "norm": 20.0} for n in range(1, 30)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *worse]))
    write_manifest(run)
    seen = found(run)["learning rate too high"]["seen"]
    assert "the loss rose from" in seen and "gradients grew from" in seen


def test_a_few_skipped_spikes_are_a_note(healthy, tmp_path):
    run = shutil.copytree(healthy, tmp_path / "run")
    for why, names in (("fp16 overflowed, its scale is halved", []), ("the gradient norm 9 is a spike", ["note"])):
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 200, "skipped": why}) + "\n")
        write_manifest(run)
        assert [one["severity"] for one in found(run).values()] == names
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 201, "skipped": "the loss is nan"}) + "\n")
    write_manifest(run)
    assert problems(run) == ["learning rate too high"]


def test_a_rate_too_low_is_told_and_no_other_cause(text, tmp_path):
    one = found(trained(text, tmp_path / "run", rate=1e-6))
    assert list(one)[:2] == ["learning rate too low", "loss at the unigram entropy"]
    assert 1e-4 < float(one["learning rate too low"]["setting"].removeprefix("train.rate=")) < 0.1
    assert "all 32 positions are where they began" in one["positions untrained"]["seen"]


def test_a_run_too_short_is_not_a_rate_too_low(text, tmp_path):
    one = found(trained(text, tmp_path / "run", steps=20, rate=2e-3))
    assert next(iter(one)) == "run too short" and one["run too short"]["setting"].startswith("train.steps=")


def test_masks_that_are_never_asked_for_are_told(text, tmp_path):
    run = trained(text, tmp_path / "run", objective={"kind": "masked", "rate": 1e-6}, steps=20)
    assert problems(run)[0] == "masks missing" and found(run)["masks missing"]["setting"] == "objective.rate=0.15"
    few = trained(text, tmp_path / "few", objective={"kind": "masked", "rate": 0.03}, steps=20)
    assert found(few)["few masks"]["severity"] == "note"


def test_words_in_plain_sight_are_told_from_hidden_ones(text, tmp_path, monkeypatch):
    hidden = collate.mask_tokens
    with monkeypatch.context() as broken:
        broken.setattr(collate, "mask_tokens", lambda ids, *rest: _shown(hidden(ids, *rest), ids))
        run = trained(text, tmp_path / "run", steps=100)
    one = found(run)
    assert next(iter(one)) == "masks missing" and "truly hidden cost" in one["masks missing"]["seen"]
    without_corpus(run)
    assert "the loss on held-out text is" in found(run)["masks missing"]["seen"]


def _shown(masked, ids):
    return type(masked)(ids, masked.where, masked.answers)


def test_text_learnt_by_heart_is_told(tmp_path):
    little = corpus(tmp_path, chained(16, ordered=False))
    run = trained(little, tmp_path / "run", {"width": 64}, steps=160, eval_every=20, held_out=0.2)
    one = found(run)
    assert one["overfitting"]["severity"] == "problem" and "held-out loss was" in one["overfitting"]["seen"]
    assert int(one["overfitting"]["setting"].removeprefix("train.steps=")) < 160
    assert "times" in one["overfitting"]["seen"]


def test_text_read_too_often_is_noted(healthy, tmp_path):
    run = shutil.copytree(healthy, tmp_path / "run")
    card = json.loads((run / "card.json").read_text())
    card["corpus"]["tokens"] //= 20
    (run / "card.json").write_text(json.dumps(card))
    write_manifest(run)
    assert {name: one["severity"] for name, one in found(run).items()} == {"too many epochs": "note"}


class Enough(Exception):
    pass


@pytest.fixture(scope="module")
def unfinished(text, tmp_path_factory):
    """A run that died after 40 of its 200 steps."""
    out = tmp_path_factory.mktemp("unfinished") / "run"

    def stop(step, row):
        if step == 40:
            raise Enough

    with pytest.raises(Enough):
        pretrain(from_dict(PretrainRecipe, recipe(text, out, steps=200, save_every=20)), quiet=True, on_step=stop)
    return out


def test_a_run_that_was_stopped_is_told(unfinished, text):
    one = found(unfinished)
    assert list(one) == ["stopped half-way"] and "checkpoint is of step 40" in one["stopped half-way"]["seen"]
    told = found(unfinished, text)
    assert list(told) == ["stopped half-way", "loss at the unigram entropy"]  # 40 steps are not enough: the text tells
    assert "mend first" not in told["loss at the unigram entropy"]["way_out"]


def test_a_run_that_still_goes_on_is_not_called_dead(unfinished):
    with lock_output(unfinished):
        assert {name: one["severity"] for name, one in found(unfinished).items()} == {"still training": "note"}


def test_a_damaged_checkpoint_is_told(healthy, tmp_path):
    run = shutil.copytree(healthy, tmp_path / "run")
    data = bytearray((run / "model.safetensors").read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    (run / "model.safetensors").write_bytes(data)
    assert list(found(run)) == ["damaged folder"]
    write_manifest(run)
    assert problems(run) == ["weights lost"]


def test_a_corpus_of_another_tokenizer_is_told(healthy, tmp_path):
    other = corpus(tmp_path, chained(60), [".", *reversed(WORDS)])
    told = bertsmith.doctor(folder=str(healthy), corpus=str(other), quiet=True)
    assert [one["name"] for one in told["findings"]] == ["wrong vocabulary: another tokenizer"]
    assert "another tokenizer" in told["not_looked_at"][0]


def test_a_log_with_nothing_in_it_is_no_course(tmp_path):
    assert run_log.read_log(tmp_path) is None
    (tmp_path / "metrics.jsonl").touch()
    assert run_log.read_log(tmp_path) is None


def test_going_on_from_a_model_is_judged_by_what_changed(healthy, text, tmp_path):
    values = {name: value for name, value in recipe(text, tmp_path / "on", steps=40, rate=1e-3).items() if name != "model"}
    bertsmith.pretrain(quiet=True, init=str(healthy), **values)
    assert found(tmp_path / "on") == {}
    still = {**values, "out": str(tmp_path / "still"), "train": {**values["train"], "rate": 1e-8}}
    bertsmith.pretrain(quiet=True, init=str(healthy), **still)
    assert problems(tmp_path / "still") == ["learning rate too low"]


@pytest.mark.parametrize(("rate", "names"), [(3e-3, []), (1e-8, ["learning rate too low"])])
def test_a_fine_tuned_model_is_judged_by_its_log_and_reads_a_text_if_given_one(healthy, text, tmp_path, rate, names):
    lines = [line for line in chained(30, seed=3).splitlines() if line]
    rows = "".join(json.dumps({"text": line, "label": "early" if line < "m" else "late"}) + "\n" for line in lines)
    (tmp_path / "rows.jsonl").write_text(rows)
    data = {"train": str(tmp_path / "rows.jsonl"), "dev": str(tmp_path / "rows.jsonl")}
    train = {"steps": 40, "rate": rate, "batch_tokens": 512, "log_every": 2, "eval_every": 20}
    bertsmith.finetune(
        task="classify", model=str(healthy), data=data, out=str(tmp_path / "run"), length=32, train=train, quiet=True
    )
    assert problems(tmp_path / "run") == names
    told = bertsmith.doctor(folder=str(tmp_path / "run"), corpus=str(text), quiet=True)
    assert told["problems"] == len(names) and told["not_looked_at"] == []
