"""Special tokens of a template: columns of a row become tokens beside its texts, in every task."""

import json

import numpy as np
import pytest

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks import (
    MultipleChoice,
    QuestionAnswering,
    TaskConfig,
    TextClassification,
    TextRegression,
    TokenClassification,
)
from bertsmith.tasks.base import CrossAttentionPair
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tokenization.pipeline import assemble_tokenizer, build_hex_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertsmith.tokenization.trainers import build_model, train_vocabulary
from tests.support.texts import VOCAB

WORDS = Tokenizer.from_vocab(VOCAB)
BYTES = Tokenizer(
    assemble_tokenizer("byte", build_model(train_vocabulary("byte", [], 300, special_tokens=SPECIAL_TOKENS)), lowercase=False)
)
TEMPLATE = "[way={direction}] [{transport}] {text}"
ROWS = [
    {"text": "the people", "direction": "c", "transport": "TCP", "label": "a"},
    {"text": "of time", "direction": "s", "transport": "UDP", "label": "b"},
]


def write_jsonl(tmp_path, rows, name="a.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fit_task(tmp_path, task, rows, tokenizer=WORDS):
    """The fitted task, its examples, and the tokenizer with its special tokens."""
    examples = list(task.read(write_jsonl(tmp_path, rows)))
    task = task.fit(examples)
    return task, examples, tokenizer.with_special_tokens(task.special_tokens)


def to_tokens(ids, tokenizer):
    return [tokenizer.id_to_token[token_id] for token_id in ids]


def test_special_tokens_of_columns_precede_the_text(tmp_path):
    task, examples, tokenizer = fit_task(tmp_path, TextClassification(template=TEMPLATE), ROWS)
    assert task.special_tokens == ("[?]", "[TCP]", "[UDP]", "[way=?]", "[way=c]", "[way=s]")
    encoded = task.encode(examples, tokenizer, 16)
    assert to_tokens(encoded.input_ids[0], tokenizer) == ["[CLS]", "[way=c]", "[TCP]", "the", "people", "[SEP]"]
    assert to_tokens(encoded.input_ids[1], tokenizer) == ["[CLS]", "[way=s]", "[UDP]", "of", "time", "[SEP]"]
    assert min(tokenizer.backend_tokenizer.token_to_id(name) for name in task.special_tokens) == len(WORDS)
    assert tokenizer.is_special[-len(task.special_tokens) :].all()


def test_special_tokens_of_unseen_and_missing_values(tmp_path):
    task, _, tokenizer = fit_task(tmp_path, TextClassification(template=TEMPLATE), ROWS)
    rows = [{"text": "the", "direction": "x", "transport": None}, {"text": "the", "direction": " c ", "transport": ""}]
    examples = [*task.read(write_jsonl(tmp_path, rows)), ClassificationExample("the")]
    tokens = [to_tokens(ids[1:3], tokenizer) for ids in task.encode(examples, tokenizer, 16).input_ids]
    assert tokens == [["[way=?]", "[?]"], ["[way=c]", "[?]"], ["[way=?]", "[?]"]]


def test_template_columns_exclude_texts():
    assert TextClassification(template="[way={way}] {text} [reply] [by={who}:{way}] {text_b}").template_columns() == [
        "way",
        "who",
        "way",
    ]
    assert TextClassification().template_columns() == []


@pytest.mark.parametrize("tokenizer", [WORDS, BYTES], ids=["wordpiece", "byte"])
def test_special_tokens_in_plain_text_are_not_special(tmp_path, tokenizer):
    task, _, extended = fit_task(tmp_path, TextClassification(template=TEMPLATE), ROWS, tokenizer)
    extended.save(tmp_path)
    for variant in (extended, Tokenizer.load(tmp_path)):
        ids = task.encode([ClassificationExample("[way=c] the [TCP]")], variant, 64).input_ids[0]
        assert ids[3:-1].tolist() == tokenizer.encode("[way=c] the [TCP]").ids  # as without special tokens
        assert (ids >= len(tokenizer)).sum() == 2  # those of the template


def test_special_tokens_are_in_every_window(tmp_path):
    rows = [dict(ROWS[0], text="of and " * 20), ROWS[1]]
    for long, num_windows in (("truncate", 1), ("window", 3), ("hierarchical", 3)):
        task = TextClassification(template="[{direction}] {text} [end]", long_text=long, doc_stride=15)
        task, examples, tokenizer = fit_task(tmp_path, task, rows)
        encoded = task.encode(examples, tokenizer, 20)
        assert len(encoded.input_ids) == num_windows + 1 and len(encoded.input_ids[0]) == 20
        for ids in encoded.input_ids[:-1]:
            tokens = to_tokens(ids, tokenizer)
            assert tokens[:2] == ["[CLS]", "[c]"] and tokens[-2:] == ["[end]", "[SEP]"]


def test_special_tokens_that_fill_max_length_are_rejected(tmp_path):
    task, examples, tokenizer = fit_task(tmp_path, TextClassification(template="[a] [b] [c] [d] [e] {text}"), ROWS)
    with pytest.raises(UserError, match="max_length=8 leaves no room for text after 5 special tokens"):
        task.encode(examples, tokenizer, 8)


@pytest.mark.parametrize("task_class", [TextClassification, TextRegression])
def test_special_tokens_of_pairs(tmp_path, task_class):
    rows = [dict(row, text_b="it is", label=index) for index, row in enumerate(ROWS)]
    task, examples, tokenizer = fit_task(
        tmp_path, task_class(template="[{direction}] {text} [to] {text_b} [{transport}]"), rows
    )
    encoded = task.encode(examples, tokenizer, 32)
    expected = ["[CLS]", "[c]", "the", "people", "[SEP]", "[to]", "it", "is", "[TCP]", "[SEP]"]
    assert to_tokens(encoded.input_ids[0], tokenizer) == expected
    assert encoded.token_type_ids[0].tolist() == [0] * 5 + [1] * 5
    task, examples, tokenizer = fit_task(
        tmp_path, task_class(template="[{direction}] {text} [to] {text_b} [x]", pair=CrossAttentionPair()), rows
    )
    first, second = task.encode(examples, tokenizer, 32).input_ids[:2]
    assert to_tokens(first, tokenizer) == ["[CLS]", "[c]", "the", "people", "[SEP]"]
    assert to_tokens(second, tokenizer) == ["[CLS]", "[to]", "it", "is", "[x]", "[SEP]"]


def test_special_tokens_keep_labels_aligned_with_tokens(tmp_path):
    tokens, tags = ["john", "made", "time"], ["B-PER", "O", "O"]
    rows = [{"tokens": tokens, "tags": tags, "place": "paris"}, {"tokens": ["time"] * 30, "tags": ["O"] * 30, "place": ""}]
    without_template, examples, _ = fit_task(tmp_path, TokenClassification(), rows)
    plain_encoded = without_template.encode(examples, WORDS, 16)
    task, examples, tokenizer = fit_task(tmp_path, TokenClassification(template="[{place}] {tokens} [end]"), rows)
    encoded = task.encode(examples, tokenizer, 18)  # two more, for the special tokens
    assert [to_tokens(ids, tokenizer)[1] for ids in encoded.input_ids] == ["[paris]"] + ["[?]"] * (len(encoded.input_ids) - 1)
    assert [to_tokens(ids, tokenizer)[-2] for ids in encoded.input_ids] == ["[end]"] * len(encoded.input_ids)
    assert len(encoded.input_ids) == len(plain_encoded.input_ids)
    labels, expected = (
        encoded_examples.targets["label"][encoded_examples.targets["label"] != -100]
        for encoded_examples in (encoded, plain_encoded)
    )
    assert labels.tolist() == expected.tolist()
    for encoded_examples, plain_ids, window, plain_window in zip(
        encoded.input_ids, plain_encoded.input_ids, encoded.metadata, plain_encoded.metadata, strict=True
    ):
        assert encoded_examples[window.positions].tolist() == plain_ids[plain_window.positions].tolist()


def test_special_tokens_of_columns_need_jsonl_not_conll(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("john B-PER\nmade O\n")
    assert next(iter(TokenClassification(template="[news] {tokens}").read(path))).special_tokens == ("[news]",)
    with pytest.raises(UserError, match=r"task.template has a column \{place\}.*use \.jsonl"):
        list(TokenClassification(template="[{place}] {tokens}").read(path))


def squad_paragraph(context, question, answer, **fields):
    answers = {"text": answer, "answer_start": context.index(answer)}
    return {"context": context, "qas": [{"id": "1", "question": question, "answers": [answers], **fields}]}


def test_special_tokens_keep_answer_positions(tmp_path):
    paragraphs = [squad_paragraph("the people made water", "what is made", "water", speaker="mary")]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [{"title": "news", "paragraphs": paragraphs}]}))
    task = QuestionAnswering(template="[{speaker}] {question} [{title}] {context} [end]")
    examples = list(task.read(path))
    task = task.fit(examples)
    tokenizer = WORDS.with_special_tokens(task.special_tokens)
    encoded = task.encode(examples, tokenizer, 64)
    ids, start, end = encoded.input_ids[0], encoded.targets["start"][0], encoded.targets["end"][0]
    assert ids[start : end + 1].tolist() == WORDS.encode("water").ids
    sequence_tokens = to_tokens(ids, tokenizer)
    assert sequence_tokens[:2] == ["[CLS]", "[mary]"] and sequence_tokens[-2:] == ["[end]", "[SEP]"]
    assert (
        encoded.token_type_ids[0][sequence_tokens.index("[news]")] == 1
        and encoded.token_type_ids[0][sequence_tokens.index("[news]") - 1] == 0
    )
    logits = np.full((len(ids), 2), -9.0)
    logits[start, 0] = logits[end, 1] = 9.0
    assert task.decode([logits], encoded, examples)[0].answer == "water"
    with pytest.raises(UserError, match="the question, its paragraph and its article have no field 'nobody'"):
        list(QuestionAnswering(template="[{nobody}] {question}").read(path))


