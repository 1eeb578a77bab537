"""The quickstart: prose collected from docstrings, the package task, pre-training, fine-tuning and the report."""

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.pretrained import shipped
from bertsmith.quickstart import docstrings, learned, run
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


def test_docstrings_extract_paragraphs_keeps_sentences():
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
def test_docstrings_is_prose_rejects_other_text(text):
    assert not is_prose(text)


def write_sources(root: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return root


def module_source(*sentences: str, code: str = "") -> str:
    return code + "\n".join(f'def f{i}():\n    """{sentence}"""\n' for i, sentence in enumerate(sentences))


ONE, TWO = "The first of two sentences stands here.", "The second one of them is this one."


def test_docstrings_documents_are_ordered_and_deduplicated(tmp_path):
    extra, more = "A third sentence that only b has.", "A fourth one that only b has too."
    single = module_source(TWO, "Alone in its file, so it is left out.")
    root = write_sources(
        tmp_path, {"b.py": module_source(ONE, extra, more), "a.py": module_source(ONE, TWO, ONE), "c.py": single}
    )
    assert list(iter_documents([root])) == [Document("a", "a.py", [ONE, TWO]), Document("b", "b.py", [extra, more])]
    assert list(iter_documents([root])) == list(iter_documents([root]))


def test_docstrings_skip_tests_vendored_and_broken_files(tmp_path):
    text = module_source(ONE, TWO)
    names = ["tests/a.py", "pkg/_vendor/b.py", "test_c.py", "d_pb2.py", "site-packages/e.py"]
    root = write_sources(tmp_path, {**dict.fromkeys(names, text), "broken.py": text + "def (", "good.py": text})
    assert [path.name for path in list_source_files(root)] == ["broken.py", "good.py"]
    assert [document.paragraphs for document in iter_documents([root])] == [[ONE, TWO]]


def test_docstrings_are_read_without_importing(tmp_path):
    marker = tmp_path / "mark"
    root = write_sources(
        tmp_path / "src", {"harmful.py": module_source(ONE, TWO, code=f"open({str(marker)!r}, 'w').close()\n")}
    )
    before = set(sys.modules)
    assert [document.paragraphs for document in iter_documents([root])] == [[ONE, TWO]]
    assert not marker.exists() and "harmful" not in set(sys.modules) - before


def test_docstrings_include_multiline_strings_but_not_f_strings(tmp_path):
    f_string = 'other = f"""\nThis one has a {value} inside of it, so\n\n\nit is none of ours at all.\n"""\n'
    source = f'help = """\n{ONE}\n\n{TWO}\n"""\n' + f_string
    assert list(iter_documents([write_sources(tmp_path, {"a.py": source})])) == [Document("a", "a.py", [ONE, TWO])]


def test_docstrings_collection_is_limited(tmp_path):
    root = write_sources(
        tmp_path / "src", {f"{n:03}.py": module_source(f"{ONE} And {n}.", f"{TWO} And {n}.") for n in range(50)}
    )
    progress = []
    documents = collect_documents([root], max_characters=1000, on_read=lambda done, of: progress.append((done, of)))
    assert 1000 <= sum(len(document.text) for document in documents) < 1200
    assert len(documents) == len(progress) < 50 and progress[-1] == (1000, 1000)


def test_docstrings_without_prose_or_folder_is_user_error(tmp_path):
    with pytest.raises(UserError, match="no docstrings"):
        collect_documents([write_sources(tmp_path / "src", {"a.py": "x = 1\n"})])
    with pytest.raises(UserError, match="there is no folder"):
        collect_documents([tmp_path / "nowhere"])


def test_docstrings_package_name_is_first_folder_or_python(tmp_path, monkeypatch):
    monkeypatch.setattr(docstrings, "library_folders", lambda: [tmp_path / "lib", tmp_path / "packages"])
    packages = {
        "lib/email/message.py": "python",
        "lib/abc.py": "python",
        "packages/numpy/a/b.py": "numpy",
        "packages/six.py": "six",
    }
    for name, package in packages.items():
        assert package_name(tmp_path / name.split("/")[0], tmp_path / name) == package


def make_documents(name: str, num_files: int, num_texts: int = 4) -> list[Document]:
    ending = "and this is a sentence of enough words to say where it comes from"
    return [
        Document(name, f"{name}/{n}.py", [f"{name.title()} {n} {k} {ending}." for k in range(num_texts)])
        for n in range(num_files)
    ]


def test_package_task_tests_on_held_out_files():
    documents = [
        *make_documents("much", 900),
        *make_documents("some", 90),
        *make_documents("little", 5),
        *make_documents("more", 120),
    ]
    task = docstrings.build_task(documents)
    assert task and task.labels == ["more", "much", "some"]
    source = {text: (document.package, document.path) for document in documents for text in document.paragraphs}
    train_files, test_files = ({source[row["text"]] for row in rows} for rows in (task.train, task.test))
    assert test_files <= task.held_out_files and not train_files & task.held_out_files
    for rows, max_per_label in ((task.train, docstrings.TRAIN_PER_LABEL), (task.test, docstrings.TEST_PER_LABEL)):
        sizes = {label: sum(row["label"] == label for row in rows) for label in task.labels}
        assert len(set(sizes.values())) == 1 and docstrings.MIN_PER_LABEL <= sizes["some"] <= max_per_label
        assert all(source[row["text"]][0] == row["label"] for row in rows)
        assert len({row["text"] for row in rows}) == len(rows)
    assert len({row["label"] for row in task.train[:20]}) == 3  # mixed
    assert docstrings.build_task(documents[::-1]) == task


def test_package_task_takes_texts_from_files_in_turn():
    documents = [*make_documents("one", 400, num_texts=9), *make_documents("two", 400, num_texts=9)]
    task = docstrings.build_task(documents)
    assert task is not None
    source = {text: document.path for document in documents for text in document.paragraphs}
    assert len({source[row["text"]] for row in task.train}) == 2 * docstrings.TRAIN_PER_LABEL  # of about 320 files each


def test_package_task_needs_two_packages():
    assert docstrings.build_task(make_documents("much", 900)) is None
    assert docstrings.build_task([*make_documents("much", 900), *make_documents("short", 900, num_texts=0)]) is None


def sentence(n: int) -> str:
    animals, nouns = ["cat", "dog", "bird", "horse", "fish"], ["house", "river", "tree", "field"]
    return f"The {animals[n % 5]} goes to the {nouns[n % 4]} and the {animals[n // 5 % 5]} stays in the {nouns[n // 3 % 4]}."


@pytest.fixture
def two_libraries(tmp_path, monkeypatch):
    """Source files of two packages that are easy to classify, with few texts per label."""
    monkeypatch.setattr(docstrings, "TRAIN_PER_LABEL", 40)
    monkeypatch.setattr(docstrings, "TEST_PER_LABEL", 40)
    endings = {"cooking": "It is a meal that somebody eats at night", "sailing": "It is a boat that the wind moves far away"}
    files = {
        f"{name}/m{d:02}.py": module_source(*(f"{sentence(7 * d + s)} {end} for {d} or {s} days." for s in range(6)))
        for name, end in endings.items()
        for d in range(70)
    }
    return write_sources(tmp_path / "src", files)


@pytest.fixture
def no_weights(tmp_path, monkeypatch):
    """A checkout that ships no model."""
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "models")


