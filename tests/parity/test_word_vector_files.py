"""Word vectors against gensim's KeyedVectors: bytes of files, nearest neighbours, benchmark scores."""

import numpy as np
import pytest

from bertsmith.word_vectors import KeyedVectors, read_vectors, write_vectors
from bertsmith.word_vectors.benchmarks import evaluate_word_analogies, evaluate_word_pairs

keyed = pytest.importorskip("gensim.models.keyedvectors")

rng = np.random.default_rng(7)
WORDS = list(dict.fromkeys([*(f"w{n}" for n in range(400)), *(f"W{n}" for n in range(0, 40, 3)), "天地", "Ünter"]))
MATRIX = rng.normal(size=(len(WORDS), 12)).astype(np.float32)
MATRIX[:4] *= [[1e-7], [1e6], [1], [1]]


@pytest.fixture(scope="module")
def ours():
    return KeyedVectors(WORDS, MATRIX)


@pytest.fixture(scope="module")
def theirs():
    vectors = keyed.KeyedVectors(12)
    vectors.add_vectors(WORDS, MATRIX)
    return vectors


@pytest.mark.parametrize(
    ("file_format", "options"), [("text", {}), ("binary", {"binary": True}), ("glove", {"write_header": False})]
)
def test_vector_files_match_gensim_bytes(ours, theirs, tmp_path, file_format, options):
    name = "v.bin" if file_format == "binary" else "v.txt"
    theirs.save_word2vec_format(str(tmp_path / name), **options)
    (tmp_path / "ours").mkdir()
    write_vectors(tmp_path / "ours" / name, ours, file_format)
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / name).read_bytes()
    vectors = read_vectors(tmp_path / name)
    assert vectors.words == WORDS and (vectors.matrix == MATRIX).all()
    load_options = {"binary": file_format == "binary", "no_header": file_format == "glove"}
    loaded = keyed.KeyedVectors.load_word2vec_format(str(tmp_path / "ours" / name), **load_options)
    assert loaded.index_to_key == WORDS and (loaded.vectors == MATRIX).all()


def test_most_similar_and_analogy_match_gensim(ours, theirs):
    for word in WORDS[:20]:
        assert_same_words(ours.most_similar(word, 10), theirs.most_similar(word, topn=10))
    for a, b, c in zip(WORDS, WORDS[50:70], WORDS[100:120], strict=False):
        assert_same_words(ours.analogy(a, b, c, 10), theirs.most_similar(positive=[b, c], negative=[a], topn=10))


def assert_same_words(words, expected):
    assert [word for word, _ in words] == [word for word, _ in expected]
    assert [score for _, score in words] == pytest.approx([score for _, score in expected], abs=1e-5)


@pytest.mark.parametrize("case_insensitive", [True, False])
@pytest.mark.parametrize("restrict_vocab", [300_000, 300])
def test_word_analogies_score_matches_gensim(tmp_path, case_insensitive, restrict_vocab):
    """Half of the analogies hold in the vectors."""
    offset = rng.normal(size=12)
    matrix = MATRIX.copy() * 0.3
    matrix[1:200:2] = matrix[0:199:2] + offset
    lines = [": pairs"]
    for n, m in rng.integers(0, 110, (300, 2)) * 2:
        lines.append(f"w{n} {'W' if case_insensitive else 'w'}{n + 1} w{m} w{m + 1}")
        if len(lines) == 150:
            lines.append(": others")
    (tmp_path / "q.txt").write_text("\n".join(lines) + "\n")
    theirs = keyed.KeyedVectors(12)
    theirs.add_vectors(WORDS, matrix)
    accuracy, sections = theirs.evaluate_word_analogies(
        str(tmp_path / "q.txt"), restrict_vocab=restrict_vocab, case_insensitive=case_insensitive
    )
    scores = evaluate_word_analogies(KeyedVectors(WORDS, matrix), tmp_path / "q.txt", case_insensitive, restrict_vocab)
    expected = [(s["section"], len(s["correct"]), len(s["correct"]) + len(s["incorrect"])) for s in sections[:-1]]
    assert [(s.name, s.num_correct, s.num_covered) for s in scores.sections] == expected
    assert scores.total.accuracy == pytest.approx(accuracy) and 0.1 < accuracy < 1


@pytest.mark.parametrize("case_insensitive", [True, False])
def test_word_pairs_score_matches_gensim(ours, theirs, tmp_path, case_insensitive):
    pairs = rng.integers(0, 450, (80, 2))
    rows = [f"{'W' if n % 5 == 0 else 'w'}{n}\tw{m}\t{float(rng.integers(0, 10))}" for n, m in pairs]
    (tmp_path / "p.tsv").write_text("\n".join(rows) + "\n")
    pearson, spearman, unknown = theirs.evaluate_word_pairs(str(tmp_path / "p.tsv"), case_insensitive=case_insensitive)
    scores = evaluate_word_pairs(ours, tmp_path / "p.tsv", case_insensitive)
    assert scores.spearman == pytest.approx(spearman[0], abs=1e-5)
    assert scores.pearson == pytest.approx(pearson[0], abs=1e-5)
    assert 1 - scores.coverage == pytest.approx(unknown / 100)
