"""The card of a model: the same sections for each, from facts, as tables that stay tables."""

from bertsmith.config import from_dict
from bertsmith.pretrained.card import SECTIONS, CardFacts, render_card
from tests.pretrained.conftest import FACTS


def card(filled=(), about=None, **other):
    return render_card("tiny-en", from_dict(CardFacts, {**FACTS, **other}), about or {}, filled)


def section(text, title):
    return text.split(f"\n## {title}\n")[1].split("\n\n## ")[0].strip()


def test_the_first_line_is_the_name_and_what_it_is():
    assert card().splitlines()[0] == "# tiny-en: a tiny English BERT"


def test_every_section_is_there_in_order():
    titles = [line.removeprefix("## ") for line in card().splitlines() if line.startswith("## ")]
    assert titles == list(SECTIONS)


def test_facts_stand_where_they_are_looked_for():
    text = card(about={"parameters": "22,893,114"})
    assert "| language | English |\n| parameters | 22,893,114 |" in text
    assert "| Letters | CC0 | all 26 of them |" in section(text, "Data")
    assert section(text, "Training") == "0.5 minutes on one core, by `bertsmith pretrain recipes/tiny.toml`."
    assert section(text, "Limits") == "- It knows nothing." and section(text, "Licence") == "Apache-2.0"


def test_scores_have_a_column_for_each_model_and_gaps_stay_empty():
    assert section(card(), "Scores").splitlines() == [
        "| task | tiny-en | a coin |",
        "| --- | --- | --- |",
        "| SST-2 | 51.0 | 50.0 |",
        "| RTE |  | 50.0 |",
        "",
        "Dev sets, 3 seeds.",
    ]


def test_without_scores_there_is_only_how_they_would_be_measured():
    assert section(card(scores={}), "Scores") == "Dev sets, 3 seeds."


def test_the_use_names_the_model_and_shows_what_it_fills():
    use = section(card(filled=[("A [MASK] day.", ["fine", "good"])]), "Use")
    assert 'bertsmith.load("tiny-en")' in use and 'model.fill("A [MASK] day.")' in use and "model=tiny-en" in use
    assert "| A [MASK] day. | fine, good |" in use


def test_what_would_break_a_table_does_not():
    source = {"a | b": {"licence": "CC0", "about": "one\ntwo"}}
    assert r"| a \| b | CC0 | one two |" in section(card(data=source), "Data")
