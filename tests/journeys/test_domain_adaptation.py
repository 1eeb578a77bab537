"""From a model of everyday text to one of a domain: extended words, rows that begin where their pieces are, a lower loss."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith import config
from bertsmith.commands import load_stage
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig
from bertsmith.model.surgery import resize_token_embeddings
from bertsmith.tokenization.extend import map_to_parent_ids
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import HAN, WORDS
from tests.journeys.test_pretraining import SMALL, answer, ran, refused

ROOT = Path(__file__).parents[2]
KEPT = [word for word in SMALL if not word.startswith("model")]
TERMS = ["ribosome", "ribosomal", "polymerase", "polypeptide", "nucleotide", "mitochondria"]


def papers(documents: int, seed: int = 0) -> str:
    """Prose in which a term of the domain is followed by the one word that goes with it."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        lines = []
        for _ in range(8):
            words = [str(word) for word in rng.choice(WORDS, 8)]
            for _ in range(2):
                number, place = int(rng.integers(len(TERMS))), int(rng.integers(len(words)))
                words[place:place] = [TERMS[number], WORDS[number]]
            lines.append(" ".join(words).capitalize() + ".")
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


@pytest.fixture(scope="module")
def home(corpus, tmp_path_factory):
    """A model of everyday text, its tokenizer extended for the domain, and the domain's text by both."""
    folder = tmp_path_factory.mktemp("adaptation")
    (folder / "domain.txt").write_text(papers(60), encoding="utf-8")
    ran("pretrain", f"corpus={corpus}", f"out={folder / 'bert'}", *SMALL, "model.norm=before", "train.rate=3e-3",
        "train.steps=150")  # fmt: skip
    ran("tokenizer", f"extend={folder / 'bert'}", f"texts={folder / 'domain.txt'}", "add=7", f"out={folder / 'extended'}")
    for tokenizer, out in (("extended", "corpus"), ("bert", "plain")):
        ran("prepare", f"texts={folder / 'domain.txt'}", f"tokenizer={folder / tokenizer}", f"out={folder / out}", "workers=1")
    return folder


def adapted(home, out, *words, corpus="corpus", init="bert"):
    begin = [f"corpus={home / corpus}", f"init={home / init}", f"out={out}", *KEPT, "eval_tokens=8192"]
    return answer("pretrain", *begin, *words)


def characters(home, made, corpus):
    """Nats a character, which two vocabularies share."""
    card = json.loads((home / corpus / "card.json").read_text())
    return made["valid_loss_words"] * card["tokens"] / (home / "domain.txt").stat().st_size


def test_the_folder_names_its_parent_and_tells_what_was_gained(home):
    words = ["tokenizer", f"extend={home / 'bert'}", f"texts={home / 'domain.txt'}", "add=7", f"out={home / 'extended'}"]
    told = ran(*words)
    assert "is there already" in told.stderr and "before" in told.stderr and "polypeptide" in told.stderr
    made = answer(*words)
    parent = Tokenizer.load(home / "bert")
    assert not made["made"] and made["added"] == 7 and made["size"] == len(parent) + 7
    assert {piece for piece, _ in made["gains"]} == {*TERMS, "ribosom"}
    assert made["fertility"] == pytest.approx(1, abs=0.001) and made["before"]["fertility"] > 2
    saved = (made["before"]["fertility"] - made["fertility"]) * made["words"]
    assert sum(gain for _, gain in made["gains"]) == pytest.approx(saved)
    card = json.loads((home / "extended" / "card.json").read_text())
    assert card["parent"]["tokenizer"] == parent.fingerprint and card["parent"]["size"] == len(parent)
    assert (home / "extended" / "vocab.txt").read_text().splitlines() == Tokenizer.load(home / "extended").id_to_token
    assert "other text or settings" in refused(*words, "least=3")


def test_a_model_adapts_to_its_domain(home, tmp_path):
    still = ["train.steps=1", "train.rate=1e-9"]
    begun, plain = adapted(home, tmp_path / "begun", *still), adapted(home, tmp_path / "plain", *still, corpus="plain")
    made = adapted(home, tmp_path / "made", "train.rate=3e-3", "train.steps=150")
    size = len(Tokenizer.load(home / "extended"))
    assert begun["valid_loss_words"] < math.log(size) + 1  # new rows are no worse than guessing
    assert made["valid_loss_words"] < begun["valid_loss_words"] - 0.3
    assert characters(home, made, "corpus") < characters(home, plain, "plain")
    guesses = bertsmith.load(tmp_path / "made").fill("the way of [MASK] the", top=6)[0]
    assert {guess["word"] for guess in guesses} & set(TERMS)  # whole terms, where there were letters


def test_new_rows_are_the_mean_of_what_they_replace(home, tmp_path):
    told = ran("pretrain", f"corpus={home / 'corpus'}", f"init={home / 'bert'}", f"out={tmp_path / 'out'}", *KEPT,
               "train.steps=1", "train.rate=1e-9", "train.decay=0")  # fmt: skip
    old, parent, _ = checkpoint.load(home / "bert")
    new, child, _ = checkpoint.load(tmp_path / "out")
    assert f"7 new tokens begin as the mean of the old ones that spell them, {len(parent)} stay" in told.stderr
    for name in ("encoder.tokens.weight", "heads.words.bias"):
        before, after = old.state_dict()[name], new.state_dict()[name]
        torch.testing.assert_close(after[: len(parent)], before, atol=1e-6, rtol=0)
        assert len(after) == len(child) == len(parent) + 7
        for row, ids in zip(after[len(parent) :], map_to_parent_ids(child, parent), strict=True):
            torch.testing.assert_close(row, before[ids].mean(0), atol=1e-6, rtol=0)


