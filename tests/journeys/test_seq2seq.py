"""Sequence to sequence on the command line: every kind of encoder and decoder learns to reverse words."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith import recipes
from bertsmith.errors import UserError
from bertsmith.finetuning.recipe import FinetuneRecipe
from tests.support.cli import ROOT, SMALL, run_cli, run_cli_error, run_cli_json

LETTERS = list("abcde")
FAST = [
    "max_length=16",
    "task.max_target_length=16",
    "train.batch_tokens=600",
    "train.learning_rate=5e-3",
    "train.log_every=50",
    "train.epochs=25",
]
TRANSFORMER_ENCODER = [
    "model.num_hidden_layers=2",
    "model.hidden_size=32",
    "model.mixer.num_attention_heads=4",
    "model.feedforward.intermediate_size=64",
    "model.hidden_dropout_prob=0.0",
]
TRANSFORMER_ENCODER += [
    "model.position_embedding_type=sinusoidal",
    "model.scale_embeddings=true",
    "model.max_position_embeddings=32",
    "model.initializer_range=0.18",
]
BILSTM_ENCODER = [
    "model=bilstm",
    "model.num_hidden_layers=1",
    "model.hidden_size=32",
    "model.hidden_dropout_prob=0.0",
    "model.initializer_range=0.2",
]


def pairs(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        letters = rng.choice(LETTERS, rng.integers(1, 5)).tolist()
        yield {"source": " ".join(letters), "target": " ".join(letters[::-1])}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, count, seed in (("train", 500, 0), ("dev", 60, 1)):
        text = "".join(json.dumps(row) + "\n" for row in pairs(count, seed))
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return [f"data.train={folder / 'train.jsonl'}", f"data.dev={folder / 'dev.jsonl'}"]


@pytest.fixture(scope="module")
def bert(corpus, tmp_path_factory):
    """A barely pretrained model with a language modeling head."""
    out = tmp_path_factory.mktemp("bert") / "bert"
    args = [arg for arg in SMALL if "max_position_embeddings" not in arg]
    run_cli(
        "pretrain",
        f"corpus={corpus}",
        f"out={out}",
        *args,
        "model.initializer_range=0.1",
        "model.hidden_dropout_prob=0.0",
        "train.steps=5",
    )
    return out


RANDOM_INIT_ARGS = {
    "transformer": [*TRANSFORMER_ENCODER, "decoder=transformer"],
    "additive": [*BILSTM_ENCODER, "decoder=rnn", "train.epochs=40"],
    "general": [*TRANSFORMER_ENCODER, "decoder.kind=rnn", "decoder.score=general", "decoder.cell=lstm"],
}


@pytest.mark.parametrize("variant", RANDOM_INIT_ARGS)
def test_seq2seq_from_random_init_learns_to_reverse(files, vocabulary, tmp_path, variant):
    args = ["task=generate", f"tokenizer={vocabulary}", *files, *FAST, *RANDOM_INIT_ARGS[variant], f"out={tmp_path / 'out'}"]
    result = run_cli_json("finetune", *args)
    assert result["dev"]["exact"] > 0.9, result["dev"]


BERT_ARGS = {
    "bert2bert": ["decoder=transformer"],
    "bertshare": ["decoder.kind=transformer", "decoder.shared=true"],
    "unilm": ["train.epochs=45"],
}


@pytest.mark.parametrize("variant", BERT_ARGS)
def test_seq2seq_from_bert_learns_to_reverse(files, bert, tmp_path, variant):
    args = ["task=generate", f"model={bert}", *files, *FAST, *BERT_ARGS[variant], f"out={tmp_path / 'out'}"]
    result = run_cli_json("finetune", *args)
    assert result["dev"]["exact"] > 0.9, result["dev"]


@pytest.fixture(scope="module")
def seq2seq_model(files, vocabulary, tmp_path_factory):
    out = tmp_path_factory.mktemp("writer") / "out"
    args = ["task=generate", f"tokenizer={vocabulary}", *TRANSFORMER_ENCODER, "decoder=rnn", f"out={out}"]
    schedule = ["train.average_checkpoints=2", "train.save_every=25", "train.lr_scheduler_type=inverse_sqrt", "train.epochs=35"]
    run_cli_json("finetune", *args, *files, *FAST, *schedule)
    return out


def test_seq2seq_predict_and_evaluate(seq2seq_model, files, tmp_path):
    model = bertsmith.load(seq2seq_model)
    assert model("a b c") == {"generated_text": "c b a"}
    assert model(["d e", "a b"]) == [{"generated_text": "e d"}, {"generated_text": "b a"}]
    (tmp_path / "some.txt").write_text("a b\nc d e\n", encoding="utf-8")
    run_cli("predict", f"model={seq2seq_model}", f"data={tmp_path / 'some.txt'}", f"out={tmp_path / 'said.jsonl'}")
    assert [json.loads(line)["generated_text"] for line in (tmp_path / "said.jsonl").open(encoding="utf-8")] == ["b a", "e d c"]
    dev = files[1].split("=")[1]
    run_cli("predict", f"model={seq2seq_model}", f"data={dev}", f"out={tmp_path / 'dev.jsonl'}")
    evaluation = run_cli_json("evaluate", f"model={seq2seq_model}", f"data={dev}", f"out={tmp_path / 'report'}")
    assert {"bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "same_length"} == set(evaluation["scores"])
    low, high = evaluation["confidence_intervals"]["bleu"]
    assert low <= evaluation["scores"]["bleu"] <= high
    assert "BLEU" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_seq2seq_model_is_finetuned_again(seq2seq_model, files, tmp_path):
    args = ["task=generate", f"model={seq2seq_model}", *files, *FAST, f"out={tmp_path / 'out'}", "train.learning_rate=1e-9"]
    before, result = bertsmith.load(seq2seq_model), run_cli_json("finetune", *args)
    assert result["dev"] == pytest.approx(before.card["result"]["dev"], abs=0.05)
    assert "has a decoder already" in run_cli_error("finetune", *args, "decoder=transformer", f"out={tmp_path / 'other'}")


def test_seq2seq_generation_options(seq2seq_model):
    options = [
        [],
        ["generate=beam", "generate.num_beams=2"],
        ["generate=greedy", "generate.max_new_tokens=2"],
        ["generate=sample"],
    ]
    outputs = [run_cli("predict", f"model={seq2seq_model}", "text=a b c d", *args).stdout for args in options]
    texts = [json.loads(output.splitlines()[0])["generated_text"] for output in outputs]
    assert texts[:3] == ["d c b a", "d c b a", "d c"] and texts[3]


@pytest.mark.parametrize(
    ("recipe", "kind"), [("translate", "transformer"), ("couplets", "transformer"), ("bert2bert", "transformer")]
)
def test_seq2seq_recipes_are_valid(recipe, kind):
    loaded = recipes.read_recipe(FinetuneRecipe, ROOT / "recipes" / f"{recipe}.toml")
    assert loaded.task.max_target_length == loaded.max_length == 64 and loaded.decoder.__struct_config__.tag == kind
    loaded.train.resolve_epochs(100).check()


def test_seq2seq_rejects_fill_mask_and_huggingface_export(seq2seq_model, tmp_path):
    with pytest.raises(UserError, match="cannot fill masks"):
        bertsmith.load(seq2seq_model).fill("a [MASK]")
    assert "sequence-to-sequence model" in run_cli_error(
        "export", f"model={seq2seq_model}", "format=hf", f"out={tmp_path / 'hf'}"
    )


INVALID_SETTINGS = {
    "decoder is only for task=generate": ["task=classify", "decoder=transformer"],
    "rdrop cannot be used with task=generate": ["task=generate", "task.max_target_length=16", "rdrop=1.0"],
    "positions; lower max_length or max_target_length": ["task=generate", "max_length=500", "task.max_target_length=128"],
    "decoder.num_hidden_layers=9": [
        "task=generate",
        "decoder.kind=transformer",
        "task.max_target_length=16",
        "decoder.num_hidden_layers=9",
    ],
}


@pytest.mark.parametrize("message", INVALID_SETTINGS)
def test_seq2seq_rejects_invalid_settings_before_training(files, bert, tmp_path, message):
    args = ["finetune", INVALID_SETTINGS[message][0], f"model={bert}", *files, f"out={tmp_path / 'out'}", "max_length=16"]
    assert message in run_cli_error(*args, *INVALID_SETTINGS[message][1:])
