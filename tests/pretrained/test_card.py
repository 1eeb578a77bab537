"""Model cards: sections, tables, escaping."""

from bertsmith.config import from_dict
from bertsmith.pretrained.card import SECTIONS, CardFacts, render_card
from tests.support.model_facts import FACTS


def card(fill_examples=(), model_rows=None, **facts):
    return render_card("tiny-en", from_dict(CardFacts, {**FACTS, **facts}), model_rows or {}, fill_examples)


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n\n## ")[0].strip()


def test_card_starts_with_name_and_summary():
    assert card().splitlines()[0] == "# tiny-en: a tiny English BERT"


def test_card_has_every_section_in_order():
    titles = [line.removeprefix("## ") for line in card().splitlines() if line.startswith("## ")]
    assert titles == list(SECTIONS)


def test_card_facts_are_in_their_sections():
    text = card(model_rows={"parameters": "22,893,114"})
    assert "| language | English |\n| parameters | 22,893,114 |" in text
    assert "| Letters | CC0 | all 26 of them |" in section(text, "Data")
    assert section(text, "Training") == "0.5 minutes on one core, by `bertsmith pretrain recipes/tiny.toml`."
    assert section(text, "Limits") == "- It knows nothing." and section(text, "Licence") == "Apache-2.0"


def test_card_scores_have_a_column_per_model():
    assert section(card(), "Scores").splitlines() == [
        "| task | tiny-en | a coin |",
        "| --- | --- | --- |",
        "| SST-2 | 51.0 | 50.0 |",
        "| RTE |  | 50.0 |",
        "",
        "Dev sets, 3 seeds.",
    ]


def test_card_without_scores_has_no_table():
    assert section(card(scores={}), "Scores") == "Dev sets, 3 seeds."


def test_card_of_a_model_that_fills_no_masks_shows_how_to_search():
    usage = section(card(), "Use")
    assert "model.fill" not in usage and "bertsmith embed model=tiny-en data=queries.txt" in usage


def test_card_usage_shows_code_and_fill_examples():
    usage = section(card(fill_examples=[("A [MASK] day.", ["fine", "good"])]), "Use")
    assert 'bertsmith.load("tiny-en")' in usage and 'model.fill("A [MASK] day.")' in usage and "model=tiny-en" in usage
    assert "| A [MASK] day. | fine, good |" in usage


def test_card_table_cells_are_escaped():
    source = {"a | b": {"licence": "CC0", "about": "one\ntwo"}}
    assert r"| a \| b | CC0 | one two |" in section(card(data=source), "Data")
