"""Token classification: CoNLL and JSON files, windows, document context, constrained decoding and metrics."""

import gc
import itertools
import json
import lzma
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks import token_classification
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.scorers.conlleval import get_entities
from bertsmith.tasks.sequences import max_context_window
from bertsmith.tasks.tag_schemes import detect_scheme, is_valid_sequence, tag_marginals, viterbi_decode
from bertsmith.tasks.token_classification import (
    IGNORE_INDEX,
    TokenClassification,
    TokenClassificationPrediction,
)
from bertsmith.tasks.words import join_tokens, sentence_from_text
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


def write_file(folder, text, name="train.txt"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def gold_logits(task, encoded):
    """Logits of a model that predicts every target."""
    ends = np.cumsum([len(ids) for ids in encoded.input_ids])[:-1]
    return [
        np.eye(task.num_outputs + 1)[np.where(labels == IGNORE_INDEX, -1, labels)][:, :-1]
        for labels in np.split(encoded.targets["label"], ends)
    ]


def make_sentence(tokens, tags, **fields):
    return Sentence(tokens=tuple(tokens.split()), tags=tuple(tags.split()), **fields)


def sequence_tokens(tokenizer, encoded):
    """Tokens of every sequence, without [CLS] and [SEP]."""
    return [" ".join(tokenizer.id_to_token[i] for i in ids[1:-1]) for ids in encoded.input_ids]


def test_conll_sentences_have_line_numbers(tmp_path):
    first, second = TokenClassification().read(write_file(tmp_path, CONLL))
    assert (first.tokens, first.tags, first.line) == (("the", "people", "."), ("B-PER", "I-PER", "O"), 3)
    assert (second.tokens, second.tags, second.location) == (("his",), ("B-LOC",), f"{tmp_path / 'train.txt'}, line 8")


def test_documents_start_at_docstart_or_new_document_value(tmp_path):
    assert [example.document for example in TokenClassification().read(write_file(tmp_path, CONLL))] == ["1", "2"]
    assert {example.document for example in TokenClassification().read(write_file(tmp_path, "the O\n\nhis O\n\n"))} == {
        "0"
    }  # a file without boundaries is one document
    rows = [{"tokens": ["the"], "tags": ["O"], "document": name} for name in ("a", "a", 7)]
    path = write_file(tmp_path, "\n".join(map(json.dumps, [*rows, {**rows[0], "document": []}])), "a.jsonl")
    assert [example.document for example in TokenClassification(skip_bad=True).read(path)] == ["a", "a", "7"]
    with pytest.raises(UserError, match="line 4: document is not a text"):
        list(TokenClassification().read(path))


def test_conll_columns_compression_tabs_and_crlf(tmp_path):
    tags = [example.tags for example in TokenClassification(columns={"tags": "1"}).read(write_file(tmp_path, CONLL))]
    assert tags == [("DT", "NN", "."), ("PR",)]
    path = tmp_path / "test.txt.xz"
    path.write_bytes(lzma.compress("\ufeff天\tB-LOC\r\n\u3000\tO\r\n \tO\r\n\r\n".encode()))
    assert [(example.tokens, example.tags) for example in TokenClassification().read(path)] == [
        (("天", "\u3000", " "), ("B-LOC", "O", "O"))
    ]


def test_conll_single_column_has_no_tags(tmp_path, tokenizer):
    task, (example,) = TokenClassification(labels=("O",)), TokenClassification().read(write_file(tmp_path, "the\npeople\n"))
    assert example.tags is None and task.encode([example], tokenizer, 16).targets == {}
    with pytest.raises(UserError, match="no sentence has gold tags"):
        task.compute_metrics([TokenClassificationPrediction(("O", "O"))], [example])


def test_token_classification_reads_json_lines(tmp_path):
    rows = [{"words": ["the", "people"], "tags": ["O", "B-X"]}, {"words": ["x"], "tags": []}]
    path = write_file(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")
    with pytest.raises(UserError, match="line 2: 1 tokens but 0 tags"):
        list(TokenClassification(columns={"tokens": "words"}).read(path))
    reader = TokenClassification(columns={"tokens": "words"}, skip_bad=True).read(path)
    assert [example.tags for example in reader] == [("O", "B-X")] and reader.num_skipped == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [("people", "1 columns, but the first row of the file has 2"), ("\tO", "no token"), ("people\t", "no tag")],
)
def test_conll_bad_row_raises_or_skips_sentence(tmp_path, row, message):
    path = write_file(tmp_path, f"the\tO\n\nhis\tO\n{row}\n\nher\tO\n")
    with pytest.raises(UserError, match=f"train.txt, line 4: .*{message}.*skip_bad"):
        list(TokenClassification().read(path))
    reader = TokenClassification(skip_bad=True).read(path)
    assert [example.tokens for example in reader] == [("the",), ("her",)] and reader.num_skipped == 1


def test_token_classification_fit_finds_labels_and_scheme(tmp_path):
    task = TokenClassification().fit(list(TokenClassification().read(write_file(tmp_path, CONLL))))
    assert task.labels == ("B-LOC", "B-PER", "I-PER", "O") and task.scheme == "bio" and task.num_outputs == 4
    assert from_dict(TokenClassification, to_dict(task)) == task


def test_token_classification_unknown_tag_error(tmp_path):
    with pytest.raises(UserError, match=r"train.txt, line 3: the tag 'I-PER' is not in task.labels; did you mean 'B-PER'"):
        TokenClassification(labels=("B-PER", "B-LOC", "O")).fit(list(TokenClassification().read(write_file(tmp_path, CONLL))))


def test_token_classification_labels_first_subword(tokenizer):
    task = TokenClassification(labels=("B-X", "O"))
    encoded = task.encode([make_sentence("the zebra 天地 .", "O B-X O B-NEW")], tokenizer, 32)
    tokens = [tokenizer.id_to_token[i] for i in encoded.input_ids[0]]
    assert tokens == ["[CLS]", "the", "z", *("##e", "##b", "##r", "##a"), "天", "地", ".", "[SEP]"]
    labels = encoded.targets["label"].tolist()
    assert labels == [
        IGNORE_INDEX,
        1,
        0,
        *[IGNORE_INDEX] * 4,
        1,
        IGNORE_INDEX,
        IGNORE_INDEX,
        IGNORE_INDEX,
    ]  # B-NEW is not a label of the task


def test_token_classification_tokens_without_subwords_are_outside(tokenizer):
    task = TokenClassification(labels=("B-X", "I-X", "O"), scheme="bio")
    example = Sentence(tokens=("\u200b", "the", "\x07", "people", " "), tags=("O", "B-X", "O", "B-X", "O"))
    encoded = task.encode([example], tokenizer, 16)
    (prediction,) = task.decode(gold_logits(task, encoded), encoded, [example])
    assert prediction.tags == example.tags and [(e.start, e.end) for e in prediction.entities] == [(1, 2), (3, 4)]
    empty = Sentence(tokens=("\x07",), tags=("O",))
    encoded = task.encode([empty], tokenizer, 16)
    assert task.decode([np.zeros((2, 3))], encoded, [empty])[0].tags == ("O",)


@pytest.mark.parametrize("length", [6, 9, 16, 40])
def test_token_classification_windows_round_trip(tokenizer, length):
    rng = np.random.default_rng(0)
    words = [str(rng.choice(["the", "zebra", "天", "people", "\x07", "mm"])) for _ in range(60)]
    tags = ["O" if word == "\x07" else str(rng.choice(["B-X", "B-Y", "O"])) for word in words]
    examples = [Sentence(tokens=tuple(words), tags=tuple(tags)), make_sentence("the", "B-X")]
    task = TokenClassification(overlap=4).fit(examples)
    encoded = task.encode(examples, tokenizer, length)
    assert max(map(len, encoded.input_ids)) <= length and encoded.example_index.tolist().count(0) > 1
    assert (encoded.targets["label"] != IGNORE_INDEX).sum() == sum(word != "\x07" for word in words) + 1  # each token once
    predictions = task.decode(gold_logits(task, encoded), encoded, examples)
    assert [prediction.tags for prediction in predictions] == [example.tags for example in examples]


def test_token_classification_windows_take_time_in_proportion_to_the_words(tokenizer):
    """A line of 3.3 million quotes was not answered in a minute: every window looked at every word."""
    task, seconds = TokenClassification(labels=("B-X", "O"), overlap=4), []
    for count in (10_000, 80_000):
        example = Sentence(tokens=("the",) * count)
        gc.collect()
        gc.disable()  # a collection takes as long as the other tests have left objects
        start = time.process_time()
        assert len(task.encode([example], tokenizer, 16).input_ids) > count // 20
        seconds.append(time.process_time() - start)
        gc.enable()
    assert seconds[1] < 20 * seconds[0]  # 8 times as many words; 40 times as long and more, if it were quadratic


@pytest.mark.parametrize(
    ("row", "length"), [({"text": '"' * 11}, "11 words"), ({"tokens": ["a"] * 11}, "11 words"), ({"text": "a" * 99}, "99 char")]
)
def test_token_classification_of_a_text_that_is_too_long_is_refused(tmp_path, monkeypatch, row, length):
    monkeypatch.setattr(token_classification, "MAX_WORDS", 10)
    monkeypatch.setattr(token_classification, "MAX_CHARACTERS", 98)
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"rows\.jsonl, line 1: a text of " + length):
        list(TokenClassification(labels=("B-X", "O")).read_requests(tmp_path / "rows.jsonl"))


