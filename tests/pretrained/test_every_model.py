"""Every shipped model: size, checksums, card, plausible predictions."""

import re

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
every_model = pytest.mark.parametrize("name", shipped.list_names())


@every_model
def test_shipped_model_is_at_most_26_megabytes(name):
    assert sum(path.stat().st_size for path in (shipped.ROOT / name).rglob("*") if path.is_file()) <= MAX_BYTES


@every_model
def test_shipped_model_matches_its_manifest(name):
    verify_manifest(shipped.ROOT / name)
    required = {"config.json", "card.json", "card.md", "tokenizer.json", "model.safetensors", "manifest.json"}
    assert required <= {path.name for path in (shipped.ROOT / name).iterdir()}


@every_model
def test_shipped_model_card_has_every_section(name):
    card = (shipped.ROOT / name / shipped.CARD_FILE).read_text(encoding="utf-8")
    sections = card.split("\n## ")
    assert sections[0].startswith(f"# {name}: ") and bertsmith.models()[name]
    assert [section.partition("\n")[0] for section in sections[1:]] == list(SECTIONS)
    assert all(section.partition("\n")[2].strip() for section in sections[1:])


@every_model
def test_shipped_model_fills_masks_sensibly(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name in EXPECTED_WORDS, f"add expected words of {name} to EXPECTED_WORDS"
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