def test_special_tokens_of_multiple_choice(tmp_path):
    rows = [{"context": "the people", "options": ["of", "time", "it"], "label": 1, "level": 3}]
    task, examples, tokenizer = fit_task(
        tmp_path, MultipleChoice(template="[level={level}] {context} [option] {options}"), rows
    )
    encoded = task.encode(examples, tokenizer, 16)
    for ids, option in zip(encoded.input_ids, ["of", "time", "it"], strict=True):
        expected = ["[CLS]", "[level=3]", "the", "people", "[SEP]", "[option]", option, "[SEP]"]
        assert to_tokens(ids, tokenizer) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("[way]", "it contains no text"),
        ("[way] {txt}", r"\{txt\} is not allowed there; a template has \{text\} \{text_b\}"),
        ("{text_b} {text}", r"\{text\} is not allowed there"),
        ("way: {text}", "w is not allowed there"),
        ("[SEP] {text}", r"\[SEP\] is not allowed there"),
    ],
)
def test_invalid_template_is_rejected(tmp_path, template, message):
    with pytest.raises(UserError, match=message):
        list(TextClassification(template=template).read(write_jsonl(tmp_path, ROWS)))


def test_template_missing_column_error(tmp_path):
    with pytest.raises(UserError, match=r"line 1 has no column 'way'; its columns: text, direction"):
        list(TextClassification(template="[{way}] {text}").read(write_jsonl(tmp_path, ROWS)))


