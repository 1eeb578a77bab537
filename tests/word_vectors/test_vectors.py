"""KeyedVectors: nearest neighbours, analogies, benchmarks, and words of tokenizers."""

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
    left, right = vectors.get_vector(a).astype(float), vectors.get_vector(b).astype(float)
    return left @ right / np.linalg.norm(left) / np.linalg.norm(right)


def test_most_similar_sorts_by_cosine(vectors):
    neighbours = vectors.most_similar("king", topn=99)
    expected = sorted(((cosine(vectors, "king", word), word) for word in WORDS if word != "king"), reverse=True)
    assert [word for word, _ in neighbours] == [word for _, word in expected]
    assert [score for _, score in neighbours] == pytest.approx([score for score, _ in expected], abs=1e-6)
    assert vectors.similarity("man", "king") == pytest.approx(cosine(vectors, "man", "king"), abs=1e-6)


def test_analogy_excludes_its_words(vectors):
    assert vectors.analogy("man", "king", "woman", topn=1)[0][0] == "queen"
    assert not {"man", "king", "woman"} & {word for word, _ in vectors.analogy("man", "king", "woman", topn=99)}


def test_unknown_word_error_suggests_similar_word(vectors):
    with pytest.raises(UserError, match="no vector for 'quen'; did you mean 'queen'"):
        vectors.get_vector("quen")


def test_similarity_of_zero_vector_is_zero():
    vectors = KeyedVectors(["zero", "one"], np.array([[0, 0], [1, 0]]))
    assert vectors.similarity("zero", "one") == 0 and vectors.most_similar("one") == [("zero", 0.0)]


def test_keyed_vectors_need_one_row_per_word():
    for words, shape in ((["a"], (2, 3)), (["a", "a"], (2, 3)), ([], (0, 3))):
        with pytest.raises(UserError):
            KeyedVectors(words, np.ones(shape))


def test_nearest_rows_in_blocks_match_analogy(monkeypatch):
    rng = np.random.default_rng(0)
    vectors = KeyedVectors([f"w{i}" for i in range(200)], rng.normal(size=(200, 8)))
    questions = rng.integers(0, 200, (50, 3))
    a, b, c = (vectors.unit_matrix[column] for column in questions.T)
    monkeypatch.setattr("bertsmith.word_vectors.keyed_vectors.MAX_SCORES_IN_MEMORY", 200 * 7)
    rows = vectors.nearest_rows(b - a + c, questions)
    expected = [vectors.analogy(*(f"w{i}" for i in question), topn=1)[0][0] for question in questions]
    assert [f"w{row}" for row in rows] == expected


def test_word_analogies_case_insensitive_or_not(vectors, tmp_path):
    (tmp_path / "q.txt").write_text(": royal\nMan King Woman Queen\nman apple woman zebra\n: fruit\nking queen man woman\n")
    royal, fruit = evaluate_word_analogies(vectors, tmp_path / "q.txt").sections
    assert (royal.num_questions, royal.num_covered, royal.num_correct, royal.accuracy) == (2, 1, 1, 1.0)
    assert (fruit.name, fruit.num_covered, fruit.num_correct) == ("fruit", 1, 1)  # and not King, which counts as king
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
def test_read_word_pairs_of_published_formats(name, tmp_path, vectors):
    (tmp_path / name).write_text(PAIRS[name])
    assert [tuple(pair) for pair in read_word_pairs(tmp_path / name)][:2] == [("man", "woman", 8.0), ("king", "apple", 1.0)]
    scores = evaluate_word_pairs(vectors, tmp_path / name)
    assert scores.pairs == 3 and scores.coverage == 0.75
    order = np.argsort([cosine(vectors, *pair) for pair in (("man", "woman"), ("king", "apple"), ("king", "queen"))])
    assert scores.spearman == pytest.approx(1.0 if order.tolist() == [1, 0, 2] else 0.5)


@pytest.mark.parametrize(
    ("text", "message"), [("man\twoman\t8\nking\n", "line 2"), ("man\twoman\tnan\n", "line 1"), ("# x\n", "no pairs")]
)
def test_malformed_word_pair_names_line(tmp_path, text, message):
    (tmp_path / "p.tsv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_word_pairs(tmp_path / "p.tsv")


@pytest.mark.parametrize("text", [": a\nman king\n", "man king woman queen\n", ": a\n"])
def test_malformed_analogy_is_refused(tmp_path, text, vectors):
    (tmp_path / "q.txt").write_text(text)
    with pytest.raises(UserError, match=r"q\.txt"):
        evaluate_word_analogies(vectors, tmp_path / "q.txt")


def test_vectors_from_table_takes_whole_words():
    table = np.arange(7 * 2, dtype=float).reshape(7, 2)
    wordpiece = Tokenizer.from_vocab([*SPECIAL_TOKENS, "king", "##s"])
    assert vectors_from_table(wordpiece, table).words == ["king"] and vectors_from_table(wordpiece, table).matrix.tolist() == [
        [10, 11]
    ]
    counts = [("king", 50), (" king", 50), (" queen", 9)]
    vocabulary = train_vocabulary("byte-bpe", counts, 280, special_tokens=SPECIAL_TOKENS)
    byte_bpe = Tokenizer(assemble_tokenizer("byte-bpe", build_model(vocabulary), False))
    vectors = vectors_from_table(byte_bpe, np.ones((len(byte_bpe), 2)))
    assert "king" in vectors.words and not any("Ġ" in word for word in vectors.words)


def test_vectors_from_table_decodes_byte_level_tokens():
    counts = [(" café", 50), (" 天", 50), ("  x", 9), *((f" {letter}", 9) for letter in "éèàü")]
    tokenizer = Tokenizer(
        assemble_tokenizer(
            "byte-bpe", build_model(train_vocabulary("byte-bpe", counts, 300, special_tokens=SPECIAL_TOKENS)), False
        )
    )
    assert {"ĠÃ", "ĠĠx"} <= set(tokenizer.id_to_token)  # an incomplete character, and a space before a word
    words = vectors_from_table(tokenizer, np.ones((len(tokenizer), 2))).words
    assert {"café", "天", "é", "x"} <= set(words)
    assert not any("Ã" in word or word.split() != [word] for word in words)


def test_zero_vectors_are_unknown_in_benchmarks(tmp_path):
    vectors = KeyedVectors(["a", "b", "c", "d"], np.array([[1, 0], [0.9, 0.1], [0, 0], [0.2, 1]]))
    (tmp_path / "p.tsv").write_text("a\tb\t9\nc\td\t8\na\tc\t1\na\td\t3\n")
    scores = evaluate_word_pairs(vectors, tmp_path / "p.tsv")
    assert (scores.pairs, scores.coverage) == (2, 0.5) and not vectors.has_vector("c")
    (tmp_path / "q.txt").write_text(": some\na b d c\na b d a\n")
    assert [evaluate_word_analogies(vectors, tmp_path / "q.txt").total[k] for k in (1, 2)] == [2, 1]


def test_fasttext_keyed_vectors_normalize_words():
    buckets = np.random.default_rng(0).normal(size=(50, 4))
    vectors = FastTextKeyedVectors(["cat", "dog"], np.eye(4)[:2], buckets, 2, 3, lambda text: text.lower())
    assert (vectors.get_vector("CATTY") == vectors.get_vector("catty")).all() and (
        vectors.get_vector("Cat") == vectors.get_vector("cat")
    ).all()
    assert vectors.most_similar("Cat") == [("dog", 0.0)]