@pytest.fixture
def tiny_weights(tmp_path, monkeypatch, vocabulary):
    """A tiny untrained model under the name of the shipped one."""
    encoder = {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "mixer": {"kind": "attention", "num_attention_heads": 2},
        "feedforward": {"intermediate_size": 64},
        "max_position_embeddings": 64,
    }
    tokenizer = Tokenizer.load(vocabulary)
    config = from_dict(ModelConfig, {"encoder": encoder, "vocab_size": len(tokenizer), "heads": {"lm": {"kind": "lm"}}})
    record = {"stage": "pretrain", "tokenizer_fingerprint": tokenizer.fingerprint}
    checkpoint.save(
        tmp_path / "models" / run.SHIPPED_MODEL, build_model(config, 0), tokenizer, {"identity": "", "result": {}}, record
    )
    monkeypatch.setattr(shipped, "ROOT", tmp_path / "models")


def section_titles(page: Path) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page.read_text())


RUN_SECTIONS = ["Results", "Filled masks", "Curves", "Masks", "Corpus"]  # of a run's page
LEARNED_SECTIONS = ["Held-out sentences", "Nearest neighbours"]


def test_quickstart_without_shipped_model_and_rerun(tmp_path, capsys, two_libraries, no_weights):
    folder = tmp_path / "quick"
    recipe = run.QuickstartRecipe(folder=str(folder), minutes=0.03, roots=(str(two_libraries),))
    result = run.run(recipe, Console())
    stderr = capsys.readouterr().err
    assert stderr.startswith("this checkout does not include the weights of mini-en") and result["base_model"] is None
    assert (
        result["created"] and f"{result['valid_mlm_loss']:.3f} nats" in stderr and f"{result['unigram_entropy']:.3f}" in stderr
    )
    assert "loss on held-out text" in stderr and "sentences of files that it has not seen" in stderr
    assert all(f"{number}/6" in stderr for number in range(1, 7)) and str(folder / "report.html") in stderr
    assert section_titles(folder / "report.html") == [
        *LEARNED_SECTIONS, *RUN_SECTIONS, "Fine-tuning: package of a docstring"]  # fmt: skip

    accuracy = result["comparison"]["scores"][0].value
    assert accuracy > 0.9 and re.search(rf"pre-trained +{accuracy:.1%}", stderr) and "from scratch" in stderr
    assert "cooking" in stderr and "sailing" in stderr and (folder / "evaluation" / "report.html").exists()
    text, test_lines = (folder / "text.txt").read_text(), (folder / "test.jsonl").read_text().splitlines()
    assert test_lines and not any(json.loads(line)["text"] in text for line in test_lines)

    again = run.run(recipe, Console())
    assert not again["created"] and again["valid_mlm_loss"] == result["valid_mlm_loss"]
    assert again["comparison"] == result["comparison"] and capsys.readouterr().err.count("already") >= 4