def test_max_context_window():
    windows = [(0, 8), (4, 12), (8, 14)]
    assert max_context_window(windows, 14).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_token_classification_truncated_entities_lower_recall(tokenizer):
    examples = [make_sentence("the people . his time", "B-X I-X O B-X I-X")]
    task = TokenClassification(long_text="truncate").fit(examples)
    encoded = task.encode(examples, tokenizer, 5)
    predictions = task.decode(gold_logits(task, encoded), encoded, examples)
    assert predictions[0].tags == ("B-X", "I-X", "O", "O", "O")
    metrics = task.compute_metrics(predictions, examples)
    assert (metrics["precision"], metrics["recall"]) == (1, 0.5) and metrics["accuracy"] == 3 / 5


def test_part_of_speech_tags_have_only_accuracy():
    gold = [make_sentence("the people", "DT NN")]
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
        ("bioes", ["B M E S", "S"]),  # Chinese word segmentation
        ("any", ["NN VB", "DT"]),
        ("bio", [*["B-X I-X"] * 99, "I-X"]),  # one invalid sentence of a hundred
    ],
)
def test_detect_scheme(scheme, sentences):
    assert detect_scheme([sentence.split() for sentence in sentences]) == scheme


@pytest.mark.parametrize(
    ("scheme", "labels"), [("bio", "B-X I-X B-Y I-Y O"), ("bioes", "B-X I-X E-X S-X O"), ("bioes", "B M E S")]
)
def test_viterbi_decode_matches_brute_force(scheme, labels):
    labels, rng = labels.split(), np.random.default_rng(1)
    for length in (1, 2, 4):
        emissions = rng.normal(size=(length, len(labels)))
        paths = [
            p for p in itertools.product(range(len(labels)), repeat=length) if is_valid_sequence([labels[i] for i in p], scheme)
        ]
        best = max(paths, key=lambda path: emissions[range(length), path].sum())
        assert tuple(viterbi_decode(emissions, labels, scheme)) == best


