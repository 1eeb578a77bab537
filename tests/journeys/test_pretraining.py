"""From text to a filled mask by the command line, English and Chinese; killed and resumed, bit for bit."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import bertsmith
from bertsmith.cli import main
from bertsmith.errors import UserError
from bertsmith.tensors import load_tensors
from tests.conftest import han, prose

ROOT = Path(__file__).parents[2]
SMALL = """
model=bert-tiny model.width=32 model.mixer.heads=2 model.feedforward.inner=64 model.positions=64 length=64
train.batch_tokens=512 train.rate=1e-3 train.log_every=5 eval_tokens=2048 held_out=0.1
""".split()  # noqa: SIM905
WAYS = """
train.optimizer=lamb,train.rate=2e-2 train.optimizer=bert-adam train.schedule=trapezoid train.schedule=cosine model.norm=before
train.recompute=true train.precision=bf16 objective.pairs=sentence-order objective=masked objective.masks=spans
objective.masks=ngrams objective.repeats=2 model.mixer.dropout=0.1 objective=masked,objective.view=full-sentences
objective=masked,objective.view=doc-sentences objective.pairs.style=google
""".split()  # noqa: SIM905


class Done(NamedTuple):
    stdout: str
    stderr: str


def ran(*words, code=0):
    """The command line, in this process: importing torch anew each time would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main([str(word) for word in words]) == code, err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def answer(*words):
    return json.loads(ran(*words, "--json").stdout.splitlines()[-1])


def learnt(out, made):
    """Forty steps have taught it something, and it fills masks, each time alike; the names of its weights."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert (made["step"], made["skipped"]) == (40, 0)
    assert made["valid_loss_words"] < rows[0]["loss.words"] - 0.3
    guesses = bertsmith.load(out).fill("the [MASK] of [MASK]")
    assert [len(guess) for guess in guesses] == [5, 5]
    assert guesses == bertsmith.load(out).fill("the [MASK] of [MASK]")
    return set(load_tensors(out / "model.safetensors"))


@pytest.mark.parametrize(("language", "text"), [("en", prose(80)), ("zh", han(80))])
def test_text_to_a_filled_mask(tmp_path, language, text):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    made = answer("tokenizer", f"texts={tmp_path / 'text.txt'}", "size=300", f"out={tmp_path / 'tokenizer'}")
    assert made["made"] and made["unknown"] == 0
    begin = [f"texts={tmp_path / 'text.txt'}", f"tokenizer={tmp_path / 'tokenizer'}", f"out={tmp_path / 'corpus'}"]
    made = answer("prepare", *begin, f"language={language}", "workers=2")
    assert made["documents"] == 80
    words = [
        f"corpus={tmp_path / 'corpus'}",
        f"out={tmp_path / 'bert'}",
        *SMALL,
        "train.steps=30",
        "objective.masks=whole-words",
    ]
    made = answer("pretrain", *words)
    assert made["step"] == 30 and made["skipped"] == 0
    assert {"valid_loss", "valid_mlm_accuracy", "valid_next_accuracy", "pseudo_perplexity", "unigram_entropy"} <= made.keys()
    first = json.loads((tmp_path / "bert" / "metrics.jsonl").read_text().splitlines()[0])
    assert made["valid_loss_words"] < first["loss.words"]  # it learns
    assert not answer("pretrain", *words)["made"]  # said, not done again
    guesses = bertsmith.load(tmp_path / "bert").fill("the [MASK] of [MASK]" if language == "en" else "天地[MASK]黄[MASK]")
    assert [len(guess) for guess in guesses] == [5, 5]
    files = {path.name for path in (tmp_path / "bert").iterdir()}
    assert files == {"config.json", "card.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "manifest.json"}


def run_to_end(corpus, out, *more):
    return ran("pretrain", f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60", "train.save_every=10", *more)


def killed(corpus, out, at, *more):
    """Started, and killed without a word once step `at` is on disk."""
    words = [f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60", "train.save_every=10", *more]
    killed_command("pretrain", *words, until=out / "state" / f"step-{at}")


def killed_command(*words, until):
    """A command in a process of its own, killed when a file or folder appears."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bertsmith", *words], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True
    )
    patience = time.monotonic() + 120
    while not until.exists() and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory):
    """Sixty steps that nobody interrupted."""
    out = tmp_path_factory.mktemp("straight") / "bert"
    run_to_end(corpus, out)
    return out


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_sixty_steps_equal_thirty_and_a_kill_and_thirty(corpus, straight, tmp_path, workers):
    out = tmp_path / "bert"
    killed(corpus, out, 30, f"train.workers={workers}")
    assert "going on from step" in run_to_end(corpus, out, f"train.workers={workers}").stderr
    for name in ("model.safetensors", "metrics.jsonl", "tokenizer.json"):
        assert (out / name).read_bytes() == (straight / name).read_bytes(), name


