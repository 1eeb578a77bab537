"""Tagging: files to sentences, sentences to windows, scores to legal tags, tags to scores."""

import itertools
import json
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks.base import max_context_window
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.scorers.conlleval import get_entities
from bertsmith.tasks.tag_schemes import detect_scheme, is_valid_sequence, viterbi_decode
from bertsmith.tasks.token_classification import (
    IGNORE_INDEX,
    TokenClassification,
    TokenClassificationPrediction,
    sentence_from_text,
)
from bertsmith.tokenization.tokenizer import Tokenizer

CONLL = """-DOCSTART- -X- O

the DT B-PER
people NN I-PER
. . O

-DOCSTART- -X- O
his PR B-LOC

"""


@pytest.fixture(scope="module")
def tokenizer(vocabulary) -> Tokenizer:
    return Tokenizer.load(vocabulary)


def written(folder, text, name="train.txt"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def perfect(task, encoded):
    """Scores of a model that knows every target."""
    cuts = np.cumsum([len(ids) for ids in encoded.ids])[:-1]
    return [
        np.eye(task.outputs + 1)[np.where(one == IGNORE_INDEX, -1, one)][:, :-1]
        for one in np.split(encoded.targets["label"], cuts)
    ]


def sentence(tokens, tags, **words):
    return Sentence(tokens=tuple(tokens.split()), tags=tuple(tags.split()), **words)


def shown(tokenizer, encoded):
    """Every sequence in words, without [CLS] and [SEP]."""
    return [" ".join(tokenizer.pieces[i] for i in ids[1:-1]) for ids in encoded.ids]


def test_conll_columns_are_read_with_the_line_of_each_sentence(tmp_path):
    first, second = TokenClassification().read(written(tmp_path, CONLL))
    assert (first.tokens, first.tags, first.line) == (("the", "people", "."), ("B-PER", "I-PER", "O"), 3)
    assert (second.tokens, second.tags, second.location) == (("his",), ("B-LOC",), f"{tmp_path / 'train.txt'}, line 8")


def test_documents_begin_at_docstart_or_with_another_name(tmp_path):
    assert [one.document for one in TokenClassification().read(written(tmp_path, CONLL))] == ["1", "2"]
    assert {one.document for one in TokenClassification().read(written(tmp_path, "the O\n\nhis O\n\n"))} == {
        "0"
    }  # one, if none is named
    rows = [{"tokens": ["the"], "tags": ["O"], "document": name} for name in ("a", "a", 7)]
    path = written(tmp_path, "\n".join(map(json.dumps, [*rows, {**rows[0], "document": []}])), "a.jsonl")
    assert [one.document for one in TokenClassification(skip_bad=True).read(path)] == ["a", "a", "7"]
    with pytest.raises(UserError, match="line 4: document is not a text"):
        list(TokenClassification().read(path))


def test_other_columns_packed_files_tabs_and_windows_line_ends(tmp_path):
    tags = [one.tags for one in TokenClassification(columns={"tags": "1"}).read(written(tmp_path, CONLL))]
    assert tags == [("DT", "NN", "."), ("PR",)]
    path = tmp_path / "test.txt.xz"
    path.write_bytes(lzma.compress("\ufeff天\tB-LOC\r\n\u3000\tO\r\n \tO\r\n\r\n".encode()))
    assert [(one.tokens, one.tags) for one in TokenClassification().read(path)] == [
        (("天", "\u3000", " "), ("B-LOC", "O", "O"))
    ]


def test_one_column_is_a_file_without_tags(tmp_path, tokenizer):
    task, (example,) = TokenClassification(labels=("O",)), TokenClassification().read(written(tmp_path, "the\npeople\n"))
    assert example.tags is None and task.encode([example], tokenizer, 16).targets == {}
    with pytest.raises(UserError, match="no sentence has tags"):
        task.compute_metrics([TokenClassificationPrediction(("O", "O"))], [example])


def test_json_lines_are_read(tmp_path):
    rows = [{"words": ["the", "people"], "tags": ["O", "B-X"]}, {"words": ["x"], "tags": []}]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")
    with pytest.raises(UserError, match="line 2: 1 tokens have 0 tags"):
        list(TokenClassification(columns={"tokens": "words"}).read(path))
    reading = TokenClassification(columns={"tokens": "words"}, skip_bad=True).read(path)
    assert [one.tags for one in reading] == [("O", "B-X")] and reading.num_skipped == 1


@pytest.mark.parametrize(
    ("row", "fault"), [("people", "1 columns, where the file begins with 2"), ("\tO", "no token"), ("people\t", "no tag")]
)
def test_a_bad_row_is_named_or_its_sentence_left_out(tmp_path, row, fault):
    path = written(tmp_path, f"the\tO\n\nhis\tO\n{row}\n\nher\tO\n")
    with pytest.raises(UserError, match=f"train.txt, line 4: .*{fault}.*skip_bad"):
        list(TokenClassification().read(path))
    reading = TokenClassification(skip_bad=True).read(path)
    assert [one.tokens for one in reading] == [("the",), ("her",)] and reading.num_skipped == 1


def test_labels_and_scheme_are_learnt_and_stay_in_the_config(tmp_path):
    task = TokenClassification().fit(list(TokenClassification().read(written(tmp_path, CONLL))))
    assert task.labels == ("B-LOC", "B-PER", "I-PER", "O") and task.scheme == "bio" and task.num_outputs == 4
    assert from_dict(TokenClassification, to_dict(task)) == task


def test_a_tag_that_is_none_of_the_given_labels_is_named(tmp_path):
    with pytest.raises(UserError, match=r"train.txt, line 3: the tag 'I-PER' is none of task.labels; did you mean 'B-PER'"):
        TokenClassification(labels=("B-PER", "B-LOC", "O")).fit(list(TokenClassification().read(written(tmp_path, CONLL))))


def test_only_the_first_piece_of_a_token_carries_its_label(tokenizer):
    task = TokenClassification(labels=("B-X", "O"))
    encoded = task.encode([sentence("the zebra 天地 .", "O B-X O B-NEW")], tokenizer, 32)
    pieces = [tokenizer.pieces[i] for i in encoded.input_ids[0]]
    assert pieces == ["[CLS]", "the", "z", *("##e", "##b", "##r", "##a"), "天", "地", ".", "[SEP]"]
    here = encoded.targets["label"].tolist()
    assert here == [
        IGNORE_INDEX,
        1,
        0,
        *[IGNORE_INDEX] * 4,
        1,
        IGNORE_INDEX,
        IGNORE_INDEX,
        IGNORE_INDEX,
    ]  # B-NEW was never learnt


def test_tokens_without_a_piece_keep_their_place_and_are_outside(tokenizer):
    task = TokenClassification(labels=("B-X", "I-X", "O"), scheme="bio")
    example = Sentence(tokens=("\u200b", "the", "\x07", "people", " "), tags=("O", "B-X", "O", "B-X", "O"))
    encoded = task.encode([example], tokenizer, 16)
    (answer,) = task.decode(perfect(task, encoded), encoded, [example])
    assert answer.tags == example.tags and [(e.start, e.end) for e in answer.entities] == [(1, 2), (3, 4)]
    empty = Sentence(tokens=("\x07",), tags=("O",))
    encoded = task.encode([empty], tokenizer, 16)
    assert task.decode([np.zeros((2, 3))], encoded, [empty])[0].tags == ("O",)


@pytest.mark.parametrize("length", [6, 9, 16, 40])
def test_long_sentences_are_windowed_and_stitched_without_loss(tokenizer, length):
    rng = np.random.default_rng(0)
    words = [str(rng.choice(["the", "zebra", "天", "people", "\x07", "mm"])) for _ in range(60)]
    tags = ["O" if word == "\x07" else str(rng.choice(["B-X", "B-Y", "O"])) for word in words]
    examples = [Sentence(tokens=tuple(words), tags=tuple(tags)), sentence("the", "B-X")]
    task = TokenClassification(overlap=4).fit(examples)
    encoded = task.encode(examples, tokenizer, length)
    assert max(map(len, encoded.input_ids)) <= length and encoded.example_index.tolist().count(0) > 1
    assert (encoded.targets["label"] != IGNORE_INDEX).sum() == sum(word != "\x07" for word in words) + 1  # once each
    answers = task.decode(perfect(task, encoded), encoded, examples)
    assert [answer.tags for answer in answers] == [example.tags for example in examples]


def test_a_token_is_scored_where_it_sees_most():
    windows = [(0, 8), (4, 12), (8, 14)]
    assert max_context_window(windows, 14).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_entities_lost_to_truncation_are_misses(tokenizer):
    examples = [sentence("the people . his time", "B-X I-X O B-X I-X")]
    task = TokenClassification(long="truncate").fit(examples)
    encoded = task.encode(examples, tokenizer, 5)
    answers = task.decode(perfect(task, encoded), encoded, examples)
    assert answers[0].tags == ("B-X", "I-X", "O", "O", "O")
    judged = task.compute_metrics(answers, examples)
    assert (judged["precision"], judged["recall"]) == (1, 0.5) and judged["accuracy"] == 3 / 5


def test_parts_of_speech_have_accuracy_alone():
    gold = [sentence("the people", "DT NN")]
    task = TokenClassification().fit(gold)
    assert task.scheme == "any" and task.compute_metrics([TokenClassificationPrediction(("DT", "VB"))], gold) == {
        "accuracy": 0.5
    }


@pytest.mark.parametrize(
    ("scheme", "sentences"),
    [
        ("bio", ["B-X I-X O", "O B-X"]),
        ("any", ["I-X I-X O", "O I-X B-X"]),  # IOB1
        ("bioes", ["B-X I-X E-X O S-X", "S-X"]),
        ("bioes", ["B M E S", "S"]),  # words of Chinese
        ("any", ["NN VB", "DT"]),
        ("bio", [*["B-X I-X"] * 99, "I-X"]),  # one slip of a hundred
    ],
)
def test_the_scheme_is_what_the_tags_keep_to(scheme, sentences):
    assert detect_scheme([one.split() for one in sentences]) == scheme


@pytest.mark.parametrize(
    ("scheme", "labels"), [("bio", "B-X I-X B-Y I-Y O"), ("bioes", "B-X I-X E-X S-X O"), ("bioes", "B M E S")]
)
def test_the_best_path_is_the_best_of_all_legal_ones(scheme, labels):
    labels, rng = labels.split(), np.random.default_rng(1)
    for length in (1, 2, 4):
        scores = rng.normal(size=(length, len(labels)))
        paths = [
            p for p in itertools.product(range(len(labels)), repeat=length) if is_valid_sequence([labels[i] for i in p], scheme)
        ]
        best = max(paths, key=lambda path: scores[range(length), path].sum())
        assert tuple(viterbi_decode(scores, labels, scheme)) == best


def test_legal_decoding_can_be_left_out(tokenizer):
    examples = [sentence("the people", "B-X I-X")]
    scores = [np.array([[0, 0], [0.0, 1], [0, 1], [0, 0]])]
    for legal, tags in ((True, ("B-X", "I-X")), (False, ("I-X", "I-X"))):
        task = TokenClassification(legal=legal).fit(examples)
        encoded = task.encode(examples, tokenizer, 8)
        assert task.decode(scores, encoded, examples)[0].tags == tags


def test_a_sentence_of_a_hundred_thousand_words(tokenizer):
    examples = [sentence("the " * 100_000, "O B-X " * 50_000)]
    task = TokenClassification().fit(examples)
    encoded = task.encode(examples, tokenizer, 512)
    assert task.decode(perfect(task, encoded), encoded, examples)[0].tags == examples[0].tags


def documents(*texts):
    """A sentence a full stop, all O, one document a text."""
    return [
        sentence(one, " ".join("O" for _ in one.split()), document=str(number))
        for number, text in enumerate(texts)
        for one in text.split(" / ")
    ]


@pytest.mark.parametrize(
    ("context", "length", "seen"),
    [
        (False, 32, ["the way", "his time", "people", "now"]),
        (True, 32, ["the way his time people"] * 3 + ["now"]),
        (True, 6, ["the way his time", "way his time people", "way his time people", "now"]),  # halves, or what is there
        (True, 4, ["the way", "his time", "time people", "now"]),
        (1, 32, ["the way his", "way his time people", "time people", "now"]),
    ],
)
def test_context_is_of_the_same_document_and_fills_the_room(tokenizer, context, length, seen):
    examples = documents("the way / his time / people", "now")
    encoded = TokenClassification(context=context).fit(examples).encode(examples, tokenizer, length)
    assert shown(tokenizer, encoded) == seen


def test_context_is_whole_tokens_and_no_token_is_answered_for_a_neighbour(tokenizer):
    examples = [
        sentence("the zebra", "O B-X", document="a"),
        sentence("his time \x07", "B-X I-X O", document="a"),
        sentence("zebra", "B-X", document="a"),
    ]
    task = TokenClassification(context=True).fit(examples)
    encoded = task.encode(examples, tokenizer, 9)
    assert shown(tokenizer, encoded) == [
        "the z ##e ##b ##r ##a his",
        "his time",  # a half of the room is less than a zebra
        "his time z ##e ##b ##r ##a",
    ]
    answers = task.decode(perfect(task, encoded), encoded, examples)
    assert [one.tags for one in answers] == [one.tags for one in examples]
    assert (encoded.targets["label"] != IGNORE_INDEX).sum() == 5


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=12),
    length=st.integers(4, 24),
    context=st.one_of(st.just(True), st.integers(0, 8)),
)
def test_context_never_crosses_a_document_and_changes_no_answer(vocabulary, sizes, length, context):
    tokenizer, han = Tokenizer.load(vocabulary), "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕"
    examples = [
        Sentence(
            tokens=tuple(han[10 * number : 10 * number + 9][:size]),
            tags=("B-X", "O") * (size // 2) + ("O",) * (size % 2),
            document=str(number),
        )
        for number, size in sorted(sizes)
    ]
    task = TokenClassification(labels=("B-X", "I-X", "O"), context=context).fit(examples)
    encoded = task.encode(examples, tokenizer, length)
    for owner, ids in zip(encoded.example_index, encoded.input_ids, strict=True):
        pieces = {tokenizer.id_to_token[i] for i in ids[1:-1]}
        number = int(examples[owner].document)
        assert len(ids) <= length and pieces <= set(han[10 * number : 10 * number + 9])
    assert [one.tags for one in task.decode(perfect(task, encoded), encoded, examples)] == [one.tags for one in examples]


def test_a_sentence_of_no_document_stands_alone(tokenizer):
    examples = [sentence("the way", "O O"), sentence("his time", "O O")]
    assert shown(tokenizer, TokenClassification(context=True).fit(examples).encode(examples, tokenizer, 16)) == [
        "the way",
        "his time",
    ]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-X I-X B-X O", [(0, 2), (2, 3)]),  # BIO
        ("B-X E-X S-X O", [(0, 2), (2, 3)]),  # BIOES
        ("I-X I-X B-X O", [(0, 2), (2, 3)]),  # IOB1: B only between neighbours of one type
        ("I-X I-X O I-X", [(0, 2), (3, 4)]),  # IO
        ("B-X L-X U-X O", [(0, 2), (2, 3)]),  # BILOU
    ],
)
def test_every_scheme_is_read_as_it_comes_and_answered_so(tokenizer, tags, found):
    examples = [sentence("the people of his", tags)] * 3
    task = TokenClassification().fit(examples)
    encoded = task.encode(examples, tokenizer, 16)
    answer = task.decode(perfect(task, encoded), encoded, examples)[0]
    assert answer.tags == examples[0].tags
    assert (
        [(one.start, one.end) for one in answer.entities]
        == [(one.start, one.end) for one in get_entities(tags.split())]
        == found
    )