def test_token_classification_without_constrained_decoding(tokenizer):
    examples = [make_sentence("the people", "B-X I-X")]
    logits = [np.array([[0, 0], [0.0, 1], [0, 1], [0, 0]])]
    for constrained, tags in ((True, ("B-X", "I-X")), (False, ("I-X", "I-X"))):
        task = TokenClassification(constrained_decoding=constrained).fit(examples)
        encoded = task.encode(examples, tokenizer, 8)
        assert task.decode(logits, encoded, examples)[0].tags == tags


def test_token_classification_of_100k_words(tokenizer):
    examples = [make_sentence("the " * 100_000, "O B-X " * 50_000)]
    task = TokenClassification().fit(examples)
    encoded = task.encode(examples, tokenizer, 512)
    assert task.decode(gold_logits(task, encoded), encoded, examples)[0].tags == examples[0].tags


def make_documents(*texts):
    """One document per text, sentences separated by /, all tags O."""
    return [
        make_sentence(part, " ".join("O" for _ in part.split()), document=str(index))
        for index, text in enumerate(texts)
        for part in text.split(" / ")
    ]


@pytest.mark.parametrize(
    ("context", "length", "seen"),
    [
        (False, 32, ["the way", "his time", "people", "now"]),
        (True, 32, ["the way his time people"] * 3 + ["now"]),
        (True, 6, ["the way his time", "way his time people", "way his time people", "now"]),  # half per side, or all there is
        (True, 4, ["the way", "his time", "time people", "now"]),
        (1, 32, ["the way his", "way his time people", "time people", "now"]),
    ],
)
def test_document_context_fills_max_length(tokenizer, context, length, seen):
    examples = make_documents("the way / his time / people", "now")
    encoded = TokenClassification(context=context).fit(examples).encode(examples, tokenizer, length)
    assert sequence_tokens(tokenizer, encoded) == seen


