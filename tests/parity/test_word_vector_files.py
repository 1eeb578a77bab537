"""gensim's KeyedVectors: the same bytes in files, the same neighbours, the same scores."""

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


@pytest.mark.parametrize(("form", "options"), [("text", {}), ("binary", {"binary": True}), ("glove", {"write_header": False})])
def test_files_have_the_same_bytes_both_ways(ours, theirs, tmp_path, form, options):
    name = "v.bin" if form == "binary" else "v.txt"
    theirs.save_word2vec_format(str(tmp_path / name), **options)
    (tmp_path / "ours").mkdir()
    write_vectors(tmp_path / "ours" / name, ours, form)
    assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / name).read_bytes()
    found = read_vectors(tmp_path / name)
    assert found.words == WORDS and (found.matrix == MATRIX).all()
    reading = {"binary": form == "binary", "no_header": form == "glove"}
    again = keyed.KeyedVectors.load_word2vec_format(str(tmp_path / "ours" / name), **reading)
    assert again.index_to_key == WORDS and (again.vectors == MATRIX).all()


def test_neighbours_and_analogies_are_those_of_most_similar(ours, theirs):
    for word in WORDS[:20]:
        same(ours.neighbours(word, 10), theirs.most_similar(word, topn=10))
    for a, b, c in zip(WORDS, WORDS[50:70], WORDS[100:120], strict=False):
        same(ours.analogy(a, b, c, 10), theirs.most_similar(positive=[b, c], negative=[a], topn=10))


def same(found, wanted):
    assert [word for word, _ in found] == [word for word, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-5)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("most", [300_000, 300])
def test_analogies_score_the_same(tmp_path, fold, most):
    """Half of the questions are true of the vectors, as king - man + woman is of queen."""
    offset = rng.normal(size=12)
    matrix = MATRIX.copy() * 0.3
    matrix[1:200:2] = matrix[0:199:2] + offset
    lines = [": pairs"]
    for n, m in rng.integers(0, 110, (300, 2)) * 2:
        lines.append(f"w{n} {'W' if fold else 'w'}{n + 1} w{m} w{m + 1}")
        if len(lines) == 150:
            lines.append(": others")
    (tmp_path / "q.txt").write_text("\n".join(lines) + "\n")
    theirs = keyed.KeyedVectors(12)
    theirs.add_vectors(WORDS, matrix)
    score, sections = theirs.evaluate_word_analogies(str(tmp_path / "q.txt"), restrict_vocab=most, case_insensitive=fold)
    found = evaluate_word_analogies(KeyedVectors(WORDS, matrix), tmp_path / "q.txt", fold, most)
    wanted = [(s["section"], len(s["correct"]), len(s["correct"]) + len(s["incorrect"])) for s in sections[:-1]]
    assert [(s.name, s.num_correct, s.num_covered) for s in found.sections] == wanted
    assert found.total.accuracy == pytest.approx(score) and 0.1 < score < 1


@pytest.mark.parametrize("fold", [True, False])
def test_pairs_score_the_same(ours, theirs, tmp_path, fold):
    pairs = rng.integers(0, 450, (80, 2))
    rows = [f"{'W' if n % 5 == 0 else 'w'}{n}\tw{m}\t{float(rng.integers(0, 10))}" for n, m in pairs]
    (tmp_path / "p.tsv").write_text("\n".join(rows) + "\n")
    pearson, spearman, unknown = theirs.evaluate_word_pairs(str(tmp_path / "p.tsv"), case_insensitive=fold)
    told = evaluate_word_pairs(ours, tmp_path / "p.tsv", fold)
    assert told.spearman == pytest.approx(spearman[0], abs=1e-5)
    assert told.pearson == pytest.approx(pearson[0], abs=1e-5)
    assert 1 - told.coverage == pytest.approx(unknown / 100)