def test_quickstart_with_shipped_model(tmp_path, capsys, two_libraries, tiny_weights):
    folder = tmp_path / "quick"
    result = run.run(run.QuickstartRecipe(folder=str(folder), minutes=0.02, roots=(str(two_libraries),)), Console())
    stderr = capsys.readouterr().err
    steps = [f"{number}/7" for number in range(1, 8)]
    assert [stderr.index(step) for step in steps] == sorted(stderr.index(step) for step in steps)
    assert stderr.index(run.ENGLISH_TEXTS[0]) < stderr.index("2/7") and stderr.index("4/7") < stderr.index(
        run.DOCSTRING_TEXTS[0]
    )
    assert result["base_model"] == "mini-en" and result["created"] and f"{result['unigram_entropy']:.3f}" in stderr
    assert "bertsmith.load('mini-en')" in stderr and f"model={folder / 'finetuned'}" in stderr

    for name, scratch in (("finetuned", False), ("from-scratch", True)):
        record = json.loads((folder / name / "config.json").read_text())
        assert (record["recipe"]["model"], record["recipe"]["random_init"]) == ("mini-en", scratch)
        assert record["model"]["encoder"]["hidden_size"] == 32  # the shipped model's, not the small one's
    scores, difference = result["comparison"]["scores"], result["comparison"]["difference"]
    assert [item.name for item in scores] == ["pre-trained", "from scratch"]
    assert (
        difference.value == pytest.approx(scores[0].value - scores[1].value)
        and difference.low <= difference.value <= difference.high
    )

    assert section_titles(folder / "report.html") == [
        "Filled masks: mini-en",
        "Fine-tuning: package of a docstring",
        "A small BERT from scratch",
        *LEARNED_SECTIONS,
        *RUN_SECTIONS,
    ]
    page = (folder / "report.html").read_text()
    for item in scores:
        assert f">{item.percent}<" in page and f">{item.interval}<" in page and item.interval in stderr
    assert (
        "<h1>Quickstart</h1>" in page
        and page.count('class="whisker"') == 2
        and run.ENGLISH_TEXTS[0] in page
        and run.DOCSTRING_TEXTS[0] in page
    )
    assert all(item.text in unescape(page) for item in result["comparison"]["answers"]) and "cooking" in page