def test_document_context_has_whole_tokens_without_labels(tokenizer):
    examples = [
        make_sentence("the zebra", "O B-X", document="a"),
        make_sentence("his time \x07", "B-X I-X O", document="a"),
        make_sentence("zebra", "B-X", document="a"),
    ]
    task = TokenClassification(context=True).fit(examples)
    encoded = task.encode(examples, tokenizer, 9)
    assert sequence_tokens(tokenizer, encoded) == [
        "the z ##e ##b ##r ##a his",
        "his time",  # half of the budget is shorter than "zebra"
        "his time z ##e ##b ##r ##a",
    ]
    predictions = task.decode(gold_logits(task, encoded), encoded, examples)
    assert [prediction.tags for prediction in predictions] == [example.tags for example in examples]
    assert (encoded.targets["label"] != IGNORE_INDEX).sum() == 5


@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=12),
    length=st.integers(4, 24),
    context=st.one_of(st.just(True), st.integers(0, 8)),
)
def test_document_context_stays_in_its_document(vocabulary, sizes, length, context):
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
    for index, ids in zip(encoded.example_index, encoded.input_ids, strict=True):
        tokens = {tokenizer.id_to_token[i] for i in ids[1:-1]}
        number = int(examples[index].document)
        assert len(ids) <= length and tokens <= set(han[10 * number : 10 * number + 9])
    predictions = task.decode(gold_logits(task, encoded), encoded, examples)
    assert [prediction.tags for prediction in predictions] == [example.tags for example in examples]


def test_document_context_is_empty_without_a_document(tokenizer):
    examples = [make_sentence("the way", "O O"), make_sentence("his time", "O O")]
    assert sequence_tokens(tokenizer, TokenClassification(context=True).fit(examples).encode(examples, tokenizer, 16)) == [
        "the way",
        "his time",
    ]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-X I-X B-X O", [(0, 2), (2, 3)]),  # BIO
        ("B-X E-X S-X O", [(0, 2), (2, 3)]),  # BIOES
        ("I-X I-X B-X O", [(0, 2), (2, 3)]),  # IOB1: B only between neighbours of one type
        ("I-X I-X O I-X", [(0, 2), (3, 4)]),  # IO
        ("B-X L-X U-X O", [(0, 2), (2, 3)]),  # BILOU
    ],
)
def test_token_classification_keeps_tag_scheme(tokenizer, tags, spans):
    examples = [make_sentence("the people of his", tags)] * 3
    task = TokenClassification().fit(examples)
    encoded = task.encode(examples, tokenizer, 16)
    prediction = task.decode(gold_logits(task, encoded), encoded, examples)[0]
    assert prediction.tags == examples[0].tags
    assert (
        [(entity.start, entity.end) for entity in prediction.entities]
        == [(entity.start, entity.end) for entity in get_entities(tags.split())]
        == spans
    )


def test_token_classification_rejects_transitions_of_wrong_shape():
    with pytest.raises(UserError, match="transitions: 2 labels need a 3 x 3 matrix"):
        from_dict(TokenClassification, {"kind": "tag", "labels": ["B-X", "O"], "transitions": [[0.0, 1.0]]})


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
def test_sentence_from_text_offsets(text, tokens):
    sentence, spans = sentence_from_text(text)
    assert list(sentence.tokens) == tokens.split() == [text[start:end] for start, end in spans]


@given(st.text())
def test_sentence_from_text_skips_only_spaces(text):
    sentence, spans = sentence_from_text(text)
    edges = [position for span in spans for position in span]
    assert edges == sorted(edges) and all(start < end for start, end in spans)
    rest = set(range(len(text))) - {position for span in spans for position in range(*span)}
    assert all(text[position].isspace() for position in rest) and sentence.document is None


def test_token_classification_of_raw_text_of_100k_words(tokenizer):
    text = "the people, " * 50_000
    example, spans = sentence_from_text(text)
    task = TokenClassification(labels=("B-X", "I-X", "O"), scheme="bio", transitions=((0.5,) * 4,) * 4)
    encoded = task.encode([example], tokenizer, 512)
    logits = [
        np.where(ids[:, None] == tokenizer.backend_tokenizer.token_to_id("people"), [3.0, 1, 0], [0.0, 1, 3])
        for ids in encoded.input_ids
    ]
    (prediction,) = task.decode(logits, encoded, [example])
    assert len(prediction.entities) == 50_000
    last = prediction.entities[-1]
    assert text[spans[last.start][0] : spans[last.end - 1][1]] == "people"