def test_sigterm_saves_and_the_same_command_goes_on(corpus, straight, tmp_path):
    out = tmp_path / "bert"
    words = ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60", "train.save_every=1000"]
    process = subprocess.Popen([sys.executable, "-m", "bertsmith", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text().count("\n"):
        time.sleep(0.01)
    process.terminate()
    assert "same command" in process.communicate()[1] and process.returncode not in (0, 2)
    run_to_end(corpus, out)
    assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def test_another_recipe_does_not_go_on_with_this_run(corpus, tmp_path):
    killed(corpus, tmp_path / "bert", 10)
    words = ["pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL, "train.steps=60", "seed=7"]
    assert "another recipe" in ran(*words, code=2).stderr
    assert (tmp_path / "bert" / "state").exists()  # nothing lost


def test_accumulating_four_quarters_equals_one_whole(corpus):
    """One update from 64 sequences at once, or from 4 x 16 of them: the same weights."""
    import numpy as np
    import torch

    from bertsmith.corpus.store import Corpus
    from bertsmith.model.config import EncoderConfig
    from bertsmith.model.model import ModelConfig, build_model
    from bertsmith.objectives import SentencePairMLM
    from bertsmith.train import TrainConfig, Trainer

    opened, objective = Corpus.open(corpus), SentencePairMLM()
    reading = objective.build_batches(opened, np.arange(60), 64, 1 << 16, 0)
    plan, epoch = reading.select_samples(0)
    whole = [objective.to_batch(reading.collator(plan.select(np.arange(64)), epoch))]
    parts = [objective.to_batch(reading.collator(plan.select(np.arange(i, i + 16)), epoch)) for i in range(0, 64, 16)]
    encoder = EncoderConfig.presets["bert-tiny"]
    still = type(encoder)(**{**{f: getattr(encoder, f) for f in encoder.__struct_fields__}, "dropout": 0.0})
    weights = []
    for batches in (whole, parts):
        model = build_model(ModelConfig(encoder=still, vocabulary=len(opened.tokenizer), heads=objective.heads()), 0)
        folder = corpus.parent / f"accumulated-{len(batches)}"
        train = TrainConfig(steps=1, accumulate=len(batches), rate=1e-3, warmup=0, schedule="constant")
        Trainer(model, objective, train, folder, seed=0, quiet=True).fit(lambda k, done, batches=batches: batches[k])
        weights.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
    rows = [json.loads((corpus.parent / f"accumulated-{n}" / "state/step-1/progress.json").read_text()) for n in (1, 4)]
    assert rows[0]["tokens"] == rows[1]["tokens"]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], atol=2e-5, rtol=1e-4, msg=name)


def test_going_on_from_a_checkpoint(corpus, straight, tmp_path):
    words = [word for word in SMALL if not word.startswith("model")]
    done = ran(
        "pretrain",
        f"corpus={corpus}",
        f"out={tmp_path / 'more'}",
        f"init={straight}",
        *words,
        "train.steps=5",
        "objective=masked",
    )
    assert "heads.next.score.weight is not used by this objective" in done.stderr
    before = json.loads((straight / "card.json").read_text())["result"]["valid_loss_words"]
    after = json.loads((tmp_path / "more" / "card.json").read_text())["result"]["valid_loss_words"]
    assert after < before + 0.3  # it began where the other ended


def phased(corpus, out):
    words = [word for word in SMALL if not word.startswith("length")]
    more = [
        "length=[16,64]",
        "shares=[0.5,0.5]",
        "train.steps=40",
        "train.accumulate=2",
        "train.save_every=10",
        "train.log_every=1",
    ]
    return ["pretrain", f"corpus={corpus}", f"out={out}", *words, *more]


def test_two_lengths_and_accumulation_go_on_exactly_too(corpus, tmp_path):
    ran(*phased(corpus, tmp_path / "straight"))
    process = subprocess.Popen(
        [sys.executable, "-m", "bertsmith", *phased(corpus, tmp_path / "killed"), "train.workers=2"], cwd=ROOT
    )
    while not (tmp_path / "killed" / "state" / "step-20").exists() and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.wait()
    ran(*phased(corpus, tmp_path / "killed"))
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_each_phase_reads_its_own_length(corpus):
    from functools import partial

    from bertsmith.config import read_recipe
    from bertsmith.corpus.loader import Prefetcher
    from bertsmith.corpus.store import Corpus
    from bertsmith.pretraining.run import _get_batch
    from bertsmith.pretraining.setup import PretrainRecipe, build_batches, build_model_config

    recipe = read_recipe(PretrainRecipe, None, phased(corpus, "nowhere")[1:])
    opened = Corpus.open(corpus)
    config = build_model_config(recipe, opened)
    readings = [build_batches(recipe, opened, np.arange(60), length, config) for length, _ in recipe.phases()]
    with Prefetcher(readings[0].collator, 0) as ahead:
        batch = partial(_get_batch, recipe, readings, ahead)
        assert batch(3, 0.49).inputs.layout.max_seqlen <= 16 < batch(3, 0.51).inputs.layout.max_seqlen <= 64


def test_two_lengths_share_a_run(corpus, tmp_path):
    words = [word for word in SMALL if not word.startswith("length")]
    run = answer(
        "pretrain",
        f"corpus={corpus}",
        f"out={tmp_path / 'bert'}",
        *words,
        "length=[32,64]",
        "shares=[0.5,0.5]",
        "train.steps=10",
    )
    assert run["step"] == 10


@pytest.mark.parametrize("setting", WAYS)
def test_every_way_of_training_learns(corpus, tmp_path, setting):
    result = answer("pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL, "train.steps=30", *setting.split(","))
    first = json.loads((tmp_path / "bert" / "metrics.jsonl").read_text().splitlines()[0])
    assert result["valid_loss_words"] < first["loss.words"] - 0.05


def test_recomputing_changes_nothing_but_memory(corpus, straight, tmp_path):
    run_to_end(corpus, tmp_path / "bert", "train.recompute=true")
    assert (tmp_path / "bert" / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


# Bad input: a clear line, exit 2, nothing lost.


def refused(*words):
    done = ran(*words, code=2)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_bad_requests_are_refused_before_any_work(corpus, tmp_path):
    begin = ["pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL]
    assert "give exactly one of the three" in refused(*begin)
    assert "no CUDA device here" in refused(*begin, "train.steps=5", "train.device=cuda")
    assert "more than the model's 64 positions" in refused(*begin, "train.steps=5", "length=128")
    assert "does not fit a batch" in refused(*begin, "train.steps=5", "train.batch_tokens=32")
    assert "not a corpus folder" in refused(*begin, "train.steps=5", f"corpus={tmp_path}")
    assert not (tmp_path / "bert").exists()


def test_a_corpus_of_another_tokenizer_is_refused(corpus, straight, tmp_path):
    (tmp_path / "text.txt").write_text(prose(20), encoding="utf-8")
    answer("tokenizer", f"texts={tmp_path / 'text.txt'}", "size=100", f"out={tmp_path / 'tokenizer'}")
    answer("prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={tmp_path / 'tokenizer'}", f"out={tmp_path / 'corpus'}")
    words = [word for word in SMALL if not word.startswith("model")]
    begin = ["pretrain", f"out={tmp_path / 'bert'}", *words, "train.steps=5"]
    assert "another tokenizer" in refused(*begin, f"corpus={tmp_path / 'corpus'}", f"init={straight}")
    assert "another tokenizer" in refused(*begin, f"corpus={corpus}", f"valid={tmp_path / 'corpus'}", "model=bert-tiny")


def test_a_damaged_model_is_named(straight, tmp_path):
    import shutil

    folder = shutil.copytree(straight, tmp_path / "bert")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        bertsmith.load(folder)
    with pytest.raises(UserError, match=r"no \[MASK\] in"):
        bertsmith.load(straight).fill("nothing to fill")
    with pytest.raises(UserError, match="longer than the model's 64 positions"):
        bertsmith.load(straight).fill("[MASK] " + "the " * 80)


def test_somebodys_files_are_not_touched(corpus, tmp_path):
    (tmp_path / "project" / "state").mkdir(parents=True)
    (tmp_path / "project" / "state" / "thesis.txt").write_text("mine")
    words = [*SMALL, "train.steps=2", f"corpus={corpus}"]
    assert "holds other things" in refused("pretrain", *words, f"out={tmp_path / 'project'}")
    (tmp_path / "text.txt").write_text(prose(20), encoding="utf-8")
    (tmp_path / "new.part").mkdir()
    (tmp_path / "new.part" / "thesis.txt").write_text("mine")
    for stage in (["prepare", f"tokenizer={corpus}"], ["tokenizer", "size=100"]):
        assert "holds other things" in refused(*stage, f"texts={tmp_path / 'text.txt'}", f"out={tmp_path / 'new'}")
    assert (tmp_path / "new.part" / "thesis.txt").exists() and (tmp_path / "project" / "state" / "thesis.txt").exists()


def test_a_second_run_into_the_same_folder_is_refused(corpus, tmp_path):
    from bertsmith.artifacts import lock_output

    (tmp_path / "text.txt").write_text(prose(20), encoding="utf-8")
    texts, out = f"texts={tmp_path / 'text.txt'}", f"out={tmp_path / 'out'}"
    with lock_output(tmp_path / "out"):
        assert "another run is writing" in refused("pretrain", *SMALL, "train.steps=2", f"corpus={corpus}", out)
        assert "another run is writing" in refused("prepare", texts, f"tokenizer={corpus}", out)
        assert "another run is writing" in refused("tokenizer", texts, "size=100", out)


def test_a_full_disk_is_said_and_what_is_saved_stays(corpus, straight, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from bertsmith import tensors

    save, calls = tensors.save_file, []

    def full(held, path):
        calls.append(path)
        if len(calls) == 7:  # the third checkpoint
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(held, path)

    monkeypatch.setattr(tensors, "save_file", full)
    words = ["pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL, "train.steps=60", "train.save_every=10"]
    assert "no space left for" in ran(*words, code=2).stderr
    ran(*words)
    assert (tmp_path / "bert" / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def test_lone_sentences_are_not_held_out_for_pairs_and_are_warned_about(vocabulary, tmp_path):
    lone = "\n\n".join(["The people made this way."] * 150)
    (tmp_path / "text.txt").write_text(prose(20, sentences=14) + "\n\n" + lone, encoding="utf-8")
    answer("prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={vocabulary}", f"out={tmp_path / 'corpus'}", "workers=1")
    for seed in range(4):
        words = [f"corpus={tmp_path / 'corpus'}", f"out={tmp_path / str(seed)}", *SMALL, "train.steps=2", f"seed={seed}"]
        assert "documents of one sentence" in ran("pretrain", *words, "held_out=0.02").stderr
    assert "held_out=0.999" in refused("pretrain", *words, "held_out=0.999", f"out={tmp_path / 'none'}", "objective=masked")


def test_another_model_at_the_same_path_is_another_init(corpus, straight, tmp_path):
    import shutil

    folder = shutil.copytree(straight, tmp_path / "init")
    words = [word for word in SMALL if not word.startswith("model")]
    begin = ["pretrain", f"corpus={corpus}", f"out={tmp_path / 'more'}", f"init={folder}", *words, "train.steps=2"]
    assert answer(*begin)["made"] and not answer(*begin)["made"]
    shutil.rmtree(folder)
    ran("pretrain", f"corpus={corpus}", f"out={folder}", *SMALL, "train.steps=3", "seed=9")
    assert "made by another recipe" in refused(*begin)


@pytest.mark.slow
def test_a_compiled_model_learns_and_goes_on_exactly(corpus, tmp_path):
    """Minutes of compiling: `make test-slow`."""
    words = [*SMALL, "train.steps=20", "train.save_every=5", "train.compile=true", f"corpus={corpus}"]
    ran("pretrain", *words, f"out={tmp_path / 'straight'}")
    process = subprocess.Popen([sys.executable, "-m", "bertsmith", "pretrain", *words, f"out={tmp_path / 'killed'}"], cwd=ROOT)
    while not (tmp_path / "killed" / "state" / "step-10").exists() and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.wait()
    ran("pretrain", *words, f"out={tmp_path / 'killed'}")
    assert (tmp_path / "killed/model.safetensors").read_bytes() == (tmp_path / "straight/model.safetensors").read_bytes()
