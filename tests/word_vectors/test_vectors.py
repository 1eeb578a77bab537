"""Neighbours, analogies and judging, against sums done one by one."""

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.tokenization.pipeline import assemble_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertsmith.tokenization.trainers import build_model, train_vocabulary
from bertsmith.word_vectors import KeyedVectors, vectors_from_table
from bertsmith.word_vectors.benchmarks import evaluate_word_analogies, evaluate_word_pairs, read_word_pairs
from bertsmith.word_vectors.keyed_vectors import FastTextKeyedVectors

WORDS = ["man", "woman", "king", "queen", "apple", "King", "pear"]


@pytest.fixture
def vectors():
    matrix = [[1, 0, 0, 0.1], [1, 1, 0, 0], [1, 0, 2, 0.1], [1, 1, 2, 0], [-1, 0, 0.2, 3], [0.9, 0.1, 2, 0], [-1, 0.1, 0, 3]]
    return KeyedVectors(WORDS, np.array(matrix))


def cosine(vectors, a, b):
    left, right = vectors.vector(a).astype(float), vectors.vector(b).astype(float)
    return left @ right / np.linalg.norm(left) / np.linalg.norm(right)


def test_neighbours_are_all_others_by_cosine(vectors):
    found = vectors.most_similar("king", top=99)
    want = sorted(((cosine(vectors, "king", word), word) for word in WORDS if word != "king"), reverse=True)
    assert [word for word, _ in found] == [word for _, word in want]
    assert [score for _, score in found] == pytest.approx([score for score, _ in want], abs=1e-6)
    assert vectors.similarity("man", "king") == pytest.approx(cosine(vectors, "man", "king"), abs=1e-6)


def test_an_analogy_leaves_out_its_own_words(vectors):
    assert vectors.analogy("man", "king", "woman", top=1)[0][0] == "queen"
    assert not {"man", "king", "woman"} & {word for word, _ in vectors.analogy("man", "king", "woman", top=99)}


def test_a_word_without_a_vector_is_named_with_the_nearest(vectors):
    with pytest.raises(UserError, match="no vector for 'quen'; did you mean 'queen'"):
        vectors.vector("quen")


def test_a_vector_of_zeros_is_like_nothing():
    vectors = KeyedVectors(["zero", "one"], np.array([[0, 0], [1, 0]]))
    assert vectors.similarity("zero", "one") == 0 and vectors.most_similar("one") == [("zero", 0.0)]


def test_rows_and_words_must_agree():
    for words, shape in ((["a"], (2, 3)), (["a", "a"], (2, 3)), ([], (0, 3))):
        with pytest.raises(UserError):
            KeyedVectors(words, np.ones(shape))