def test_quickstart_without_package_task(tmp_path, capsys, tiny_weights):
    files = {
        f"pkg/m{d:02}.py": module_source(*(f"{sentence(7 * d + s)} This is said {d} times." for s in range(6)))
        for d in range(60)
    }
    recipe = run.QuickstartRecipe(
        folder=str(tmp_path / "quick"), minutes=0.01, roots=(str(write_sources(tmp_path / "src", files)),)
    )
    assert run.run(recipe, Console())["comparison"] is None
    assert "fewer than two packages" in capsys.readouterr().err
    assert section_titles(tmp_path / "quick" / "report.html") == [
        "Filled masks: mini-en",
        "A small BERT from scratch",
        "Nearest neighbours",
        *RUN_SECTIONS,
    ]


def test_quickstart_rejects_wrong_settings(capsys):
    assert run.main(["minuts=3"]) == 2
    assert "did you mean 'minutes'" in capsys.readouterr().err
    assert run.main(["minutes=0"]) == 2
    assert "must be above 0" in capsys.readouterr().err


def test_quickstart_command_prints_its_steps(tmp_path, two_libraries):
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "tokenizer").write_text("a file where a folder should be")  # stops it after the first steps
    settings = [f"folder={tmp_path / 'quick'}", "minutes=0.01", f'roots=["{two_libraries}"]']
    code = (
        f"import sys, bertsmith.quickstart.run as q; q.compare_with_scratch = lambda *_: None; sys.exit(q.main({settings!r}))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Collect English text" in process.stderr and "paragraphs" in process.stderr


def test_quickstart_sets_omp_wait_policy_before_importing_torch():
    imports = "import os, sys, bertsmith.quickstart.run as q; assert 'torch' not in sys.modules"
    code = imports + "; q.main(['minutes=0']); print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert process.stdout.strip() == "passive"


def test_one_lower_case_word_of_the_first_fitting_sentence_is_masked():
    vocabulary = {"returns", "number", "elements", "array", "the"}
    text = "Too short. Returns the number of elements in an array. It is another sentence of words."
    masked, word = learned._mask_sentence(text, vocabulary)
    assert masked.replace("[MASK]", word) == "Returns the number of elements in an array." and word == "number"
    assert learned._mask_sentence("No word of these is in any vocabulary at all.", vocabulary) is None


def make_learned(golds: list[str]) -> learned.Learned:
    """Completions of a model that predicts a, b, c, d, e in that order; the, of, and are the most frequent words."""
    predictions = [(word, 0.2) for word in "abcde"]
    completions = [learned.Completion(f"A [MASK] {n}", gold, predictions) for n, gold in enumerate(golds)]
    return learned.Learned(6.0, [learned.LossPoint(10, 5.0, 0.1)], completions, ["the", "of", "and"], [])


def test_accuracies_compare_the_model_with_the_most_frequent_words():
    facts = make_learned(["a", "the", "c", "a", "z", "of"])
    assert (facts.accuracy(1), facts.accuracy(5)) == (2 / 6, 3 / 6)
    assert (facts.unigram_accuracy(1), facts.unigram_accuracy(5)) == (1 / 6, 2 / 6)
    assert [completion.gold for completion in facts.examples] == ["a", "a", "c", "z"]
    line = learned.describe_completions(facts)
    assert "33.3%" in line and "50.0%" in line and "always “the”" in line and "16.7%" in line


def test_nearest_neighbours_are_those_of_the_highest_cosine():
    table = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    words = {f"word{i}": i for i in range(9)}

    def cosine(i: int) -> float:
        return float(table[i] @ table[4] / np.linalg.norm(table[i]) / np.linalg.norm(table[4]))

    expected = sorted((i for i in range(9) if i != 4), key=cosine, reverse=True)[: learned.NUM_NEIGHBORS]
    assert learned._nearest("word4", words, table) == [f"word{i}" for i in expected]
