"""The quickstart: prose is gathered from source files that never run, and becomes a model, a task and a report."""

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.pretrained import shipped
from bertsmith.quickstart import docstrings, run
from bertsmith.quickstart.docstrings import (
    Document,
    collect_documents,
    extract_paragraphs,
    is_prose,
    iter_documents,
    list_source_files,
    package_name,
)
from bertsmith.tokenization.tokenizer import Tokenizer

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
    assert list(extract_paragraphs(DOCSTRING)) == [
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
    assert list(iter_documents([root])) == [Document("a", "a.py", [ONE, TWO]), Document("b", "b.py", [extra, more])]
    assert list(iter_documents([root])) == list(iter_documents([root]))


def test_tests_and_vendored_and_broken_files_are_passed_over(tmp_path):
    text = module(ONE, TWO)
    names = ["tests/a.py", "pkg/_vendor/b.py", "test_c.py", "d_pb2.py", "site-packages/e.py"]
    root = written(tmp_path, {**dict.fromkeys(names, text), "broken.py": text + "def (", "good.py": text})
    assert [path.name for path in list_source_files(root)] == ["broken.py", "good.py"]
    assert [document.paragraphs for document in iter_documents([root])] == [[ONE, TWO]]


def test_nothing_that_is_gathered_is_run(tmp_path):
    mark = tmp_path / "mark"
    root = written(tmp_path / "src", {"harmful.py": module(ONE, TWO, code=f"open({str(mark)!r}, 'w').close()\n")})
    before = set(sys.modules)
    assert [document.paragraphs for document in iter_documents([root])] == [[ONE, TWO]]
    assert not mark.exists() and "harmful" not in set(sys.modules) - before


def test_long_texts_count_as_well_as_docstrings_but_not_f_strings(tmp_path):
    other = 'other = f"""\nThis one has a {value} inside of it, so\n\n\nit is none of ours at all.\n"""\n'
    source = f'help = """\n{ONE}\n\n{TWO}\n"""\n' + other
    assert list(iter_documents([written(tmp_path, {"a.py": source})])) == [Document("a", "a.py", [ONE, TWO])]


def test_what_is_gathered_is_capped(tmp_path):
    root = written(tmp_path / "src", {f"{n:03}.py": module(f"{ONE} And {n}.", f"{TWO} And {n}.") for n in range(50)})
    seen = []
    found = collect_documents([root], max_characters=1000, on_read=lambda done, of: seen.append((done, of)))
    assert 1000 <= sum(len(document.text) for document in found) < 1200
    assert len(found) == len(seen) < 50 and seen[-1] == (1000, 1000)


def test_no_prose_and_no_folder_are_bad_input(tmp_path):
    with pytest.raises(UserError, match="no prose"):
        collect_documents([written(tmp_path / "src", {"a.py": "x = 1\n"})])
    with pytest.raises(UserError, match="there is no folder"):
        collect_documents([tmp_path / "nowhere"])


def test_a_package_is_the_first_folder_and_python_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(docstrings, "library_folders", lambda: [tmp_path / "lib", tmp_path / "packages"])
    places = {
        "lib/email/message.py": "python",
        "lib/abc.py": "python",
        "packages/numpy/a/b.py": "numpy",
        "packages/six.py": "six",
    }
    for name, package in places.items():
        assert package_name(tmp_path / name.split("/")[0], tmp_path / name) == package


def library(name: str, files: int, texts: int = 4) -> list[Document]:
    end = "and this is a sentence of enough words to say where it comes from"
    return [Document(name, f"{name}/{n}.py", [f"{name.title()} {n} {k} {end}." for k in range(texts)]) for n in range(files)]


def test_what_is_judged_is_from_files_that_nothing_is_learnt_from():
    documents = [*library("much", 900), *library("some", 90), *library("little", 5), *library("more", 120)]
    task = docstrings.build_task(documents)
    assert task and task.labels == ["more", "much", "some"]
    where = {text: (one.package, one.path) for one in documents for text in one.paragraphs}
    learnt, judged = ({where[row["text"]] for row in rows} for rows in (task.train, task.test))
    assert judged <= task.held_out_files and not learnt & task.held_out_files
    for rows, most in ((task.train, docstrings.TRAIN_PER_LABEL), (task.test, docstrings.TEST_PER_LABEL)):
        sizes = {label: sum(row["label"] == label for row in rows) for label in task.labels}
        assert len(set(sizes.values())) == 1 and docstrings.MIN_PER_LABEL <= sizes["some"] <= most
        assert all(where[row["text"]][0] == row["label"] for row in rows)
        assert len({row["text"] for row in rows}) == len(rows)
    assert len({row["label"] for row in task.train[:20]}) == 3  # mixed
    assert docstrings.build_task(documents[::-1]) == task


def test_every_file_gives_one_text_before_any_gives_two():
    documents = [*library("one", 400, texts=9), *library("two", 400, texts=9)]
    task = docstrings.build_task(documents)
    assert task is not None
    where = {text: one.path for one in documents for text in one.paragraphs}
    assert len({where[row["text"]] for row in task.train}) == 2 * docstrings.TRAIN_PER_LABEL  # of about 320 files each


def test_one_package_is_no_task():
    assert docstrings.build_task(library("much", 900)) is None
    assert docstrings.build_task([*library("much", 900), *library("short", 900, texts=0)]) is None


def sentence(n: int) -> str:
    animals, places = ["cat", "dog", "bird", "horse", "fish"], ["house", "river", "tree", "field"]
    return f"The {animals[n % 5]} goes to the {places[n % 4]} and the {animals[n // 5 % 5]} stays in the {places[n // 3 % 4]}."


@pytest.fixture
def two_libraries(tmp_path, monkeypatch):
    """Source files of two packages that are easily told apart, and few texts asked of each."""
    monkeypatch.setattr(docstrings, "TRAIN_PER_LABEL", 40)
    monkeypatch.setattr(docstrings, "TEST_PER_LABEL", 40)
    told_of = {"cooking": "It is a meal that somebody eats at night", "sailing": "It is a boat that the wind moves far away"}
    files = {
        f"{name}/m{d:02}.py": module(*(f"{sentence(7 * d + s)} {end} for {d} or {s} days." for s in range(6)))
        for name, end in told_of.items()
        for d in range(70)
    }
    return written(tmp_path / "src", files)


@pytest.fixture
def no_weights(tmp_path, monkeypatch):
    """A checkout that ships no model."""
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "models")


