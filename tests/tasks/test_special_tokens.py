"""Guide tokens: columns of a row become special tokens beside its texts, in every task, and no text can spell them."""

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
from tests.conftest import PIECES

WORDS = Tokenizer.from_vocab(PIECES)
BYTES = Tokenizer(
    assemble_tokenizer("byte", build_model(train_vocabulary("byte", [], 300, special_tokens=SPECIAL_TOKENS)), lowercase=False)
)
TEMPLATE = "[way={direction}] [{transport}] {text}"
ROWS = [
    {"text": "the people", "direction": "c", "transport": "TCP", "label": "a"},
    {"text": "of time", "direction": "s", "transport": "UDP", "label": "b"},
]


def written(tmp_path, rows, name="a.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def taught(tmp_path, task, rows, tokenizer=WORDS):
    """The task as it is after fitting, its examples, and the tokenizer with its guides."""
    examples = list(task.read(written(tmp_path, rows)))
    task = task.fitted(examples)
    return task, examples, tokenizer.with_special_tokens(task.guides)


def pieces(ids, tokenizer):
    return [tokenizer.pieces[number] for number in ids]


def test_values_of_columns_stand_before_the_text(tmp_path):
    task, examples, tokenizer = taught(tmp_path, TextClassification(template=TEMPLATE), ROWS)
    assert task.guides == ("[?]", "[TCP]", "[UDP]", "[way=?]", "[way=c]", "[way=s]")
    encoded = task.encode(examples, tokenizer, 16)
    assert pieces(encoded.input_ids[0], tokenizer) == ["[CLS]", "[way=c]", "[TCP]", "the", "people", "[SEP]"]
    assert pieces(encoded.input_ids[1], tokenizer) == ["[CLS]", "[way=s]", "[UDP]", "of", "time", "[SEP]"]
    assert min(tokenizer.backend_tokenizer.token_to_id(name) for name in task.guides) == len(WORDS)
    assert tokenizer.is_special[-len(task.guides) :].all()


def test_a_value_training_did_not_meet_and_a_text_without_a_row_have_the_token_of_others(tmp_path):
    task, _, tokenizer = taught(tmp_path, TextClassification(template=TEMPLATE), ROWS)
    rows = [{"text": "the", "direction": "x", "transport": None}, {"text": "the", "direction": " c ", "transport": ""}]
    examples = [*task.read(written(tmp_path, rows)), ClassificationExample("the")]
    found = [pieces(one[1:3], tokenizer) for one in task.encode(examples, tokenizer, 16).input_ids]
    assert found == [["[way=?]", "[?]"], ["[way=c]", "[?]"], ["[way=?]", "[?]"]]


def test_the_columns_of_guides_are_known_and_texts_are_none_of_them():
    assert TextClassification(template="[way={way}] {text} [reply] [by={who}:{way}] {text_b}").template_columns() == [
        "way",
        "who",
        "way",
    ]
    assert TextClassification().template_columns() == []


@pytest.mark.parametrize("tokenizer", [WORDS, BYTES], ids=["wordpiece", "byte"])
def test_a_text_that_spells_a_guide_is_only_text(tmp_path, tokenizer):
    task, _, longer = taught(tmp_path, TextClassification(template=TEMPLATE), ROWS, tokenizer)
    longer.save(tmp_path)
    for known in (longer, Tokenizer.load(tmp_path)):
        ids = task.encode([ClassificationExample("[way=c] the [TCP]")], known, 64).input_ids[0]
        assert ids[3:-1].tolist() == tokenizer.encode("[way=c] the [TCP]").ids  # as if there were no guides
        assert (ids >= len(tokenizer)).sum() == 2  # the two of the template


def test_guides_are_in_every_window_and_never_cut(tmp_path):
    rows = [dict(ROWS[0], text="of and " * 20), ROWS[1]]
    for long, count in (("truncate", 1), ("window", 3), ("hierarchical", 3)):
        task = TextClassification(template="[{direction}] {text} [end]", long=long, stride=15)
        task, examples, tokenizer = taught(tmp_path, task, rows)
        encoded = task.encode(examples, tokenizer, 20)
        assert len(encoded.input_ids) == count + 1 and len(encoded.input_ids[0]) == 20
        for ids in encoded.input_ids[:-1]:
            names = pieces(ids, tokenizer)
            assert names[:2] == ["[CLS]", "[c]"] and names[-2:] == ["[end]", "[SEP]"]


def test_guides_that_fill_the_length_are_refused(tmp_path):
    task, examples, tokenizer = taught(tmp_path, TextClassification(template="[a] [b] [c] [d] [e] {text}"), ROWS)
    with pytest.raises(UserError, match="5 guide tokens leave no room for text in 8 tokens"):
        task.encode(examples, tokenizer, 8)


@pytest.mark.parametrize("kind", [TextClassification, TextRegression])
def test_guides_of_a_pair_stand_before_the_text_they_are_written_before(tmp_path, kind):
    rows = [dict(row, text_b="it is", label=n) for n, row in enumerate(ROWS)]
    task, examples, tokenizer = taught(tmp_path, kind(template="[{direction}] {text} [to] {text_b} [{transport}]"), rows)
    encoded = task.encode(examples, tokenizer, 32)
    wanted = ["[CLS]", "[c]", "the", "people", "[SEP]", "[to]", "it", "is", "[TCP]", "[SEP]"]
    assert pieces(encoded.ids[0], tokenizer) == wanted
    assert encoded.segments[0].tolist() == [0] * 5 + [1] * 5
    task, examples, tokenizer = taught(
        tmp_path, kind(template="[{direction}] {text} [to] {text_b} [x]", pair=CrossAttentionPair()), rows
    )
    first, second = task.encode(examples, tokenizer, 32).ids[:2]
    assert pieces(first, tokenizer) == ["[CLS]", "[c]", "the", "people", "[SEP]"]
    assert pieces(second, tokenizer) == ["[CLS]", "[to]", "it", "is", "[x]", "[SEP]"]


def test_tags_stay_with_their_tokens(tmp_path):
    tokens, tags = ["john", "made", "time"], ["B-PER", "O", "O"]
    rows = [{"tokens": tokens, "tags": tags, "place": "paris"}, {"tokens": ["time"] * 30, "tags": ["O"] * 30, "place": ""}]
    bare, examples, _ = taught(tmp_path, TokenClassification(), rows)
    plainly = bare.encode(examples, WORDS, 16)
    task, examples, tokenizer = taught(tmp_path, TokenClassification(template="[{place}] {tokens} [end]"), rows)
    encoded = task.encode(examples, tokenizer, 18)  # two more, for the guides
    assert [pieces(ids, tokenizer)[1] for ids in encoded.input_ids] == ["[paris]"] + ["[?]"] * (len(encoded.input_ids) - 1)
    assert [pieces(ids, tokenizer)[-2] for ids in encoded.input_ids] == ["[end]"] * len(encoded.input_ids)
    assert len(encoded.input_ids) == len(plainly.input_ids)
    labels, wanted = (one.targets["label"][one.targets["label"] != -100] for one in (encoded, plainly))
    assert labels.tolist() == wanted.tolist()
    for one, same, ours, theirs in zip(encoded.input_ids, plainly.input_ids, encoded.metadata, plainly.metadata, strict=True):
        assert one[ours.places].tolist() == same[theirs.places].tolist()


def test_columns_of_conll_have_no_value_a_sentence(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("john B-PER\nmade O\n")
    assert next(iter(TokenClassification(template="[news] {tokens}").read(path))).guides == ("[news]",)
    with pytest.raises(UserError, match=r"a guide token of \{place\} .* write \.jsonl"):
        list(TokenClassification(template="[{place}] {tokens}").read(path))


def asked(context, question, answer, **more):
    found = {"text": answer, "answer_start": context.index(answer)}
    return {"context": context, "qas": [{"id": "1", "question": question, "answers": [found], **more}]}


def test_answers_are_found_where_they_stand(tmp_path):
    paragraphs = [asked("the people made water", "what is made", "water", speaker="mary")]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [{"title": "news", "paragraphs": paragraphs}]}))
    task = QuestionAnswering(template="[{speaker}] {question} [{title}] {context} [end]")
    examples = list(task.read(path))
    task = task.fit(examples)
    tokenizer = WORDS.with_special_tokens(task.guides)
    encoded = task.encode(examples, tokenizer, 64)
    ids, start, end = encoded.input_ids[0], encoded.targets["start"][0], encoded.targets["end"][0]
    assert ids[start : end + 1].tolist() == WORDS.encode("water").ids
    names = pieces(ids, tokenizer)
    assert names[:2] == ["[CLS]", "[mary]"] and names[-2:] == ["[end]", "[SEP]"]
    assert encoded.token_type_ids[0][names.index("[news]")] == 1 and encoded.token_type_ids[0][names.index("[news]") - 1] == 0
    scores = np.full((len(ids), 2), -9.0)
    scores[start, 0] = scores[end, 1] = 9.0
    assert task.decode([scores], encoded, examples)[0].text == "water"
    with pytest.raises(UserError, match="neither it nor its paragraph nor its article has a field 'nobody'"):
        list(QuestionAnswering(template="[{nobody}] {question}").read(path))


