"""Data augmentation: candidates from a masked language model and from word vectors, replaced words, and a run with both."""

import numpy as np
import pytest

from bertsmith.compression.distillation.augmentation import (
    WORD,
    Augmentation,
    Sources,
    augment_examples,
    find_candidates,
    replace_words,
)
from bertsmith.errors import UserError
from bertsmith.inference.predictor import load
from bertsmith.model import checkpoint
from bertsmith.runs import Run
from bertsmith.tasks import QuestionAnswering, TextClassification
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.word_vectors.keyed_vectors import KeyedVectors
from tests.support.cli import FAST, run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import classification_row, write_jsonl
from tests.support.texts import WORDS

CONFIG = Augmentation(model="bert", copies=3, probability=0.5, top_k=4)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("augmentation") / "bert")


def sources(bert, vectors=None):
    model, tokenizer, _ = checkpoint.load(bert)
    return Sources(model.eval(), tokenizer, vectors)


def test_candidates_are_what_fill_mask_predicts(bert):
    """The most probable whole words without the word itself, in the order of `fill`."""
    texts = [" ".join(WORDS[:4]), " ".join(WORDS[4:9])]
    candidates = find_candidates(CONFIG, texts, sources(bert))
    predictor = load(str(bert), "torch", "fp32")
    for text, options in zip(texts, candidates, strict=True):
        for word, found in zip(WORD.finditer(text), options, strict=True):
            masked = f"{text[: word.start()]}[MASK]{text[word.end() :]}"
            tokens = [row["token_str"] for row in predictor.fill(masked, top_k=60)]
            expected = [token for token in tokens if WORD.fullmatch(token) and token != word.group()]
            assert found == expected[:4] and len(found) == 4


def test_words_of_several_tokens_have_neighbours(bert):
    vectors = KeyedVectors(["zzyzx", "near", "far"], np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0]], np.float32))
    (options,) = find_candidates(CONFIG, ["Zzyzx qqq"], sources(bert, vectors))
    assert options == [["near", "far"], []]
    assert find_candidates(CONFIG, ["Zzyzx qqq"], sources(bert)) == [[[], []]]


def test_words_are_replaced_with_the_probability():
    text, candidates = "a b, c d!", [["x", "y"], ["x", "y"], [], ["x", "y"]]
    copies = [replace_words(text, candidates, 0.4, (0, index)) for index in range(3000)]
    letters = [[word.group() for word in WORD.finditer(copy)] for copy in copies]
    assert all(copy[-1] == "!" and ", " in copy for copy in copies) and all(row[2] == "c" for row in letters)
    share = np.mean([[word in "xy" for word in (row[0], row[1], row[3])] for row in letters])
    assert share == pytest.approx(0.4, abs=0.02)
    assert np.mean([row[0] == "x" for row in letters if row[0] in "xy"]) == pytest.approx(0.5, abs=0.05)
    assert replace_words(text, candidates, 0.4, (0, 7)) == copies[7] and replace_words(text, candidates, 0.0, (0, 7)) == text


def test_chinese_characters_are_words():
    assert [word.group() for word in WORD.finditer("电影very好看2次")] == ["电", "影", "very", "好", "看", "次"]


def test_copies_follow_their_example_and_keep_the_label(bert, tmp_path):
    examples = [ClassificationExample("people made water", "the world", label="good"), ClassificationExample("x", label="bad")]
    calls = []
    load_sources = lambda: calls.append(1) or sources(bert)
    run = Run(tmp_path, "a")
    augmented = augment_examples(CONFIG, TextClassification(), examples, load_sources, run, 0)
    assert len(augmented) == 8 and augmented[0] is examples[0] and augmented[4] is examples[1]
    assert {example.label for example in augmented[:4]} == {"good"} and len({example.text for example in augmented[:4]}) > 1
    assert augmented == augment_examples(CONFIG, TextClassification(), examples, load_sources, run, 0) and len(calls) == 1
    assert augmented != augment_examples(CONFIG, TextClassification(), examples, load_sources, run, 1)


def test_tasks_without_texts_are_refused(bert, tmp_path):
    with pytest.raises(UserError, match="which task=answer does not have"):
        augment_examples(CONFIG, QuestionAnswering(), [object()], lambda: sources(bert), Run(tmp_path), 0)


def test_a_run_with_augmentation(bert, tmp_path):
    rng = np.random.default_rng(0)
    data = [f"data.{name}={write_jsonl(tmp_path / f'{name}.jsonl', [classification_row(rng) for _ in range(n)])}"
            for name, n in (("train", 40), ("dev", 20))]  # fmt: skip
    teacher = save_model(tmp_path / "teacher", TASKS["classify"])
    words = ["distill", f"teacher={teacher}", *data, *FAST, "student.num_hidden_layers=1", "train.steps=3"]
    augmentation = [f"augmentation.model={bert}", "augmentation.copies=2", "augmentation.top_k=5"]
    output = run_cli(*words, *augmentation, f"out={tmp_path / 'out'}").stderr
    assert "augmentation: 120 examples from 40" in output and not (tmp_path / "out/state").exists()
    assert not run_cli_json(*words, *augmentation, f"out={tmp_path / 'out'}")["created"]
    error = run_cli_error(*words, f"augmentation.model={teacher}", f"out={tmp_path / 'no'}")
    assert "cannot fill masks" in error