@pytest.fixture
def tiny_weights(tmp_path, monkeypatch, vocabulary):
    """A package that ships a tiny model, which nobody trained, under the name the quickstart looks for."""
    encoder = {"layers": 1, "width": 32, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 64}, "positions": 64}
    tokenizer = Tokenizer.load(vocabulary)
    config = from_dict(ModelConfig, {"encoder": encoder, "vocabulary": len(tokenizer), "heads": {"words": {"kind": "words"}}})
    record = {"stage": "pretrain", "tokenizer": tokenizer.fingerprint}
    checkpoint.save(
        tmp_path / "models" / run.SHIPPED_MODEL, build_model(config, 0), tokenizer, {"identity": "", "result": {}}, record
    )
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "models")


def headings(page: Path) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page.read_text())


LIFE = ["Results", "Filled masks", "Curves", "Masks", "Corpus"]  # of a run


def test_without_weights_from_source_files_to_a_report_and_again(tmp_path, capsys, two_libraries, no_weights):
    folder = tmp_path / "quick"
    recipe = run.QuickstartRecipe(folder=str(folder), minutes=0.03, roots=(str(two_libraries),))
    result = run.run(recipe, Console())
    told = capsys.readouterr().err
    assert told.startswith("mini-en is not in this checkout") and result["base"] is None
    assert result["made"] and f"{result['valid_loss_words']:.3f} nats" in told and f"{result['unigram_entropy']:.3f}" in told
    assert all(f"{number}/6" in told for number in range(1, 7)) and str(folder / "report.html") in told
    assert headings(folder / "report.html") == [*LIFE, "Which package a text is from"]

    accuracy = result["taught"]["scores"][0].value
    assert accuracy > 0.9 and f"pre-trained   {accuracy:.1%}" in told and "from scratch" in told
    assert "cooking" in told and "sailing" in told and (folder / "judged" / "report.html").exists()
    text, judged = (folder / "text.txt").read_text(), (folder / "judge.jsonl").read_text().splitlines()
    assert judged and not any(json.loads(line)["text"] in text for line in judged)

    again = run.run(recipe, Console())
    assert not again["made"] and again["valid_loss_words"] == result["valid_loss_words"]
    assert again["taught"] == result["taught"] and capsys.readouterr().err.count("is there already") >= 4


