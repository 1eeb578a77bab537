"""Choice: a sequence an option, however many there are, and one answer a question."""

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.tasks import MultipleChoice
from bertsmith.tasks.multiple_choice import MultipleChoiceExample, MultipleChoicePrediction
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TOKENIZER = Tokenizer.from_vocab(PIECES)
EXAMPLES = [
    MultipleChoiceExample("the people", ("now", "then"), "what time", 1),
    MultipleChoiceExample("she said", ("no", "one", "two people"), label=0),
]


def test_every_option_is_a_sequence_after_its_context_and_question():
    encoded = MultipleChoice().encode(EXAMPLES, TOKENIZER, 32)
    told = [TOKENIZER.decode(one) for one in encoded.input_ids]
    assert told[0] == "[CLS] the people [SEP] what time now [SEP]" and told[4] == "[CLS] she said [SEP] two people [SEP]"
    assert encoded.example_index.tolist() == [0, 0, 1, 1, 1] and encoded.targets["label"].tolist() == [1, 0]
    assert [(one.number, one.of) for one in encoded.metadata] == [(0, 1)] * 5
    assert all(len(ids) == len(segments) for ids, segments in zip(encoded.input_ids, encoded.token_type_ids, strict=True))


def test_a_long_context_leaves_the_options_whole():
    encoded = MultipleChoice().encode([MultipleChoiceExample("of and " * 100, ("two people", "now"))], TOKENIZER, 16)
    assert [len(one) for one in encoded.input_ids] == [16, 16] and not encoded.targets
    assert TOKENIZER.decode(encoded.input_ids[0]).endswith("[SEP] two people [SEP]")


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_scores_are_compared_within_a_question(shape):
    encoded = MultipleChoice().encode(EXAMPLES, TOKENIZER, 32)
    scores = np.array([1.0, 3.0, 900.0, 901.0, -5.0]).reshape(shape)
    first, second = MultipleChoice().decode(scores, encoded, EXAMPLES)
    assert first == MultipleChoicePrediction(1, "then", pytest.approx([1 / (1 + np.exp(2)), 1 / (1 + np.exp(-2))]))
    assert second.option == "one" and sum(second.scores) == pytest.approx(1)
    assert MultipleChoice().compute_metrics([first, second], EXAMPLES) == {"accuracy": 0.5}
    assert MultipleChoice().decode(np.zeros((0, 1)), MultipleChoice().encode([], TOKENIZER, 32), []) == []


def test_lines_are_read_with_and_without_question_and_label(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"article": "a", "question": "q", "options": ["x", "y"], "label": 1}\n{"article": "b", "options": ["x", "y", "z"]}\n'
    )
    first, second = MultipleChoice(columns={"context": "article"}).read(tmp_path / "a.jsonl")
    assert (first.context, first.question, first.options, first.label) == ("a", "q", ("x", "y"), 1)
    assert (second.question, second.label, second.line) == (None, None, 2)
    with pytest.raises(UserError, match=r"a\.jsonl has no column 'answer', only: article, question, options, label"):
        MultipleChoice(columns={"label": "answer"}).fit([second])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ('"options": ["x"], "label": 0', "not a list of two texts or more"),
        ('"options": "xy", "label": 0', "not a list of two texts or more"),
        ('"options": ["x", 2], "label": 0', "not a list of two texts or more"),
        ('"options": ["x", "y"], "label": 2', "label is 2, not the number of an option from 0 to 1"),
        ('"options": ["x", "y"], "label": -1', "label is -1"),
        ('"options": ["x", "y"], "label": true', "label is True"),
        ('"options": ["x", "y"], "label": "A"', "label is 'A'"),
    ],
)
def test_options_and_labels_that_cannot_be_meant_are_bad_rows(tmp_path, fields, fault):
    (tmp_path / "a.jsonl").write_text(f'{{"context": "a", {fields}}}\n')
    with pytest.raises(UserError, match=rf"line 1: .*{fault}"):
        list(MultipleChoice().read(tmp_path / "a.jsonl"))


def test_a_table_without_lists_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"give \.jsonl"):
        MultipleChoice().read(tmp_path / "a.tsv")
