"""Every model that is shipped: small enough, whole, told of in a card, and sensible."""

import pytest

import bertsmith
from bertsmith.artifacts import verify_manifest
from bertsmith.pretrained import shipped
from bertsmith.pretrained.card import SECTIONS

LARGEST = 25e6  # bytes
SENSIBLE = {  # texts, and words of which one should be among the first ten for the mask
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
def test_it_is_at_most_25_megabytes(name):
    assert sum(path.stat().st_size for path in (shipped.ROOT / name).rglob("*") if path.is_file()) <= LARGEST


@every_model
def test_every_file_is_as_it_was_sealed_and_all_are_sealed(name):
    verify_manifest(shipped.ROOT / name)
    sealed = {"config.json", "card.json", "card.md", "tokenizer.json", "model.safetensors", "manifest.json"}
    assert sealed <= {path.name for path in (shipped.ROOT / name).iterdir()}


@every_model
def test_its_card_has_every_section(name):
    card = (shipped.ROOT / name / shipped.CARD_FILE).read_text(encoding="utf-8")
    parts = card.split("\n## ")
    assert parts[0].startswith(f"# {name}: ") and bertsmith.models()[name]
    assert [part.partition("\n")[0] for part in parts[1:]] == list(SECTIONS)
    assert all(part.partition("\n")[2].strip() for part in parts[1:])


@every_model
def test_it_fills_masks_with_words_that_make_sense(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name in SENSIBLE, f"say in SENSIBLE what {name} should put where"
    model = bertsmith.load(name, device="cpu")
    for text, words in SENSIBLE[name]:
        found = [one["word"] for one in model.fill(text, top=10)[0]]
        assert set(found) & set(words.split()), f"{text} {found}"
        assert not set(found[:5]) & {"[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"}
