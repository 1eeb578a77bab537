"""Every shipped model: size, checksums, card, plausible predictions."""

import re

import numpy as np
import pytest

import bertsmith
from bertsmith.artifacts import verify_manifest
from bertsmith.pretrained import shipped
from bertsmith.pretrained.card import SECTIONS

MAX_BYTES = 26e6
EXPECTED_WORDS = {  # texts, and words of which one should be among the top 10 predictions
    "mini-en": [
        ("Paris is the [MASK] of France.", "capital city heart centre center"),
        ("He opened the [MASK] and went in.", "door gate window doors gates"),
        ("She put the book on the [MASK].", "table shelf bed floor desk ground"),
        ("They had two [MASK], a boy and a girl.", "children kids sons babies"),
    ],
    "mini-zh": [
        ("北京是中国的首[MASK]。", "都"),
        ("本法自公布之日起[MASK]行。", "施 执 实"),
        ("我们[MASK]去北京。", "就 要 再 也 想"),
    ],
}
RELATED = {  # a text, one that means the same, and one that shares more words with it
    "mini-en-embed": ("How do I cook rice?", "What is the way to prepare rice?", "How do I sell my car?"),
}
every_model = pytest.mark.parametrize("name", shipped.list_names())


@every_model
def test_shipped_model_is_at_most_26_megabytes(name):
    assert sum(path.stat().st_size for path in (shipped.ROOT / name).rglob("*") if path.is_file()) <= MAX_BYTES


@every_model
def test_shipped_model_matches_its_manifest(name):
    verify_manifest(shipped.ROOT / name)
    weights = "adapter.safetensors" if name in RELATED else "model.safetensors"
    required = {"config.json", "card.json", "card.md", "tokenizer.json", weights, "model.onnx", "manifest.json"}
    assert required <= {path.name for path in (shipped.ROOT / name).iterdir()}


@every_model
def test_shipped_model_card_has_every_section(name):
    card = (shipped.ROOT / name / shipped.CARD_FILE).read_text(encoding="utf-8")
    sections = card.split("\n## ")
    assert sections[0].startswith(f"# {name}: ") and bertsmith.models()[name]
    assert [section.partition("\n")[0] for section in sections[1:]] == list(SECTIONS)
    assert all(section.partition("\n")[2].strip() for section in sections[1:])


@pytest.mark.parametrize("name", set(shipped.list_names()) & RELATED.keys())
def test_shipped_model_embeds_sensibly(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = bertsmith.load(name, device="cpu")
    assert not model.embed(RELATED[name][0], dimensions=64).shape[1:] and model.embed(RELATED[name][0]).shape == (512,)
    for dimensions in (None, 128):
        text, same, other = model.embed(RELATED[name], dimensions=dimensions)
        cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert cosine(text, same) > cosine(text, other) + 0.1


@pytest.mark.parametrize("name", [name for name in shipped.list_names() if name not in RELATED])
def test_shipped_model_fills_masks_sensibly(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name in EXPECTED_WORDS, f"add expected words of {name} to EXPECTED_WORDS, or related texts to RELATED"
    model = bertsmith.load(name, device="cpu")
    for text, expected in EXPECTED_WORDS[name]:
        predicted = [prediction["token_str"] for prediction in model.fill(text, top_k=10)]
        assert set(predicted) & set(expected.split()), f"{text} {predicted}"
        assert not set(predicted[:5]) & {"[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"}


@every_model
def test_shipped_model_names_no_path_of_the_machine_it_was_trained_on(name):
    for file in ("config.json", "card.json", "card.md", "metrics.jsonl"):
        text = (shipped.ROOT / name / file).read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.\])])/(tmp|home|root|work|mnt|data|Users|var)/", text), file
