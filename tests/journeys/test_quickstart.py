"""The quickstart: prose is gathered from source files that never run, and becomes a model and a report."""

import sys
from pathlib import Path

import pytest

from bertsmith import quickstart
from bertsmith.docstrings import gather, gathered, is_prose, paragraphs, sources
from bertsmith.errors import BadInput
from bertsmith.screen import Screen

DOCSTRING = """
    Return the sum of all numbers in the list. The list
    is not changed by this.

    Heading of a Section
    --------------------
    The :class:`~collections.Counter` of ``words`` is kept in **memory** until it is *closed*.

    Parameters
    ----------
    axis : int, optional
        The axis along which the numbers are added, counted from zero.

    >>> total([1, 2, 3])
    6

    An example is here::

        Total of the numbers that somebody gave to us.

    ===== =====
    A     B
    ===== =====

    .. note::
        This stands in a directive and reads like a sentence.

    short text.
    x = total(list) is what one writes = here and there.
"""


def test_sentences_stay_and_all_else_goes():
    assert list(paragraphs(DOCSTRING)) == [
        "Return the sum of all numbers in the list. The list is not changed by this.",
        "The collections.Counter of words is kept in memory until it is closed.",
        "The axis along which the numbers are added, counted from zero.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short to say.", "no capital letter begins this line of words.", "This line of words does not end",
        "See https://example.org for all of the many details.", "Foo_bar b_az c(d) e[f] g.h i/j k.",
        "Und überall ist es schön bei uns.",
        "The {name} of the field is written here.", "A | B and C | D are in this row.",
    ],
)  # fmt: skip
def test_what_is_no_plain_english_sentence_is_not_prose(text):
    assert not is_prose(text)


def written(root: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return root


def module(*sentences: str, code: str = "") -> str:
    return code + "\n".join(f'def f{i}():\n    """{sentence}"""\n' for i, sentence in enumerate(sentences))


ONE, TWO = "The first of two sentences stands here.", "The second one of them is this one."


def test_files_are_documents_in_order_without_repeats(tmp_path):
    extra, more = "A third sentence that only b has.", "A fourth one that only b has too."
    lonely = module(TWO, "Alone in its file, so it is left out.")
    root = written(tmp_path, {"b.py": module(ONE, extra, more), "a.py": module(ONE, TWO, ONE), "c.py": lonely})
    assert list(gathered([root])) == [[ONE, TWO], [extra, more]] == list(gathered([root]))


def test_tests_and_vendored_and_broken_files_are_passed_over(tmp_path):
    text = module(ONE, TWO)
    names = ["tests/a.py", "pkg/_vendor/b.py", "test_c.py", "d_pb2.py", "site-packages/e.py"]
    root = written(tmp_path, {**dict.fromkeys(names, text), "broken.py": text + "def (", "good.py": text})
    assert [path.name for path in sources(root)] == ["broken.py", "good.py"]
    assert list(gathered([root])) == [[ONE, TWO]]


def test_nothing_that_is_gathered_is_run(tmp_path):
    mark = tmp_path / "mark"
    root = written(tmp_path / "src", {"harmful.py": module(ONE, TWO, code=f"open({str(mark)!r}, 'w').close()\n")})
    before = set(sys.modules)
    assert list(gathered([root])) == [[ONE, TWO]]
    assert not mark.exists() and "harmful" not in set(sys.modules) - before


def test_long_texts_count_as_well_as_docstrings_but_not_f_strings(tmp_path):
    other = 'other = f"""\nThis one has a {value} inside of it, so\n\n\nit is none of ours at all.\n"""\n'
    source = f'help = """\n{ONE}\n\n{TWO}\n"""\n' + other
    assert list(gathered([written(tmp_path, {"a.py": source})])) == [[ONE, TWO]]


def test_what_is_gathered_is_capped_and_counted(tmp_path):
    root = written(tmp_path / "src", {f"{n:03}.py": module(f"{ONE} And {n}.", f"{TWO} And {n}.") for n in range(50)})
    out, seen = tmp_path / "text.txt", []
    counts = gather(out, [root], limit=1000, on_read=lambda done, of: seen.append((done, of)))
    text = out.read_text()
    assert 1000 <= len(text) < 1200 and counts["bytes"] == len(text.encode())
    assert counts["documents"] == len(text.split("\n\n")) == len(seen) and seen[-1] == (1000, 1000)
    assert counts["paragraphs"] == sum(bool(line) for line in text.split("\n"))


def test_no_prose_and_no_folder_are_bad_input(tmp_path):
    with pytest.raises(BadInput, match="no prose"):
        gather(tmp_path / "text.txt", [written(tmp_path / "src", {"a.py": "x = 1\n"})])
    with pytest.raises(BadInput, match="there is no folder"):
        gather(tmp_path / "text.txt", [tmp_path / "nowhere"])
    assert not (tmp_path / "text.txt").exists()


def sentence(n: int) -> str:
    animals, places = ["cat", "dog", "bird", "horse", "fish"], ["house", "river", "tree", "field"]
    return f"The {animals[n % 5]} goes to the {places[n % 4]} and the {animals[n // 5 % 5]} stays in the {places[n // 3 % 4]}."


def test_from_source_files_to_a_report_and_again(tmp_path, capsys):
    files = {
        f"pkg/m{d:02}.py": module(*(sentence(7 * d + s) + f" This is told {d} times." for s in range(6))) for d in range(120)
    }
    root, folder = written(tmp_path / "src", files), tmp_path / "quick"
    recipe = quickstart.Quickstart(folder=str(folder), minutes=0.03, roots=(str(root),))
    result = quickstart.run(recipe, Screen())
    told = capsys.readouterr().err
    assert result["made"] and f"{result['valid_loss_words']:.3f} nats" in told and f"{result['unigram_entropy']:.3f}" in told
    assert all(f"{number}/5" in told for number in range(1, 6)) and str(folder / "report.html") in told
    report = (folder / "report.html").read_text()
    assert quickstart.TEXTS[0] in report and "Curves" in report

    again = quickstart.run(recipe, Screen())
    assert not again["made"] and again["valid_loss_words"] == result["valid_loss_words"]
    assert capsys.readouterr().err.count("is there already") >= 4


def test_a_wrong_setting_is_one_line(capsys):
    assert quickstart.main(["minuts=3"]) == 2
    assert "did you mean 'minutes'" in capsys.readouterr().err
    assert quickstart.main(["minutes=0"]) == 2
    assert "must be above 0" in capsys.readouterr().err