@pytest.mark.parametrize("scheme", ["any", "bio"])
def test_tag_marginals_sum_over_all_valid_tag_sequences(scheme):
    labels, rng = ("B-PER", "I-PER", "O"), np.random.default_rng(0)
    emissions, transitions = rng.normal(size=(4, 3)), rng.normal(size=(4, 4))
    expected = np.zeros((4, 3))
    for path in itertools.product(range(3), repeat=4):
        if scheme == "any" or is_valid_sequence([labels[i] for i in path], scheme):
            steps = [transitions[a, b] for a, b in zip((-1, *path), (*path, -1), strict=True)]
            expected[range(4), path] += np.exp(sum(steps) + emissions[range(4), path].sum())
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(tag_marginals(emissions, labels, scheme, transitions), expected, atol=1e-12)
    assert tag_marginals(np.zeros((0, 3)), labels, scheme, transitions).shape == (0, 3)


def test_tag_marginals_without_valid_sequence_are_over_all():
    labels = ("E-PER", "I-PER")  # no sequence can start with either in BIOES
    marginals = tag_marginals(np.zeros((3, 2)), labels, "bioes", np.zeros((3, 3)))
    np.testing.assert_allclose(marginals, np.full((3, 2), 0.5))


def predict_from_logits(task, tokenizer, tokens, logits):
    """The prediction for one sentence whose tokens are one subword each."""
    example = Sentence(tokens=tokens)
    encoded = task.encode([example], tokenizer, 32)
    rows = np.zeros((len(encoded.input_ids[0]), len(task.labels)))
    rows[encoded.metadata[0].positions] = logits
    return task.decode([rows], encoded, [example])[0]


def test_entity_score_is_the_mean_probability_of_its_tags(tokenizer):
    task = TokenClassification(labels=("B-PER", "I-PER", "O"), scheme="bio")
    logits = np.array([[0.0, 0, 3], [2, 0, 0], [0, 1, 0], [0, 0, 1]])
    prediction = predict_from_logits(task, tokenizer, ("the", "people", "of", "now"), logits)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert prediction.tags == ("O", "B-PER", "I-PER", "O") and prediction.scores == pytest.approx(
        [probs[0, 2], probs[1, 0], probs[2, 1], probs[3, 2]]
    )
    text, offsets = join_tokens(("the", "people", "of", "now"))
    assert prediction.to_entities(text, offsets) == [
        {
            "entity_group": "PER",
            "score": pytest.approx((probs[1, 0] + probs[2, 1]) / 2),
            "word": "people of",
            "start": 4,
            "end": 13,
        }
    ]


def test_entity_score_with_a_crf_is_the_mean_marginal(tokenizer):
    transitions = np.random.default_rng(1).normal(size=(4, 4))
    labels = ("B-PER", "I-PER", "O")
    task = TokenClassification(labels=labels, scheme="bio", crf=True, transitions=tuple(map(tuple, transitions.tolist())))
    logits = np.array([[3.0, 0, 0], [0, 4, 0], [0, 0, 2]])
    prediction = predict_from_logits(task, tokenizer, ("the", "people", "now"), logits)
    marginals = tag_marginals(logits, labels, "bio", transitions)
    assert prediction.tags == ("B-PER", "I-PER", "O")
    assert prediction.scores == pytest.approx([marginals[0, 0], marginals[1, 1], marginals[2, 2]])
    (entity,) = prediction.to_entities(*join_tokens(("the", "people", "now")))
    assert entity["score"] == pytest.approx((marginals[0, 0] + marginals[1, 1]) / 2)


def test_word_segmentation_has_no_entity_group_and_part_of_speech_one_entity_per_token(tokenizer):
    task = TokenClassification(labels=("B", "E", "S"))
    words = predict_from_logits(task, tokenizer, ("天", "地", "of"), 9 * np.eye(3)).to_entities(
        *join_tokens(("天", "地", "of"))
    )
    assert [(word["word"], word["start"], word["end"]) for word in words] == [("天地", 0, 2), ("of", 3, 5)]
    assert all(list(word) == ["score", "word", "start", "end"] for word in words)
    task = TokenClassification(labels=("DT", "NN", "O"))
    tags = predict_from_logits(task, tokenizer, ("the", "people", "way", "now"), 9 * np.eye(3)[[0, 1, 1, 2]])
    tagged = tags.to_entities(*join_tokens(("the", "people", "way", "now")))
    assert [(tag["entity_group"], tag["word"]) for tag in tagged] == [("DT", "the"), ("NN", "people"), ("NN", "way")]


def test_join_tokens_puts_no_space_between_chinese_characters():
    assert join_tokens(("Mary", "saw", "天", "地", ".")) == ("Mary saw 天地 .", [(0, 4), (5, 8), (9, 10), (10, 11), (12, 13)])
    assert join_tokens(()) == ("", [])