def test_every_option_has_the_guides_of_its_row(tmp_path):
    rows = [{"context": "the people", "options": ["of", "time", "it"], "label": 1, "level": 3}]
    task, examples, tokenizer = taught(tmp_path, MultipleChoice(template="[level={level}] {context} [option] {options}"), rows)
    encoded = task.encode(examples, tokenizer, 16)
    for ids, option in zip(encoded.input_ids, ["of", "time", "it"], strict=True):
        wanted = ["[CLS]", "[level=3]", "the", "people", "[SEP]", "[option]", option, "[SEP]"]
        assert pieces(ids, tokenizer) == wanted


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("[way]", "it names no text"),
        ("[way] {txt}", r"\{txt\} cannot stand there; it is made of \{text\} \{text_b\}"),
        ("{text_b} {text}", r"\{text\} cannot stand there"),
        ("way: {text}", "w cannot stand there"),
        ("[SEP] {text}", r"\[SEP\] cannot stand there"),
    ],
)
def test_a_template_that_means_nothing_is_refused(tmp_path, template, fault):
    with pytest.raises(UserError, match=fault):
        list(TextClassification(template=template).read(written(tmp_path, ROWS)))


def test_a_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"line 1 has no column 'way', only: text, direction"):
        list(TextClassification(template="[{way}] {text}").read(written(tmp_path, ROWS)))


