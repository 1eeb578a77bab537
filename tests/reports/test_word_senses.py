"""`bertsmith show senses`: a scatter plot per layer, escaped sentences, scores, nothing loaded from the network."""

import json
import re

import numpy as np
import pytest

from bertsmith.cli import main
from bertsmith.commands import show
from bertsmith.recipes import read_recipe
from bertsmith.reports.charts import Marker, project_pca, scatter_panel
from tests.support.rows import write_coarse_wsd

SENTENCES = """text\tsense
the first time was <b>\triver
the last time & so on\triver
some time ago\tmoney
a time of his\tmoney
"""


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    path = tmp_path_factory.mktemp("senses") / "time.tsv"
    path.write_text(SENTENCES)
    return path


def test_show_senses_of_one_word_has_panel_and_scores_per_layer(sentences, tmp_path, capsys):
    out = tmp_path / "time.html"
    assert main(["show", "senses", "model=mini-en", f"data={sentences}", "word=time", f"out={out}", "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    page = out.read_text()
    layers = result["scores"]["mini-en"]
    assert len(layers) == 7 == len(re.findall("<figcaption>mini-en, ", page)) and result["words"] == ["time"]
    assert layers[0]["nearest_neighbor"] == layers[0]["majority_baseline"]  # the embedding table has one vector per word
    assert page.count('class="point"') == 7 * 4 and "all 4 points coincide" in page
    assert "the first time was &lt;b&gt;" in page and "<b>\n" not in page
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)


def test_show_senses_skips_and_counts_rows_without_the_word(sentences, tmp_path, capsys):
    path = tmp_path / "some.tsv"
    path.write_text(sentences.read_text() + "nothing of it\tmoney\n")
    command = ["show", "senses", "model=mini-en", f"data={path}", "word=time", f"out={tmp_path / 'p.html'}"]
    assert main(command) == 2 and "skip_bad=true" in capsys.readouterr().err
    assert main([*command, "skip_bad=true"]) == 0
    assert "skipped 1 row; the first: " in " ".join(capsys.readouterr().err.split())


def test_show_senses_of_vector_file_suggests_import(sentences, tmp_path, capsys):
    (tmp_path / "v.txt").write_text("time 1 2\n")
    assert (
        main(["show", "senses", f"model={tmp_path / 'v.txt'}", f"data={sentences}", "word=time", f"out={tmp_path / 'p.html'}"])
        == 2
    )
    assert "`bertsmith import source=" in capsys.readouterr().err


def test_show_senses_of_several_words_has_table_only(tmp_path):
    for word in ("time", "people"):
        write_coarse_wsd(tmp_path / "data", word)
        for name in ("train", "test"):
            path = tmp_path / "data" / word / f"{name}.data.txt"
            path.write_text(path.read_text().replace("bank", word))
    recipe = read_recipe(
        show.Recipe, None, ["kind=senses", "model=mini-en", f"data={tmp_path / 'data'}", f"out={tmp_path / 'p.html'}"]
    )
    result = show.run(recipe, quiet=True)
    assert set(result["scores"]["mini-en"][3]["words"]) == {"time", "people"}
    page = (tmp_path / "p.html").read_text()
    assert "Accuracy by word" in page and 'class="point"' not in page


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model=mini-en"], "show senses needs data=FILE"),
        (["data=x.tsv", "word=a"], "show senses needs model=FOLDER"),
        (["model=mini-en", "data=x.tsv", "epoch=3"], "show senses does not take epoch"),
    ],
)
def test_show_senses_reports_missing_settings(settings, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("text\na b\n")
    assert main(["show", "senses", *settings, "out=p.html"]) == 2
    assert message in capsys.readouterr().err


def test_project_pca_matches_eigenvectors():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 10)) * np.array([9, 4, *[0.1] * 8])
    projected = project_pca(vectors)
    values, directions = np.linalg.eigh(np.cov(vectors.T))
    assert np.allclose(projected.var(0, ddof=1), values[::-1][:2])
    centered = vectors - vectors.mean(0)
    for column, direction in zip(projected.T, directions.T[::-1], strict=False):
        assert np.allclose(np.abs(column), np.abs(centered @ direction))
    assert np.array_equal(projected, project_pca(vectors)) and not project_pca(np.ones((5, 3))).any()
    assert project_pca(np.array([[1.0, 2.0], [3.0, 4.0]])).shape == (2, 2)


def test_scatter_panel_links_neighbors():
    panel = scatter_panel(
        "<a>",
        "90%",
        np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]]),
        [Marker("one", "x & y", (2,)), Marker("two", "z"), Marker("two", "w")],
    )
    assert panel.count("<circle") == 3 and panel.count("<line") == 1 and "x &amp; y" in panel and "&lt;a&gt;" in panel
