"""Word counts: what a Counter would say, whatever fits in memory."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.tokenization.word_counts import WordCounts, count_words

HOSTILE = [
    "\\",
    "\\n",
    "\n",
    "\t",
    "\\\\n",
    "\r",
    "\r\n",
    "\u2028",
    "\x85",
    "\0",
    "",
    "a",
    "\\t\t",
    "狗",
    "🐶",
    "e\u0301",
    "1\t2",
]
words = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def in_order(counter: Counter[str], least: int = 1) -> list[tuple[str, int]]:
    return sorted(((w, n) for w, n in counter.items() if n >= least), key=lambda entry: (-entry[1], entry[0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(words, max_size=12), max_size=12), st.integers(1, 3))
def test_a_small_memory_and_hostile_words_change_nothing(blocks, least):
    lookup = {str(number): block for number, block in enumerate(blocks)}
    expected = in_order(Counter(word for block in blocks for word in block), least)
    with TemporaryDirectory() as folder:
        for limit in (1, 3, 1_000_000):
            counts = count_words(
                lookup, lookup.__getitem__, folder=Path(folder) / str(limit), max_in_memory=limit, min_frequency=least
            )
            assert list(counts) == expected


def test_more_runs_than_files_may_be_open_are_merged_in_turns(tmp_path):
    texts = [f"w{number % 97} w{number % 89} all" for number in range(300)]
    counts = count_words(texts, str.split, folder=tmp_path, max_in_memory=1)
    assert list(counts) == in_order(Counter(" ".join(texts).split()))


def test_counts_can_be_read_twice_and_know_their_sums(tmp_path):
    counts = count_words(["b a b", "c b"], str.split, folder=tmp_path / "new" / "folder", min_frequency=1)
    assert list(counts) == list(counts) == [("b", 3), ("a", 1), ("c", 1)]
    assert (counts.distinct, counts.total) == (3, 5)


def test_only_the_result_stays_on_disk(tmp_path):
    count_words(["a b c d", "e f g"] * 100, str.split, folder=tmp_path, max_in_memory=2)
    assert [path.name for path in tmp_path.iterdir()] == ["words.tsv"]


def test_nothing_stays_on_disk_when_the_text_cannot_be_read(tmp_path):
    def broken():
        yield "a b c"
        raise OSError("the disk is gone")

    with pytest.raises(OSError):
        count_words(broken(), str.split, folder=tmp_path, max_in_memory=1)
    assert list(tmp_path.iterdir()) == []


def test_no_text_gives_no_words(tmp_path):
    counts = count_words([], str.split, folder=tmp_path)
    assert list(counts) == [] and counts.total == 0


@pytest.mark.parametrize("line", ["two\tword\n", "2 word\n", "2\tcut off", "²\tword\n", "-1\tword\n"])
def test_a_damaged_file_is_named_with_its_line(tmp_path, line):
    path = tmp_path / "words.tsv"
    path.write_text("3\tfine\n" + line, encoding="utf-8")
    with pytest.raises(UserError, match=r"words\.tsv, line 2"):
        list(WordCounts(path, 2, 5))