def test_it_starts_from_the_shipped_model_and_still_makes_one_from_zero(tmp_path, capsys, two_libraries, tiny_weights):
    folder = tmp_path / "quick"
    result = run.run(run.QuickstartRecipe(folder=str(folder), minutes=0.02, roots=(str(two_libraries),)), Console())
    told = capsys.readouterr().err
    steps = [f"{number}/7" for number in range(1, 8)]
    assert [told.index(step) for step in steps] == sorted(told.index(step) for step in steps)
    assert told.index(run.ENGLISH_TEXTS[0]) < told.index("2/7") and told.index("4/7") < told.index(run.DOCSTRING_TEXTS[0])
    assert result["base"] == "mini-en" and result["made"] and f"{result['unigram_entropy']:.3f}" in told
    assert "bertsmith.load('mini-en')" in told and f"model={folder / 'taught'}" in told

    for name, scratch in (("taught", False), ("scratch", True)):
        record = json.loads((folder / name / "config.json").read_text())
        assert (record["recipe"]["model"], record["recipe"]["scratch"]) == ("mini-en", scratch)
        assert record["model"]["encoder"]["width"] == 32  # the shipped one's, not the small one's
    scores, above = result["taught"]["scores"], result["taught"]["above"]
    assert [one.name for one in scores] == ["pre-trained", "from scratch"]
    assert above.value == pytest.approx(scores[0].value - scores[1].value) and above.low <= above.value <= above.high

    assert headings(folder / "report.html") == [
        "The shipped model",
        "Which package a text is from",
        "A small BERT from zero",
        *LIFE,
    ]
    page = (folder / "report.html").read_text()
    for one in scores:
        assert f">{one.percent}<" in page and f">{one.interval}<" in page and one.interval in told
    assert (
        "<h1>From mini-en, and from nothing</h1>" in page
        and page.count('class="whisker"') == 2
        and run.ENGLISH_TEXTS[0] in page
        and run.DOCSTRING_TEXTS[0] in page
    )
    assert all(one.text in unescape(page) for one in result["taught"]["answers"]) and "cooking" in page


def test_without_packages_to_tell_apart_the_rest_is_done(tmp_path, capsys, tiny_weights):
    files = {
        f"pkg/m{d:02}.py": module(*(f"{sentence(7 * d + s)} This is told {d} times." for s in range(6))) for d in range(60)
    }
    recipe = run.QuickstartRecipe(folder=str(tmp_path / "quick"), minutes=0.01, roots=(str(written(tmp_path / "src", files)),))
    assert run.run(recipe, Console())["taught"] is None
    assert "no two packages" in capsys.readouterr().err
    assert headings(tmp_path / "quick" / "report.html") == ["The shipped model", "A small BERT from zero", *LIFE]


def test_a_wrong_setting_is_one_line(capsys):
    assert run.main(["minuts=3"]) == 2
    assert "did you mean 'minutes'" in capsys.readouterr().err
    assert run.main(["minutes=0"]) == 2
    assert "must be above 0" in capsys.readouterr().err


def test_threads_are_told_not_to_spin_before_torch_is_loaded():
    begin = "import os, sys, bertsmith.quickstart.run as q; assert 'torch' not in sys.modules"
    code = begin + "; q.main(['minutes=0']); print(os.environ['OMP_WAIT_POLICY'])"
    clean = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert done.stdout.strip() == "passive"