def test_analogies_in_blocks_are_those_one_by_one(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = KeyedVectors([f"w{n}" for n in range(200)], rng.normal(size=(200, 8)))
    asked = rng.integers(0, 200, (50, 3))
    a, b, c = (vectors.unit_matrix[column] for column in asked.T)
    monkeypatch.setattr("bertsmith.word_vectors.keyed_vectors.MAX_SCORES_IN_MEMORY", 200 * 7)
    found = vectors.nearest_rows(b - a + c, asked)
    want = [vectors.analogy(*(f"w{n}" for n in one), topn=1)[0][0] for one in asked]
    assert [f"w{row}" for row in found] == want


def test_case_is_folded_or_not(vectors, tmp_path):
    (tmp_path / "q.txt").write_text(": royal\nMan King Woman Queen\nman apple woman zebra\n: fruit\nking queen man woman\n")
    royal, fruit = evaluate_word_analogies(vectors, tmp_path / "q.txt").sections
    assert (royal.num_questions, royal.num_covered, royal.num_correct, royal.accuracy) == (2, 1, 1, 1.0)
    assert (fruit.name, fruit.num_covered, fruit.num_correct) == ("fruit", 1, 1)  # and not King, which is king
    exact = evaluate_word_analogies(vectors, tmp_path / "q.txt", case_insensitive=False)
    assert exact.sections[0].num_covered == 0 and np.isnan(exact.sections[0].accuracy)
    assert exact.coverage == pytest.approx(1 / 3) and exact.total.num_questions == 3


PAIRS = {
    "combined.csv": "Word 1,Word 2,Human (mean)\nman,woman,8\nking,apple,1\nking,queen,9.5\nking,zebra,1\n",
    "numbered.csv": ",word1,word2,similarity\n0,man,woman,8\n1,king,apple,1\n2,king,queen,9.5\n3,king,zebra,1\n4,,,\n",
    "scored.csv": ",similarity,word1,word2,relation\n0,8,man,woman,x\n1,1,king,apple,x\n2,9.5,king,queen,x\n3,1,king,zebra,x\n",
    "simlex.txt": "word1\tword2\tPOS\tSimLex999\nman\twoman\tN\t8\nking\tapple\tN\t1\nking\tqueen\tN\t9.5\nking\tzebra\tN\t1\n",
    "gensim.tsv": "# a comment\n# Word 1\tWord 2\tHuman\nman\twoman\t8\nking\tapple\t1\nking\tqueen\t9.5\nking\tzebra\t1\n",
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_read_as_they_are_published(name, tmp_path, vectors):
    (tmp_path / name).write_text(PAIRS[name])
    assert [tuple(pair) for pair in read_word_pairs(tmp_path / name)][:2] == [("man", "woman", 8.0), ("king", "apple", 1.0)]
    told = evaluate_word_pairs(vectors, tmp_path / name)
    assert told.pairs == 3 and told.coverage == 0.75
    order = np.argsort([cosine(vectors, *pair) for pair in (("man", "woman"), ("king", "apple"), ("king", "queen"))])
    assert told.spearman == pytest.approx(1.0 if order.tolist() == [1, 0, 2] else 0.5)


@pytest.mark.parametrize(
    ("text", "told"), [("man\twoman\t8\nking\n", "line 2"), ("man\twoman\tnan\n", "line 1"), ("# x\n", "no pairs")]
)
def test_a_pair_that_is_none_is_named_by_its_line(tmp_path, text, told):
    (tmp_path / "p.tsv").write_text(text)
    with pytest.raises(UserError, match=told):
        read_word_pairs(tmp_path / "p.tsv")


@pytest.mark.parametrize("text", [": a\nman king\n", "man king woman queen\n", ": a\n"])
def test_a_malformed_question_is_refused(tmp_path, text, vectors):
    (tmp_path / "q.txt").write_text(text)
    with pytest.raises(UserError, match=r"q\.txt"):
        evaluate_word_analogies(vectors, tmp_path / "q.txt")


def test_the_table_of_any_tokenizer_is_vectors_of_its_words():
    table = np.arange(7 * 2, dtype=float).reshape(7, 2)
    google = Tokenizer.from_vocab([*SPECIAL_TOKENS, "king", "##s"])
    assert vectors_from_table(google, table).words == ["king"] and vectors_from_table(google, table).matrix.tolist() == [
        [10, 11]
    ]
    counts = [("king", 50), (" king", 50), (" queen", 9)]
    learnt = train_vocabulary("byte-bpe", counts, 280, special_tokens=SPECIAL_TOKENS)
    spaced = Tokenizer(assemble_tokenizer("byte-bpe", build_model(learnt), False))
    found = vectors_from_table(spaced, np.ones((len(spaced), 2)))
    assert "king" in found.words and not any("Ġ" in word for word in found.words)


def test_words_of_bytes_are_read_as_the_text_they_spell():
    counts = [(" café", 50), (" 天", 50), ("  x", 9), *((f" {letter}", 9) for letter in "éèàü")]
    spaced = Tokenizer(
        assemble_tokenizer(
            "byte-bpe", build_model(train_vocabulary("byte-bpe", counts, 300, special_tokens=SPECIAL_TOKENS)), False
        )
    )
    assert {"ĠÃ", "ĠĠx"} <= set(spaced.id_to_token)  # half a character, and a space before a word
    found = vectors_from_table(spaced, np.ones((len(spaced), 2))).words
    assert {"café", "天", "é", "x"} <= set(found)
    assert not any("Ã" in word or word.split() != [word] for word in found)


def test_words_whose_row_is_zero_are_not_known(tmp_path):
    vectors = KeyedVectors(["a", "b", "c", "d"], np.array([[1, 0], [0.9, 0.1], [0, 0], [0.2, 1]]))
    (tmp_path / "p.tsv").write_text("a\tb\t9\nc\td\t8\na\tc\t1\na\td\t3\n")
    told = evaluate_word_pairs(vectors, tmp_path / "p.tsv")
    assert (told.pairs, told.coverage) == (2, 0.5) and not vectors.has_vector("c")
    (tmp_path / "q.txt").write_text(": some\na b d c\na b d a\n")
    assert [evaluate_word_analogies(vectors, tmp_path / "q.txt").total[k] for k in (1, 2)] == [2, 1]


def test_a_word_made_of_n_grams_is_spelt_as_the_tokenizer_cleans_it():
    buckets = np.random.default_rng(0).normal(size=(50, 4))
    spelt = FastTextKeyedVectors(["cat", "dog"], np.eye(4)[:2], buckets, 2, 3, lambda text: text.lower())
    assert (spelt.get_vector("CATTY") == spelt.get_vector("catty")).all() and (
        spelt.get_vector("Cat") == spelt.get_vector("cat")
    ).all()
    assert spelt.most_similar("Cat") == [("dog", 0.0)]
