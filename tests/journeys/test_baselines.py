"""TextCNN and BiLSTM baselines trained from scratch on every task, by the command line."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.support.cli import run_cli, run_cli_error, run_cli_json
from tests.support.rows import CASES, NAMES, PLACES, classification_row, random_words, squad_paragraph, write_jsonl
from tests.support.texts import WORDS

FAST_TRAINING = [
    "model.hidden_size=48",
    "max_length=32",
    "train.batch_tokens=512",
    "train.learning_rate=1e-2",
    "train.log_every=50",
    "train.epochs=5",
]


@pytest.fixture(scope="module")
def word_tokenizer(tmp_path_factory):
    """A word-level tokenizer."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "text.txt").write_text("\n".join([" ".join([*WORDS, *NAMES, *PLACES])] * 2), encoding="utf-8")
    run_cli("tokenizer", f"texts={folder / 'text.txt'}", "kind=word", f"out={folder / 'words'}")
    return folder / "words"


def finetune_command(preset, word_tokenizer, folder, make_example, *options, sizes=(500, 80)):
    train, dev = (
        write_jsonl(folder / f"{size}.jsonl", [make_example(np.random.default_rng(i + size)) for i in range(size)])
        for size in sizes
    )
    files = [f"data.train={train}", f"data.dev={dev}", f"out={folder / 'out'}"]
    return ["finetune", f"model={preset}", f"tokenizer={word_tokenizer}", *files, *FAST_TRAINING, *options]


@pytest.mark.parametrize("preset", ["textcnn", "bilstm"])
@pytest.mark.parametrize("kind", CASES)
def test_baseline_learns_every_task(word_tokenizer, tmp_path, preset, kind):
    make_example, metric = CASES[kind]
    options = ["task.crf=true", "train.epochs=15"] if kind == "tag" else []
    result = run_cli_json(*finetune_command(preset, word_tokenizer, tmp_path, make_example, f"task={kind}", *options))
    assert result["dev"][metric] > 0.8
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={tmp_path / '80.jsonl'}")
    assert evaluation["scores"] == pytest.approx(result["dev"])


@pytest.mark.parametrize("preset", ["textcnn", "bilstm"])
def test_baseline_learns_question_answering(word_tokenizer, tmp_path, preset):
    for size in (300, 60):
        paragraphs = [squad_paragraph(np.random.default_rng(i + size), i) for i in range(size)]
        (tmp_path / f"{size}.json").write_text(
            json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
        )
    files = [f"data.train={tmp_path / '300.json'}", f"data.dev={tmp_path / '60.json'}", f"out={tmp_path / 'out'}"]
    result = run_cli_json("finetune", "task=answer", f"model={preset}", f"tokenizer={word_tokenizer}", *files, *FAST_TRAINING)
    assert result["dev"]["exact"] > 0.8


def similar_pair(rng):
    """Two texts; score 1 if the same name is in both."""
    same = bool(rng.integers(2))
    one = str(rng.choice(NAMES))
    other = one if same else str(rng.choice([name for name in NAMES if name != one]))
    texts = [" ".join(rng.permutation([*random_words(rng, 2), name])) for name in (one, other)]
    return {"text": texts[0], "text_b": texts[1], "score": float(same)}


def test_bilstm_learns_text_similarity(word_tokenizer, tmp_path):
    result = run_cli_json(
        *finetune_command("bilstm", word_tokenizer, tmp_path, similar_pair, "task=similar", "train.epochs=12")
    )
    assert result["dev"]["spearman"] > 0.6


def test_textcnn_starts_from_frozen_or_trained_vectors(word_tokenizer, tmp_path):
    rng = np.random.default_rng(0)
    vectors = {word: rng.normal(size=48).round(4) for word in ("people", "one", "the")}
    rows = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items())
    (tmp_path / "vectors.txt").write_text(rows, encoding="utf-8")
    options = ["task=classify", f"vectors={tmp_path / 'vectors.txt'}"]
    command = finetune_command("textcnn", word_tokenizer, tmp_path, classification_row, *options, "freeze=embeddings")
    assert "3 of" in run_cli(*command).stderr
    model = bertsmith.load(tmp_path / "out")
    table = load_tensors(tmp_path / "out" / "model.safetensors")["encoder.word_embeddings.weight"].numpy()
    for word, vector in vectors.items():
        assert np.allclose(table[model.tokenizer.id_to_token.index(word)], vector, atol=1e-6)
    unfrozen_command = finetune_command(
        "textcnn", word_tokenizer, tmp_path, classification_row, *options, f"out={tmp_path / 'other'}"
    )
    run_cli(*unfrozen_command)
    trained_table = load_tensors(tmp_path / "other" / "model.safetensors")["encoder.word_embeddings.weight"].numpy()
    assert not np.allclose(trained_table[model.tokenizer.id_to_token.index("people")], vectors["people"], atol=1e-4)
    assert "model.embedding_size=48" in run_cli_error(*unfrozen_command, "model.hidden_size=20", f"out={tmp_path / 'narrow'}")


def test_baseline_refuses_options_of_pretrained_models(word_tokenizer, tmp_path):
    command = finetune_command("textcnn", word_tokenizer, tmp_path, classification_row, "task=classify")
    assert "tokenizer=FOLDER" in run_cli_error(*[override for override in command if not override.startswith("tokenizer=")])
    assert "vectors=FILE" in run_cli_error(*command, "freeze=embeddings")
    assert "all need training" in run_cli_error(*command, "freeze=all")
    without_model = [override for override in command if not override.startswith("model")]
    assert "has its own" in run_cli_error(*without_model, f"model={tmp_path}")
    assert "train.compile" in run_cli_error(*command, "model=bilstm", "train.compile=true")


def test_none_removes_a_model_part(word_tokenizer, tmp_path):
    command = finetune_command(
        "bert-tiny",
        word_tokenizer,
        tmp_path,
        classification_row,
        "task=classify",
        "model.mixer.num_attention_heads=2",
        "train.steps=1",
    )
    run_cli(*[override for override in command if "epochs" not in override], "model.feedforward=none")
    encoder = json.loads((tmp_path / "out" / "config.json").read_text())["model"]["encoder"]
    assert encoder["feedforward"] is None and encoder["norm"] == "post"
