"""Multiple choice: one sequence per option, for any number of options, and one prediction per question."""

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.tasks import MultipleChoice
from bertsmith.tasks.multiple_choice import MultipleChoiceExample, MultipleChoicePrediction
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)
EXAMPLES = [
    MultipleChoiceExample("the people", ("now", "then"), "what time", 1),
    MultipleChoiceExample("she said", ("no", "one", "two people"), label=0),
]


def test_multiple_choice_encodes_one_sequence_per_option():
    encoded = MultipleChoice().encode(EXAMPLES, TOKENIZER, 32)
    texts = [TOKENIZER.decode(sequence) for sequence in encoded.input_ids]
    assert texts[0] == "[CLS] the people [SEP] what time now [SEP]" and texts[4] == "[CLS] she said [SEP] two people [SEP]"
    assert encoded.example_index.tolist() == [0, 0, 1, 1, 1] and encoded.targets["label"].tolist() == [1, 0]
    assert [(window.number, window.num_windows) for window in encoded.metadata] == [(0, 1)] * 5
    assert all(len(ids) == len(token_types) for ids, token_types in zip(encoded.input_ids, encoded.token_type_ids, strict=True))


def test_multiple_choice_truncates_the_context_not_the_options():
    encoded = MultipleChoice().encode([MultipleChoiceExample("of and " * 100, ("two people", "now"))], TOKENIZER, 16)
    assert [len(sequence) for sequence in encoded.input_ids] == [16, 16] and not encoded.targets
    assert TOKENIZER.decode(encoded.input_ids[0]).endswith("[SEP] two people [SEP]")


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_multiple_choice_softmax_is_within_a_question(shape):
    encoded = MultipleChoice().encode(EXAMPLES, TOKENIZER, 32)
    logits = np.array([1.0, 3.0, 900.0, 901.0, -5.0]).reshape(shape)
    first, second = MultipleChoice().decode(logits, encoded, EXAMPLES)
    assert first == MultipleChoicePrediction(1, pytest.approx([1 / (1 + np.exp(2)), 1 / (1 + np.exp(-2))]))
    assert EXAMPLES[1].options[second.choice] == "one" and sum(second.scores) == pytest.approx(1)
    assert MultipleChoice().compute_metrics([first, second], EXAMPLES) == {"accuracy": 0.5}
    assert MultipleChoice().decode(np.zeros((0, 1)), MultipleChoice().encode([], TOKENIZER, 32), []) == []


def test_multiple_choice_reads_optional_question_and_label(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"article": "a", "question": "q", "options": ["x", "y"], "label": 1}\n{"article": "b", "options": ["x", "y", "z"]}\n'
    )
    first, second = MultipleChoice(columns={"context": "article"}).read(tmp_path / "a.jsonl")
    assert (first.context, first.question, first.options, first.label) == ("a", "q", ("x", "y"), 1)
    assert (second.question, second.label, second.line) == (None, None, 2)
    with pytest.raises(UserError, match=r"a\.jsonl has no column 'answer'; its columns: article, question, options, label"):
        MultipleChoice(columns={"label": "answer"}).fit([second])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"options": ["x"], "label": 0', "not a list of two or more texts"),
        ('"options": "xy", "label": 0', "not a list of two or more texts"),
        ('"options": ["x", 2], "label": 0', "not a list of two or more texts"),
        ('"options": ["x", "y"], "label": 2', "label is 2, not the index of an option, 0 to 1"),
        ('"options": ["x", "y"], "label": -1', "label is -1"),
        ('"options": ["x", "y"], "label": true', "label is True"),
        ('"options": ["x", "y"], "label": "A"', "label is 'A'"),
    ],
)
def test_multiple_choice_rejects_invalid_options_and_labels(tmp_path, fields, message):
    (tmp_path / "a.jsonl").write_text(f'{{"context": "a", {fields}}}\n')
    with pytest.raises(UserError, match=rf"line 1: .*{message}"):
        list(MultipleChoice().read(tmp_path / "a.jsonl"))


def test_multiple_choice_rejects_tables(tmp_path):
    with pytest.raises(UserError, match=r"only \.jsonl allows"):
        MultipleChoice().read(tmp_path / "a.tsv")
