"""Pre-training by the command line, from text to a filled mask; resumed bit for bit after a kill; bad input."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

import bertsmith
from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.runs import Run
from bertsmith.train.setup import prepare
from tests.support.cli import ROOT, SMALL, kill_cli_when_exists, run_cli, run_cli_error, run_cli_json
from tests.support.texts import make_chinese_text, make_english_text

SETTINGS = """
train.optimizer=lamb,train.learning_rate=2e-2 train.optimizer=bert-adam train.lr_scheduler_type=warmup_stable_decay
train.lr_scheduler_type=cosine model.norm=pre train.gradient_checkpointing=true train.precision=bf16
objective=mlm-sop objective=mlm objective.masking=span
objective.masking=ngram objective.dupe_factor=2 model.mixer.attention_dropout=0.1 objective=mlm,objective.packing=full-sentences
objective=mlm,objective.packing=doc-sentences objective.style=google
""".split()  # noqa: SIM905


@pytest.mark.parametrize(("language", "text"), [("en", make_english_text(80)), ("zh", make_chinese_text(80))])
def test_pretrain_from_text_to_filled_mask(tmp_path, language, text):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    result = run_cli_json("tokenizer", f"texts={tmp_path / 'text.txt'}", "vocab_size=300", f"out={tmp_path / 'tokenizer'}")
    assert result["created"] and result["unknown_word_rate"] == 0
    arguments = [f"texts={tmp_path / 'text.txt'}", f"tokenizer={tmp_path / 'tokenizer'}", f"out={tmp_path / 'corpus'}"]
    result = run_cli_json("prepare", *arguments, f"language={language}", "workers=2")
    assert result["documents"] == 80
    pretrain_arguments = [
        f"corpus={tmp_path / 'corpus'}",
        f"out={tmp_path / 'bert'}",
        *SMALL,
        "train.steps=30",
        "objective.masking=whole-word",
    ]
    result = run_cli_json("pretrain", *pretrain_arguments)
    assert result["step"] == 30 and result["skipped_steps"] == 0
    assert {"valid_loss", "valid_mlm_accuracy", "valid_nsp_accuracy", "pseudo_perplexity", "unigram_entropy"} <= result.keys()
    first = json.loads((tmp_path / "bert" / "metrics.jsonl").read_text().splitlines()[0])
    assert result["valid_mlm_loss"] < first["mlm_loss"]  # the loss falls
    assert not run_cli_json("pretrain", *pretrain_arguments)["created"]  # not trained again
    guesses = bertsmith.load(tmp_path / "bert").fill("the [MASK] of [MASK]" if language == "en" else "天地[MASK]黄[MASK]")
    assert [len(guess) for guess in guesses] == [5, 5]
    files = {path.name for path in (tmp_path / "bert").iterdir()}
    assert files == {"config.json", "card.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "manifest.json"}


def run_to_end(corpus, out, *more):
    return run_cli("pretrain", f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60", "train.save_every=10", *more)


def kill_pretrain(corpus, out, step, *more):
    """Start `pretrain` and kill it (SIGKILL) when the checkpoint of step `at` is written."""
    arguments = [f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60", "train.save_every=10", *more]
    kill_cli_when_exists("pretrain", *arguments, until=out / "state" / f"step-{step}")


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    """Sixty steps without interruption."""
    out = tmp_path_factory.mktemp("uninterrupted") / "bert"
    run_to_end(corpus, out)
    return out


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_pretrain_resumes_exactly_after_kill(corpus, uninterrupted, tmp_path, workers):
    out = tmp_path / "bert"
    kill_pretrain(corpus, out, 30, f"train.workers={workers}")
    assert "resuming from step" in run_to_end(corpus, out, f"train.workers={workers}").stderr
    for name in ("model.safetensors", "metrics.jsonl", "tokenizer.json"):
        assert (out / name).read_bytes() == (uninterrupted / name).read_bytes(), name


def test_pretrain_saves_on_sigterm_and_resumes(corpus, uninterrupted, tmp_path):
    out = tmp_path / "bert"
    arguments = ["pretrain", f"corpus={corpus}", f"out={out}", *SMALL, "train.steps=60", "train.save_every=1000"]
    process = subprocess.Popen([sys.executable, "-m", "bertsmith", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text().count("\n"):
        time.sleep(0.01)
    process.terminate()
    assert "same command" in process.communicate()[1] and process.returncode not in (0, 2)
    run_to_end(corpus, out)
    assert (out / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


def test_pretrain_does_not_resume_another_recipe(corpus, tmp_path):
    kill_pretrain(corpus, tmp_path / "bert", 10)
    arguments = ["pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL, "train.steps=60", "seed=7"]
    assert "another recipe" in run_cli(*arguments, code=2).stderr
    assert (tmp_path / "bert" / "state").exists()  # nothing is deleted


def test_gradient_accumulation_equals_one_large_batch(corpus):
    """One update from 64 sequences, or from 4 micro-batches of 16, gives the same weights."""
    import torch

    from bertsmith.corpus.store import Corpus
    from bertsmith.model.config import EncoderConfig
    from bertsmith.model.model import ModelConfig, build_model
    from bertsmith.objectives import NextSentenceMLM
    from bertsmith.train import TrainConfig, Trainer

    open_corpus, objective = Corpus.open(corpus), NextSentenceMLM()
    loader = objective.build_batches(open_corpus, np.arange(60), 64, 1 << 16, 0)
    index, epoch = loader.select_samples(0)
    one_batch = [objective.to_batch(loader.collator(index.select(np.arange(64)), epoch))]
    micro_batches = [objective.to_batch(loader.collator(index.select(np.arange(i, i + 16)), epoch)) for i in range(0, 64, 16)]
    encoder = EncoderConfig.presets()["bert-tiny"]
    encoder_without_dropout = type(encoder)(
        **{**{f: getattr(encoder, f) for f in encoder.__struct_fields__}, "hidden_dropout_prob": 0.0}
    )
    weights = []
    for batches in (one_batch, micro_batches):
        model = build_model(
            ModelConfig(encoder=encoder_without_dropout, vocab_size=len(open_corpus.tokenizer), heads=objective.heads()), 0
        )
        folder = corpus.parent / f"accumulated-{len(batches)}"
        train = TrainConfig(
            steps=1, gradient_accumulation_steps=len(batches), learning_rate=1e-3, warmup_steps=0, lr_scheduler_type="constant"
        )
        trainer = Trainer(prepare(model, train), objective, Run(folder, console=Console(quiet=True)), 0)
        trainer.fit(lambda k, done, batches=batches: batches[k])
        weights.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
    progress = [json.loads((corpus.parent / f"accumulated-{n}" / "state/step-1/progress.json").read_text()) for n in (1, 4)]
    assert progress[0]["tokens"] == progress[1]["tokens"]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name], atol=2e-5, rtol=1e-4, msg=name)


def test_pretrain_init_from_checkpoint(corpus, uninterrupted, tmp_path):
    arguments = [word for word in SMALL if not word.startswith("model")]
    output = run_cli(
        "pretrain",
        f"corpus={corpus}",
        f"out={tmp_path / 'more'}",
        f"init={uninterrupted}",
        *arguments,
        "train.steps=5",
        "objective=mlm",
    )
    assert "heads.nsp.classifier.weight is not used by this objective" in output.stderr
    before = json.loads((uninterrupted / "card.json").read_text())["result"]["valid_mlm_loss"]
    after = json.loads((tmp_path / "more" / "card.json").read_text())["result"]["valid_mlm_loss"]
    assert after < before + 0.3  # training starts from the checkpoint's weights


def phased_arguments(corpus, out):
    arguments = [word for word in SMALL if not word.startswith("max_length")]
    phase_arguments = [
        "max_length=[16,64]",
        "phase_fractions=[0.5,0.5]",
        "train.steps=40",
        "train.gradient_accumulation_steps=2",
        "train.save_every=10",
        "train.log_every=1",
    ]
    return ["pretrain", f"corpus={corpus}", f"out={out}", *arguments, *phase_arguments]


def test_pretrain_with_phases_and_accumulation_resumes_exactly(corpus, tmp_path):
    run_cli(*phased_arguments(corpus, tmp_path / "uninterrupted"))
    process = subprocess.Popen(
        [sys.executable, "-m", "bertsmith", *phased_arguments(corpus, tmp_path / "killed"), "train.workers=2"], cwd=ROOT
    )
    while not (tmp_path / "killed" / "state" / "step-20").exists() and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.wait()
    run_cli(*phased_arguments(corpus, tmp_path / "killed"))
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "uninterrupted" / name).read_bytes(), name


def test_pretrain_phases_use_their_own_length(corpus):
    from bertsmith.corpus.store import Corpus
    from bertsmith.pretraining.setup import PretrainRecipe, PretrainSetup
    from bertsmith.recipes import read_recipe

    recipe = read_recipe(PretrainRecipe, None, phased_arguments(corpus, "nowhere")[1:])
    setup = PretrainSetup.from_recipe(recipe, Corpus.open(corpus))
    loaders = setup.build_loaders()
    longest = {done: int(setup.select_loader(loaders, done)(3).lengths.max()) for done in (0.0, 0.49, 0.51, 1.0)}
    assert longest[0.0] == longest[0.49] <= 16 < longest[0.51] == longest[1.0] <= 64


def test_pretrain_with_two_lengths(corpus, tmp_path):
    arguments = [word for word in SMALL if not word.startswith("max_length")]
    result = run_cli_json(
        "pretrain",
        f"corpus={corpus}",
        f"out={tmp_path / 'bert'}",
        *arguments,
        "max_length=[32,64]",
        "phase_fractions=[0.5,0.5]",
        "train.steps=10",
    )
    assert result["step"] == 10


@pytest.mark.parametrize("setting", SETTINGS)
def test_pretrain_settings_lower_the_loss(corpus, tmp_path, setting):
    result = run_cli_json(
        "pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL, "train.steps=30", *setting.split(",")
    )
    first = json.loads((tmp_path / "bert" / "metrics.jsonl").read_text().splitlines()[0])
    assert result["valid_mlm_loss"] < first["mlm_loss"] - 0.05


def test_gradient_checkpointing_does_not_change_weights(corpus, uninterrupted, tmp_path):
    run_to_end(corpus, tmp_path / "bert", "train.gradient_checkpointing=true")
    assert (tmp_path / "bert" / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


# Bad input: one line on stderr, exit code 2, nothing deleted.


def test_pretrain_rejects_bad_settings_before_any_work(corpus, tmp_path):
    arguments = ["pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL]
    assert "give one of train.steps, train.epochs and train.minutes" in run_cli_error(*arguments)
    assert "has no CUDA device" in run_cli_error(*arguments, "train.steps=5", "train.device=cuda")
    assert "more than the model's 64 positions" in run_cli_error(*arguments, "train.steps=5", "max_length=128")
    assert "does not fit into train.batch_tokens=32" in run_cli_error(*arguments, "train.steps=5", "train.batch_tokens=32")
    assert "not a corpus folder" in run_cli_error(*arguments, "train.steps=5", f"corpus={tmp_path}")
    assert not (tmp_path / "bert").exists()


def test_pretrain_rejects_corpus_of_another_tokenizer(corpus, uninterrupted, tmp_path):
    (tmp_path / "text.txt").write_text(make_english_text(20), encoding="utf-8")
    run_cli_json("tokenizer", f"texts={tmp_path / 'text.txt'}", "vocab_size=100", f"out={tmp_path / 'tokenizer'}")
    run_cli_json(
        "prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={tmp_path / 'tokenizer'}", f"out={tmp_path / 'corpus'}"
    )
    small_arguments = [word for word in SMALL if not word.startswith("model")]
    arguments = ["pretrain", f"out={tmp_path / 'bert'}", *small_arguments, "train.steps=5"]
    assert "another tokenizer" in run_cli_error(*arguments, f"corpus={tmp_path / 'corpus'}", f"init={uninterrupted}")
    assert "another tokenizer" in run_cli_error(
        *arguments, f"corpus={corpus}", f"valid={tmp_path / 'corpus'}", "model=bert-tiny"
    )


def test_load_names_damaged_file(uninterrupted, tmp_path):
    import shutil

    folder = shutil.copytree(uninterrupted, tmp_path / "bert")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        bertsmith.load(folder)
    with pytest.raises(UserError, match=r"has no \[MASK\]"):
        bertsmith.load(uninterrupted).fill("nothing to fill")
    with pytest.raises(UserError, match="longer than the model's 64 positions"):
        bertsmith.load(uninterrupted).fill("[MASK] " + "the " * 80)


def test_stages_do_not_touch_foreign_files(corpus, tmp_path):
    (tmp_path / "project" / "state").mkdir(parents=True)
    (tmp_path / "project" / "state" / "thesis.txt").write_text("mine")
    arguments = [*SMALL, "train.steps=2", f"corpus={corpus}"]
    assert "contains other files" in run_cli_error("pretrain", *arguments, f"out={tmp_path / 'project'}")
    (tmp_path / "text.txt").write_text(make_english_text(20), encoding="utf-8")
    (tmp_path / "new.part").mkdir()
    (tmp_path / "new.part" / "thesis.txt").write_text("mine")
    command = ["prepare", f"tokenizer={corpus}", f"texts={tmp_path / 'text.txt'}", f"out={tmp_path / 'new'}"]
    assert "contains other files" in run_cli_error(*command)  # its own part must have this name, to be found again
    run_cli("tokenizer", "vocab_size=100", f"texts={tmp_path / 'text.txt'}", f"out={tmp_path / 'new'}")
    assert (tmp_path / "new.part" / "thesis.txt").exists() and (tmp_path / "project" / "state" / "thesis.txt").exists()


def test_stages_refuse_locked_output_folder(corpus, tmp_path):
    from bertsmith.writing import lock_output

    (tmp_path / "text.txt").write_text(make_english_text(20), encoding="utf-8")
    texts, out = f"texts={tmp_path / 'text.txt'}", f"out={tmp_path / 'out'}"
    with lock_output(tmp_path / "out"):
        assert "another run is writing" in run_cli_error("pretrain", *SMALL, "train.steps=2", f"corpus={corpus}", out)
        assert "another run is writing" in run_cli_error("prepare", texts, f"tokenizer={corpus}", out)
        assert "another run is writing" in run_cli_error("tokenizer", texts, "vocab_size=100", out)


def test_pretrain_reports_full_disk_and_resumes(corpus, uninterrupted, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from bertsmith import tensors

    save, calls = tensors.save_file, []

    def save_until_full(tensor_dict, path):
        calls.append(path)
        if len(calls) == 7:  # the third checkpoint
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(tensor_dict, path)

    monkeypatch.setattr(tensors, "save_file", save_until_full)
    arguments = ["pretrain", f"corpus={corpus}", f"out={tmp_path / 'bert'}", *SMALL, "train.steps=60", "train.save_every=10"]
    assert "no space left for" in run_cli(*arguments, code=2).stderr
    run_cli(*arguments)
    assert (tmp_path / "bert" / "model.safetensors").read_bytes() == (uninterrupted / "model.safetensors").read_bytes()


def test_pretrain_pairs_warn_of_single_sentence_documents(vocabulary, tmp_path):
    single_sentences = "\n\n".join(["The people made this way."] * 150)
    (tmp_path / "text.txt").write_text(make_english_text(20, sentences=14) + "\n\n" + single_sentences, encoding="utf-8")
    run_cli_json(
        "prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={vocabulary}", f"out={tmp_path / 'corpus'}", "workers=1"
    )
    for seed in range(4):
        arguments = [f"corpus={tmp_path / 'corpus'}", f"out={tmp_path / str(seed)}", *SMALL, "train.steps=2", f"seed={seed}"]
        assert "documents of one sentence" in run_cli("pretrain", *arguments, "validation_split=0.02").stderr
    assert "validation_split=0.999" in run_cli_error(
        "pretrain", *arguments, "validation_split=0.999", f"out={tmp_path / 'none'}", "objective=mlm"
    )


def test_pretrain_init_identity_depends_on_contents(corpus, uninterrupted, tmp_path):
    import shutil

    folder = shutil.copytree(uninterrupted, tmp_path / "init")
    small_arguments = [word for word in SMALL if not word.startswith("model")]
    arguments = [
        "pretrain",
        f"corpus={corpus}",
        f"out={tmp_path / 'more'}",
        f"init={folder}",
        *small_arguments,
        "train.steps=2",
    ]
    assert run_cli_json(*arguments)["created"] and not run_cli_json(*arguments)["created"]
    shutil.rmtree(folder)
    run_cli("pretrain", f"corpus={corpus}", f"out={folder}", *SMALL, "train.steps=3", "seed=9")
    assert "a model of another recipe" in run_cli_error(*arguments)


@pytest.mark.slow
def test_pretrain_with_compile_resumes_exactly(corpus, tmp_path):
    """Compiling takes minutes: `make test-slow`."""
    arguments = [*SMALL, "train.steps=20", "train.save_every=5", "train.compile=true", f"corpus={corpus}"]
    run_cli("pretrain", *arguments, f"out={tmp_path / 'uninterrupted'}")
    process = subprocess.Popen(
        [sys.executable, "-m", "bertsmith", "pretrain", *arguments, f"out={tmp_path / 'killed'}"], cwd=ROOT
    )
    while not (tmp_path / "killed" / "state" / "step-10").exists() and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.wait()
    run_cli("pretrain", *arguments, f"out={tmp_path / 'killed'}")
    assert (tmp_path / "killed/model.safetensors").read_bytes() == (tmp_path / "uninterrupted/model.safetensors").read_bytes()
