"""Word-vector files become checkpoints whose tokenizer has exactly the words of the file."""

import numpy as np
import pytest

import bertsmith
from bertsmith.convert.word_vectors import build_tokenizer, count_reachable_words
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertsmith.word_vectors import KeyedVectors, write_vectors
from tests.support.cli import run_cli, run_cli_error, run_cli_json


def write_words(path, words, dim=4):
    write_vectors(path, KeyedVectors(words, np.random.default_rng(0).normal(size=(len(words), dim)).astype(np.float32)))
    return path


@pytest.mark.parametrize(
    ("words", "lowercase", "text", "expected"),
    [
        (["paris", "film"], None, "Paris FILM", ["paris", "film"]),  # no capital letter in the file: texts are lowercased
        (["Paris", "film"], None, "Paris film", ["Paris", "film"]),
        (["Paris", "film"], None, "paris Film", ["[UNK]", "[UNK]"]),
        (["paris", "film"], False, "Paris film", ["[UNK]", "film"]),
        (["café", "cafe"], None, "Café cafe", ["café", "cafe"]),  # accents distinguish words
        (["[UNK]", "film"], None, "film people", ["film", "[UNK]"]),
    ],
)
def test_vector_tokenizer_encodes_words_as_the_file_writes_them(words, lowercase, text, expected):
    tokenizer = build_tokenizer(words, lowercase)
    assert tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).tokens == expected
    vocab = tokenizer.backend_tokenizer.get_vocab()
    assert vocab.keys() == {*SPECIAL_TOKENS, *words}


def test_vector_tokenizer_segments_chinese_words():
    pytest.importorskip("jieba")
    tokenizer = build_tokenizer(["北京", "天安门", "爱", "我"])
    assert tokenizer.backend_tokenizer.encode("我爱北京天安门", add_special_tokens=False).tokens == [
        "我",
        "爱",
        "北京",
        "天安门",
    ]


def test_unreachable_words_are_counted_and_reported(tmp_path):
    words = ["film", "new york", "don't", "u.s.", "paris"]
    assert count_reachable_words(build_tokenizer(words), words) == 2
    source = write_words(tmp_path / "v.bin", [word for word in words if " " not in word])
    output = run_cli("import", f"source={source}", f"out={tmp_path / 'out'}").stderr
    assert "4 words, 4 dimensions" in output and "2 of them contain punctuation or spaces" in output


def test_imported_vectors_are_found_by_word_and_special_tokens_are_zero(tmp_path):
    words = ["film", "paris", "the"]
    source = write_words(tmp_path / "v.txt", words)
    result = run_cli_json("import", f"source={source}", f"out={tmp_path / 'out'}")
    assert (result["words"], result["vector_size"], result["vocab_size"]) == (3, 4, 3 + len(SPECIAL_TOKENS))
    table = bertsmith.load(tmp_path / "out").model.encoder.word_embeddings.weight.detach().numpy()
    ids = Tokenizer.load(tmp_path / "out").backend_tokenizer.get_vocab()
    expected = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(table[[ids[word] for word in words]], expected, atol=1e-5)
    assert not table[[ids[token] for token in SPECIAL_TOKENS]].any()


def test_import_of_other_vectors_into_a_folder_is_refused(tmp_path):
    out = f"out={tmp_path / 'out'}"
    run_cli("import", f"source={write_words(tmp_path / 'a.txt', ['film'])}", out)
    assert not run_cli_json("import", f"source={tmp_path / 'a.txt'}", out)["created"]
    assert "contains another model; choose another out" in run_cli_error(
        "import", f"source={write_words(tmp_path / 'b.txt', ['film', 'paris'])}", out
    )


def test_export_of_vectors_into_a_folder_names_file_endings(tmp_path):
    run_cli("import", f"source={write_words(tmp_path / 'a.txt', ['film'])}", f"out={tmp_path / 'out'}")
    message = run_cli_error("export", f"model={tmp_path / 'out'}", "format=vectors", f"out={tmp_path}")
    assert "is a folder; give a file name ending in .txt, .bin or .npy" in message
