"""`bertsmith doctor` of word vectors: checks of language models do not apply to them."""

import pytest

from bertsmith import api
from bertsmith.diagnostics.examine import examine_folder
from tests.support.corpora import prepare_test_corpus
from tests.support.texts import make_english_text


@pytest.mark.parametrize("objective", ["skip-gram", "glove"])
def test_healthy_word_vectors_have_no_problems(objective, vocabulary, tmp_path):
    (tmp_path / "text.txt").write_text(make_english_text(200))
    corpus = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    objective = {"kind": objective, "vector_size": 16}
    api.pretrain(
        corpus=str(corpus), objective=objective, train={"epochs": 3, "device": "cpu"}, out=str(tmp_path / "v"), quiet=True
    )
    report = examine_folder(tmp_path / "v")
    assert [finding.name for finding in report.findings if finding.severity == "problem"] == []
    assert any("embed similarity=" in note for note in report.not_checked)
