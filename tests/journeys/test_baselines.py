"""TextCNN and BiLSTM from nothing but a tokenizer: every kind of task, by the command line."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.tensors import load_tensors
from tests.conftest import WORDS
from tests.journeys.test_finetuning import CASES, NAMES, PLACES, asked, classified, sentence, written
from tests.journeys.test_pretraining import answer, ran, refused

QUICK = ["model.width=48", "length=32", "train.batch_tokens=512", "train.rate=1e-2", "train.log_every=50", "train.epochs=5"]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer of whole words."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "text.txt").write_text("\n".join([" ".join([*WORDS, *NAMES, *PLACES])] * 2), encoding="utf-8")
    ran("tokenizer", f"texts={folder / 'text.txt'}", "kind=word", f"out={folder / 'words'}")
    return folder / "words"


def begun(preset, words, folder, make, *more, sizes=(500, 80)):
    train, dev = (written(folder / f"{n}.jsonl", [make(np.random.default_rng(i + n)) for i in range(n)]) for n in sizes)
    files = [f"data.train={train}", f"data.dev={dev}", f"out={folder / 'out'}"]
    return ["finetune", f"model={preset}", f"tokenizer={words}", *files, *QUICK, *more]


@pytest.mark.parametrize("preset", ["textcnn", "bilstm"])
@pytest.mark.parametrize("kind", CASES)
def test_a_task_is_learnt_from_nothing_and_its_folder_answers(words, tmp_path, preset, kind):
    make, metric = CASES[kind]
    more = ["task.crf=true", "train.epochs=15"] if kind == "tag" else []
    made = answer(*begun(preset, words, tmp_path, make, f"task={kind}", *more))
    assert made["dev"][metric] > 0.8
    judged = answer("evaluate", f"model={tmp_path / 'out'}", f"data={tmp_path / '80.jsonl'}")
    assert judged["scores"] == pytest.approx(made["dev"])


@pytest.mark.parametrize("preset", ["textcnn", "bilstm"])
def test_questions_are_answered_from_their_passages(words, tmp_path, preset):
    for n in (300, 60):
        paragraphs = [asked(np.random.default_rng(i + n), i) for i in range(n)]
        (tmp_path / f"{n}.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    files = [f"data.train={tmp_path / '300.json'}", f"data.dev={tmp_path / '60.json'}", f"out={tmp_path / 'out'}"]
    made = answer("finetune", "task=answer", f"model={preset}", f"tokenizer={words}", *files, *QUICK)
    assert made["dev"]["exact"] > 0.8


def alike(rng):
    """Of two texts, whether the same word stands in both."""
    same = bool(rng.integers(2))
    one = str(rng.choice(NAMES))
    other = one if same else str(rng.choice([name for name in NAMES if name != one]))
    texts = [" ".join(rng.permutation([*sentence(rng, 2), name])) for name in (one, other)]
    return {"text": texts[0], "text_b": texts[1], "score": float(same)}


def test_texts_that_are_alike_are_near(words, tmp_path):
    made = answer(*begun("bilstm", words, tmp_path, alike, "task=similar", "train.epochs=12"))
    assert made["dev"]["spearman"] > 0.6


def test_a_table_begins_with_vectors_and_may_keep_them(words, tmp_path):
    rng = np.random.default_rng(0)
    given = {word: rng.normal(size=48).round(4) for word in ("people", "one", "the")}
    rows = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in given.items())
    (tmp_path / "vectors.txt").write_text(rows, encoding="utf-8")
    more = ["task=classify", f"vectors={tmp_path / 'vectors.txt'}"]
    line = begun("textcnn", words, tmp_path, classified, *more, "freeze=embeddings")
    assert "3 of" in ran(*line).stderr
    model = bertsmith.load(tmp_path / "out")
    table = load_tensors(tmp_path / "out" / "model.safetensors")["encoder.tokens.weight"].numpy()
    for word, vector in given.items():
        assert np.allclose(table[model.tokenizer.id_to_token.index(word)], vector, atol=1e-6)
    learnt = begun("textcnn", words, tmp_path, classified, *more, f"out={tmp_path / 'other'}")
    ran(*learnt)
    other = load_tensors(tmp_path / "other" / "model.safetensors")["encoder.tokens.weight"].numpy()
    assert not np.allclose(other[model.tokenizer.id_to_token.index("people")], given["people"], atol=1e-4)
    assert "model.embedding=48" in refused(*learnt, "model.width=20", f"out={tmp_path / 'narrow'}")


def test_what_a_new_model_cannot_be_given_is_refused(words, tmp_path):
    line = begun("textcnn", words, tmp_path, classified, "task=classify")
    assert "tokenizer=FOLDER" in refused(*[word for word in line if not word.startswith("tokenizer=")])
    assert "vectors=FILE" in refused(*line, "freeze=embeddings")
    assert "must all learn" in refused(*line, "freeze=all")
    other = [word for word in line if not word.startswith("model")]
    assert "brings its own" in refused(*other, f"model={tmp_path}")
    assert "train.compile" in refused(*line, "model=bilstm", "train.compile=true")


def test_a_part_is_left_out_by_the_word_none(words, tmp_path):
    line = begun("bert-tiny", words, tmp_path, classified, "task=classify", "model.mixer.heads=2", "train.steps=1")
    ran(*[word for word in line if "epochs" not in word], "model.feedforward=none")
    told = json.loads((tmp_path / "out" / "config.json").read_text())["model"]["encoder"]
    assert told["feedforward"] is None and told["norm"] == "after"