def test_padding_of_a_table_is_used_before_it_grows():
    table = torch.arange(24.0).reshape(8, 3)  # six tokens, two rows of padding
    weights = {"encoder.tokens.weight": table, "encoder.norm.weight": table[0]}
    one = resize_token_embeddings(weights, 6, [[0, 2]])
    torch.testing.assert_close(one["encoder.tokens.weight"], torch.cat([table[:6], table[1:2], table[7:]]))
    three = resize_token_embeddings(weights, 6, [[0, 2], [3], [0, 1, 2]])["encoder.tokens.weight"]
    torch.testing.assert_close(three, torch.cat([table[:6], table[[1, 3, 1]]]))
    assert one["encoder.norm.weight"] is weights["encoder.norm.weight"]


def test_a_padded_model_takes_new_words_without_growing(home, tmp_path):
    model, tokenizer, card = checkpoint.load(home / "bert")
    weights = {n: torch.cat([t, t.new_zeros(64, *t.shape[1:])]) if n in ("encoder.tokens.weight", "heads.words.bias") else t
               for n, t in model.state_dict().items()}  # fmt: skip
    size = model.config.vocabulary + 64
    padded = checkpoint.Model(ModelConfig(encoder=model.config.encoder, vocabulary=size, heads=model.config.heads))
    padded.load_state_dict(weights)
    checkpoint.save(tmp_path / "padded", padded, tokenizer, card, {"tokenizer": tokenizer.fingerprint})
    ran("pretrain", f"corpus={home / 'corpus'}", f"init={tmp_path / 'padded'}", f"out={tmp_path / 'out'}", *KEPT,
        "train.steps=1", "train.rate=1e-9")  # fmt: skip
    new, child, _ = checkpoint.load(tmp_path / "out")
    assert new.config.vocabulary == size > len(child)
    assert new.encoder.tokens.weight[len(tokenizer) : len(child)].abs().sum(1).min() > 0


def test_an_adapted_model_is_fine_tuned_and_asked(home, tmp_path):
    adapted(home, tmp_path / "bert", "train.steps=5")
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        label = int(rng.integers(2))
        words = [*map(str, rng.choice(WORDS, 6)), TERMS[label]]
        rows.append({"text": " ".join(map(str, rng.permutation(words))), "label": ["assembly", "ending"][label]})
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran("finetune", "task=classify", f"model={tmp_path / 'bert'}", f"data.train={tmp_path / 'train.jsonl'}",
        f"out={tmp_path / 'out'}", "length=32", "train.batch_tokens=512", "train.rate=3e-3", "train.epochs=8")  # fmt: skip
    loaded = bertsmith.load(tmp_path / "out")
    assert loaded("the way of the ribosome was made")["label"] == "assembly"
    assert json.loads(ran("predict", f"model={tmp_path / 'out'}", "text=all ribosomal people").stdout)["label"] == "ending"


def test_another_tokenizer_is_still_refused(home, tmp_path):
    (tmp_path / "text.txt").write_text(papers(20, seed=1), encoding="utf-8")
    ran("tokenizer", f"texts={tmp_path / 'text.txt'}", "size=200", f"out={tmp_path / 'other'}")
    ran("prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={tmp_path / 'other'}", f"out={tmp_path / 'corpus'}")
    words = ["pretrain", f"corpus={tmp_path / 'corpus'}", f"init={home / 'bert'}", f"out={tmp_path / 'out'}", *KEPT]
    said = refused(*words, "train.steps=1")
    assert "another tokenizer" in said and "tokenizer extend=" in said


def test_settings_that_do_not_go_together_are_refused(home, tmp_path):
    begin = ["tokenizer", f"texts={home / 'domain.txt'}", f"out={tmp_path / 'out'}"]
    assert "goes with extend" in refused(*begin, "add=5")
    assert "add=1000" in refused(*begin, f"extend={home / 'bert'}")
    assert "brings its own size" in refused(*begin, f"extend={home / 'bert'}", "add=5", "size=500")
    assert "there is no tokenizer at" in refused(*begin, f"extend={tmp_path / 'nowhere'}", "add=5")


def test_chinese_is_told_that_its_characters_stay_alone(home, tmp_path):
    (tmp_path / "text.txt").write_text(f"{HAN}龘龘龘\n\n{HAN}\n", encoding="utf-8")
    done = ran("tokenizer", f"extend={home / 'bert'}", f"texts={tmp_path / 'text.txt'}", "add=50", f"out={tmp_path / 'out'}")
    assert "no new piece joins them" in done.stderr and "no more than 1:" in done.stderr
    assert Tokenizer.load(tmp_path / "out").id_to_token[-1] == "龘"


@pytest.mark.parametrize(("recipe", "name"), [("domain-tokenizer", "tokenizer"), ("domain-pretrain", "pretrain")])
def test_the_recipes_can_be_read(recipe, name):
    read = config.read_recipe(load_stage(name).Recipe, ROOT / "recipes" / f"{recipe}.toml")
    assert read.extend if name == "tokenizer" else read.init