def test_template_column_with_too_many_values_is_rejected(tmp_path):
    rows = [{"text": "the", "id": n, "label": n % 2} for n in range(1001)]
    with pytest.raises(UserError, match=r"makes 1,002 special tokens, more than 1,000"):
        fit_task(tmp_path, TextClassification(template="[{id}] {text}"), rows)


def test_special_tokens_survive_config_round_trip(tmp_path):
    task, examples, tokenizer = fit_task(tmp_path, TextClassification(template=TEMPLATE), ROWS)
    restored = from_dict(TaskConfig, {"kind": "classify", **to_dict(task)})
    assert [ids.tolist() for ids in restored.encode(examples, tokenizer, 16).input_ids] == [
        ids.tolist() for ids in task.encode(examples, tokenizer, 16).input_ids
    ]
    assert tokenizer.with_special_tokens(task.special_tokens).json_bytes == tokenizer.json_bytes
    with pytest.raises(UserError, match=r"has no special token \[\?\]"):
        task.encode(examples, WORDS, 16)


def test_special_tokens_with_hex_payloads(tmp_path):
    rows = [dict(row, text=text) for row, text in zip(ROWS, ("1603", "ff"), strict=True)]
    task, examples, tokenizer = fit_task(
        tmp_path, TextClassification(template=TEMPLATE, hex=True), rows, Tokenizer(build_hex_tokenizer(SPECIAL_TOKENS))
    )
    assert to_tokens(task.encode(examples, tokenizer, 16).input_ids[0], tokenizer) == [
        "[CLS]",
        "[way=c]",
        "[TCP]",
        "16",
        "03",
        "[SEP]",
    ]