def test_moves_that_do_not_fit_the_labels_are_refused():
    with pytest.raises(UserError, match="2 labels take 3 rows of 3 numbers"):
        from_dict(TokenClassification, {"kind": "tag", "labels": ["B-X", "O"], "moves": [[0.0, 1.0]]})


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Mr. Smith's cat,  in\tRome.", "Mr . Smith ' s cat , in Rome ."),
        ("我在Paris读书。", "我 在 Paris 读 书 。"),
        ("naïve 𝔘nicode 🙂 x\ud83dy", "naïve 𝔘nicode 🙂 x\ud83dy"),
        ("", ""),
        (" \n", ""),
    ],
)
def test_a_raw_text_is_tokens_that_know_their_characters(text, tokens):
    found, spans = sentence_from_text(text)
    assert list(found.tokens) == tokens.split() == [text[start:end] for start, end in spans]


@given(st.text())
def test_the_characters_of_tokens_are_in_order_and_leave_out_only_spaces(text):
    found, spans = sentence_from_text(text)
    edges = [place for span in spans for place in span]
    assert edges == sorted(edges) and all(start < end for start, end in spans)
    rest = set(range(len(text))) - {place for span in spans for place in range(*span)}
    assert all(text[place].isspace() for place in rest) and found.document is None


def test_a_raw_text_of_a_hundred_thousand_words_is_tagged_to_its_end(tokenizer):
    text = "the people, " * 50_000
    example, spans = sentence_from_text(text)
    task = TokenClassification(labels=("B-X", "I-X", "O"), scheme="bio", moves=((0.5,) * 4,) * 4)
    encoded = task.encode([example], tokenizer, 512)
    scores = [
        np.where(ids[:, None] == tokenizer.rust.token_to_id("people"), [3.0, 1, 0], [0.0, 1, 3]) for ids in encoded.input_ids
    ]
    (answer,) = task.decode(scores, encoded, [example])
    assert len(answer.entities) == 50_000
    last = answer.entities[-1]
    assert text[spans[last.start][0] : spans[last.end - 1][1]] == "people"
