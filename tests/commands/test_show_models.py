"""`bertsmith show` of models: attributions, positions, head importance, tokenization; pages, pictures and notebooks."""

import json
import re
from importlib.util import find_spec
from xml.etree import ElementTree

import numpy as np
import pytest

import bertsmith
from bertsmith import api
from bertsmith.cli import main
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig, SequenceHeadConfig
from bertsmith.model.mixers import Attention, Lstm
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.position_bias import AlibiConfig
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.tasks import TextClassification
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.html import parse_page, read_cells
from tests.support.texts import VOCAB

TEXT = "she was here"
TOKENIZER = Tokenizer.from_vocab(VOCAB)


ATTENTION = Attention(num_attention_heads=2)


def save_model(folder, mixer=ATTENTION, task=None, **settings):
    defaults = {"num_hidden_layers": 2, "hidden_size": 16, "mixer": mixer, "max_position_embeddings": 40}
    defaults |= {"feedforward": FeedForwardConfig(intermediate_size=16), "initializer_range": 0.3}
    heads = {"lm": LMHeadConfig(), "task": SequenceHeadConfig(outputs=2)}
    encoder = EncoderConfig(**{**defaults, **settings})
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads=heads), 0)
    config = {"task": {"kind": "classify", "labels": ["red", "green"]}} if task else {"stage": "pretrain"}
    checkpoint.save(folder, model, TOKENIZER, {}, config)
    return str(folder)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "colors", task=TextClassification)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data.tsv").write_text(f"text\tlabel\n{TEXT}\tred\nthe way\tgreen\n")
    return str(tmp_path / "data.tsv")


@pytest.fixture
def settings(classifier, data):
    return {
        "attribution": {"model": classifier, "texts": [TEXT, "<script> the way"]},
        "attention": {"model": classifier, "texts": [TEXT]},
        "positions": {"model": classifier},
        "head-importance": {"model": classifier, "data": data},
        "tokenization": {"tokenizer": classifier, "texts": ["they saw 北 others", "she"]},
    }


def test_every_kind_is_a_page_a_picture_and_a_notebook_object(settings, tmp_path):
    for kind, keys in settings.items():
        api.show(kind=kind, out=tmp_path / f"{kind}.html", quiet=True, **keys)
        page = (tmp_path / f"{kind}.html").read_bytes()
        assert "://" not in page.decode() and b"<script" not in page and (b"<figure" in page or b'class="flow"' in page)
        result = api.show(kind=kind, quiet=True, **keys)
        assert result.page == page and "page" not in result and "out" not in result
        assert result._repr_html_().startswith("<iframe srcdoc=") and "&lt;h1&gt;" in result._repr_html_()
        api.show(kind=kind, out=tmp_path / f"{kind}.svg", quiet=True, **keys)
        picture = ElementTree.fromstring((tmp_path / f"{kind}.svg").read_bytes())
        titles = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "title"]
        assert titles
        if find_spec("resvg_py"):
            drawn = api.show(kind=kind, out=tmp_path / f"{kind}.png", quiet=True, **keys)
            assert drawn.page.startswith(b"\x89PNG") and "data:image/png;base64," in drawn._repr_html_()
            api.show(kind=kind, out=tmp_path / f"{kind}.png", quiet=True, **keys)  # an earlier output is replaced


def test_show_attribution_has_the_numbers_of_python(settings, classifier, tmp_path):
    result = api.show(kind="attribution", target="green", out=tmp_path / "a.html", quiet=True, **settings["attribution"])
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    model = bertsmith.load(classifier)
    for text, shown in zip(settings["attribution"]["texts"], result["attributions"], strict=True):
        expected = model.attributions(text, target="green")
        assert shown["target"] == "green" and shown["tokens"] == expected.tokens
        np.testing.assert_allclose(shown["values"], expected.values, atol=1e-6)
        for token, value in zip(expected.tokens, expected.values, strict=True):
            if value:
                name = token.removeprefix("##").replace("<", "&lt;").replace(">", "&gt;")
                assert re.search(rf">{re.escape(name)}</mark><small>{re.escape(f'{value:+.2g}')}</small>", page)
    assert "output for green" in page
    assert "output for green" in model.attributions(TEXT, target="green")._repr_html_()


def test_show_head_importance_has_a_cell_for_each_head(settings, tmp_path):
    result = api.show(kind="head-importance", out=tmp_path / "h.html", quiet=True, **settings["head-importance"])
    importance = np.array(result["importance"])
    cells = read_cells((tmp_path / "h.html").read_text(encoding="utf-8"))
    assert importance.shape == (2, 2) and cells == [f"{value:.2f}" for value in (importance / importance.max()).ravel()]


def test_show_tokenization_marks_unknown_words(settings, tmp_path):
    result = api.show(kind="tokenization", out=tmp_path / "t.html", quiet=True, **settings["tokenization"])
    page = parse_page((tmp_path / "t.html").read_bytes())
    assert "Tokens" in page.text and result["texts"][0]["ids"] == list(TOKENIZER.encode("they saw 北 others").ids)
    html = (tmp_path / "t.html").read_text(encoding="utf-8")
    assert html.count('<mark class="unknown">') == 1 and ">北</td>" in html
    words, tokens = (
        sum(row[name] if name == "words" else len(row[name]) for row in result["texts"]) for name in ("words", "ids")
    )
    assert f"<b>{tokens / words:.4g}</b>" in html


def test_show_positions_of_every_layer_and_of_none(tmp_path):
    alibi = save_model(
        tmp_path / "alibi", Attention(num_attention_heads=2, position_bias=AlibiConfig()), position_embedding_type="none"
    )
    api.show(kind="positions", model=alibi, out=tmp_path / "p.html", quiet=True)
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "Layer 1: Alibi bias" in page and "Layer 2: Alibi bias" in page
    lstm = save_model(tmp_path / "lstm", Lstm(), position_embedding_type="none")
    with pytest.raises(UserError, match="has no position encodings"):
        api.show(kind="positions", model=lstm, out=tmp_path / "q.html", quiet=True)


def test_show_refuses_what_it_cannot_write(settings, tmp_path, capsys):
    keys = [f"tokenizer={settings['tokenization']['tokenizer']}", "texts=she"]
    for arguments, message in (
        (["tokenization", *keys], "show tokenization needs out=FILE.html, or .svg or .png"),
        (["tokenization", *keys, f"out={tmp_path}/a.pdf"], "ends in .html, .svg, .png"),
        (["tokenization", *keys, "target=red", f"out={tmp_path}/a.svg"], "show tokenization does not take target"),
        (["attribution", f"model={settings['attention']['model']}", "texts=she", "target=blue", f"out={tmp_path}/a.svg"],
         "target='blue' is no label"),
    ):  # fmt: skip
        assert main(["show", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["show", "tokenization", *keys, f"out={tmp_path}/a.svg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"][0]["tokens"] == ["she"]
    (tmp_path / "b.svg").write_text("<svg/>")
    assert main(["show", "tokenization", *keys, f"out={tmp_path}/b.svg"]) == 2
    assert "overwrite=true" in capsys.readouterr().err and (tmp_path / "b.svg").read_text() == "<svg/>"