def test_a_column_of_too_many_values_is_refused(tmp_path):
    rows = [{"text": "the", "id": n, "label": n % 2} for n in range(1001)]
    with pytest.raises(UserError, match=r"makes 1,002 guide tokens, more than 1,000"):
        taught(tmp_path, TextClassification(template="[{id}] {text}"), rows)


def test_guides_survive_a_config_and_a_second_training_keeps_them(tmp_path):
    task, examples, tokenizer = taught(tmp_path, TextClassification(template=TEMPLATE), ROWS)
    again = from_dict(TaskConfig, {"kind": "classify", **to_dict(task)})
    assert [one.tolist() for one in again.encode(examples, tokenizer, 16).ids] == [
        one.tolist() for one in task.encode(examples, tokenizer, 16).input_ids
    ]
    assert tokenizer.with_special_tokens(task.guides).json_bytes == tokenizer.json_bytes
    with pytest.raises(UserError, match=r"has no guide token \[\?\]"):
        task.encode(examples, WORDS, 16)


def test_hex_payloads_have_guides_too(tmp_path):
    rows = [dict(row, text=text) for row, text in zip(ROWS, ("1603", "ff"), strict=True)]
    task, examples, tokenizer = taught(
        tmp_path, TextClassification(template=TEMPLATE, hex=True), rows, Tokenizer(build_hex_tokenizer(SPECIAL_TOKENS))
    )
    assert pieces(task.encode(examples, tokenizer, 16).input_ids[0], tokenizer) == [
        "[CLS]",
        "[way=c]",
        "[TCP]",
        "16",
        "03",
        "[SEP]",
    ]
