"""What is wrong with a text is said before anything is trained on it."""

import json

import pytest

from bertsmith.artifacts import write_manifest
from bertsmith.config import from_dict
from bertsmith.corpus.build import Prepare, build_corpus
from bertsmith.corpus.store import Corpus
from bertsmith.diagnostics.corpus_checks import compute_fertility
from bertsmith.errors import UserError
from tests.conftest import HAN, LETTERS, han
from tests.diagnostics.builders import WORDS, chained, corpus, found, problems, vocabulary


def test_a_healthy_corpus_has_no_finding(text):
    assert found(text) == {}


def test_lines_that_come_again_are_counted(tmp_path):
    often = found(corpus(tmp_path / "often", 3 * chained(60)))
    assert list(often) == ["duplicate lines"] and often["duplicate lines"]["severity"] == "problem"
    assert "(67%)" in often["duplicate lines"]["seen"] and "drop=" in often["duplicate lines"]["setting"]
    assert found(corpus(tmp_path / "dropped", 3 * chained(60), drop=["lines"])) == {}
    some = found(corpus(tmp_path / "some", chained(60) + "\n" + chained(8)))
    assert {name: one["severity"] for name, one in some.items()} == {"duplicate lines": "note"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (chained(60).replace("\n\n", "\n"), "one document of"),
        (chained(60).replace("\n\n", "\n").replace("\n", "\n\n"), "documents is one sentence"),
    ],
)
def test_text_without_documents_is_told(tmp_path, text, told):
    one = found(corpus(tmp_path, text))
    assert list(one) == ["no documents"] and told in one["no documents"]["seen"]
    assert one["no documents"]["setting"] == "objective=masked" and one["no documents"]["severity"] == "problem"


def test_documents_that_are_short_or_few_are_noted(tmp_path):
    lone = "\n\n".join(chained(30, seed=1).replace("\n\n", "\n").splitlines())
    short = found(corpus(tmp_path / "short", chained(40) + "\n" + lone))
    assert {name: one["severity"] for name, one in short.items()} == {"short documents": "note"}
    few = found(corpus(tmp_path / "few", chained(60).replace("\n\n", "\n", 55)))
    assert {name: one["severity"] for name, one in few.items()} == {"few documents": "note"}


def test_a_vocabulary_of_other_words_leaves_words_unknown(tmp_path):
    one = found(corpus(tmp_path, chained(60), [".", *WORDS[:40]]))["wrong vocabulary: unknown words"]
    assert one["severity"] == "problem" and "of the tokens are unknown" in one["seen"]


def test_a_vocabulary_of_crumbs_is_told_by_pieces_a_word(tmp_path):
    crumbs = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *(word + "x" for word in WORDS)]
    place = corpus(tmp_path, chained(60), [".", *crumbs])
    assert compute_fertility(Corpus.open(place)) == pytest.approx(4)
    assert "4.00 pieces" in found(place)["wrong vocabulary: words in crumbs"]["seen"]
    assert problems(place) == ["wrong vocabulary: words in crumbs"]


def test_single_characters_are_no_crumbs(tmp_path):
    assert compute_fertility(Corpus.open(corpus(tmp_path / "han", han(40), [*HAN, "。", "word"]))) is None
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    assert compute_fertility(Corpus.open(corpus(tmp_path / "letters", chained(20), [".", *letters]))) is None


def test_pieces_that_never_occur_are_noted(tmp_path):
    one = found(corpus(tmp_path, chained(300), [".", *WORDS, *(f"{word}x" for word in WORDS), *(f"{word}y" for word in WORDS)]))
    assert {name: two["severity"] for name, two in one.items()} == {"wrong vocabulary: unused pieces": "note"}
    assert "96 of 145 pieces never occur" in one["wrong vocabulary: unused pieces"]["seen"]


def test_too_little_text_for_its_vocabulary_is_told(tmp_path):
    some = [f"{word}{letter}" for word in WORDS for letter in LETTERS]
    assert found(corpus(tmp_path, chained(12), [".", *WORDS, *some]))["too little text"]["severity"] == "problem"


def test_a_tokenizer_that_is_not_the_corpus_own_is_told(tmp_path):
    place = corpus(tmp_path, chained(60))
    other = corpus(tmp_path / "other", chained(60), [".", *reversed(WORDS)])
    (place / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes())
    assert "tokenizer.json is damaged" in found(place)["damaged folder"]["seen"]
    write_manifest(place)
    assert problems(place) == ["wrong vocabulary: another tokenizer"]
    assert "was made with tokenizer" in found(place)["wrong vocabulary: another tokenizer"]["seen"]


def test_a_vocabulary_without_a_mask_is_told(tmp_path):
    place = corpus(tmp_path, chained(60))
    state = json.loads((place / "tokenizer.json").read_text())
    del state["model"]["vocab"]["[MASK]"]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "[MASK]"]
    (place / "tokenizer.json").write_text(json.dumps(state))
    write_manifest(place)
    one = found(place)
    assert list(one) == ["masks missing"] and "has no [MASK]" in one["masks missing"]["seen"]


def test_a_preparation_that_was_interrupted_is_told(tmp_path):
    (tmp_path / "text.txt").write_text(chained(60))
    words = vocabulary(tmp_path, [".", *WORDS])
    values = {"texts": [str(tmp_path / "text.txt")], "tokenizer": str(words), "out": str(tmp_path / "corpus"), "workers": 1}

    def stop(read: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_corpus(from_dict(Prepare, values), stop)
    assert problems(tmp_path / "corpus") == ["stopped half-way"]
    build_corpus(from_dict(Prepare, values))
    assert found(tmp_path / "corpus") == {}


def test_what_is_neither_a_corpus_nor_a_run_is_refused(tmp_path, text):
    with pytest.raises(UserError, match="there is no folder"):
        found(tmp_path / "absent")
    with pytest.raises(UserError, match="neither a corpus nor a checkpoint"):
        found(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(UserError, match="bertsmith import"):
        found(tmp_path)
    with pytest.raises(UserError, match="is a corpus itself"):
        found(text, text)
