"""Word counts equal those of a Counter, for any memory limit."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.tokenization.word_counts import WordCounts, count_words

ESCAPED_WORDS = [
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
word_strategy = st.sampled_from(ESCAPED_WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def sort_counts(counter: Counter[str], min_frequency: int = 1) -> list[tuple[str, int]]:
    return sorted(
        ((word, count) for word, count in counter.items() if count >= min_frequency), key=lambda entry: (-entry[1], entry[0])
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(word_strategy, max_size=12), max_size=12), st.integers(1, 3))
def test_word_counts_do_not_depend_on_memory(blocks, min_frequency):
    lookup = {str(index): block for index, block in enumerate(blocks)}
    expected = sort_counts(Counter(word for block in blocks for word in block), min_frequency)
    with TemporaryDirectory() as folder:
        for max_in_memory in (1, 3, 1_000_000):
            counts = count_words(
                lookup,
                lookup.__getitem__,
                folder=Path(folder) / str(max_in_memory),
                max_in_memory=max_in_memory,
                min_frequency=min_frequency,
            )
            assert list(counts) == expected


def test_word_counts_merge_more_runs_than_open_files(tmp_path):
    texts = [f"w{index % 97} w{index % 89} all" for index in range(300)]
    counts = count_words(texts, str.split, folder=tmp_path, max_in_memory=1)
    assert list(counts) == sort_counts(Counter(" ".join(texts).split()))


def test_word_counts_iterate_twice_and_have_totals(tmp_path):
    counts = count_words(["b a b", "c b"], str.split, folder=tmp_path / "new" / "folder", min_frequency=1)
    assert list(counts) == list(counts) == [("b", 3), ("a", 1), ("c", 1)]
    assert (counts.distinct, counts.total) == (3, 5)


def test_word_counts_leave_only_the_result_on_disk(tmp_path):
    count_words(["a b c d", "e f g"] * 100, str.split, folder=tmp_path, max_in_memory=2)
    assert [path.name for path in tmp_path.iterdir()] == ["words.tsv"]


def test_word_counts_leave_nothing_on_disk_after_an_error(tmp_path):
    def broken():
        yield "a b c"
        raise OSError("the disk is gone")

    with pytest.raises(OSError):
        count_words(broken(), str.split, folder=tmp_path, max_in_memory=1)
    assert list(tmp_path.iterdir()) == []


def test_word_counts_of_no_text(tmp_path):
    counts = count_words([], str.split, folder=tmp_path)
    assert list(counts) == [] and counts.total == 0


@pytest.mark.parametrize("line", ["two\tword\n", "2 word\n", "2\tcut off", "²\tword\n", "-1\tword\n"])
def test_word_counts_refuse_a_damaged_file_and_name_the_line(tmp_path, line):
    path = tmp_path / "words.tsv"
    path.write_text("3\tfine\n" + line, encoding="utf-8")
    with pytest.raises(UserError, match=r"words\.tsv, line 2"):
        list(WordCounts(path, 2, 5))
