"""Domain adaptation: an extended vocabulary, new embeddings as the mean of their subwords, continued pre-training."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith import recipes
from bertsmith.commands import load_stage
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig
from bertsmith.model.surgery import resize_token_embeddings
from bertsmith.tokenization.extend import map_to_parent_ids
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.cli import SMALL, run_cli, run_cli_error, run_cli_json
from tests.support.texts import CHINESE_CHARS, WORDS

ROOT = Path(__file__).parents[2]
COMMON_SETTINGS = [word for word in SMALL if not word.startswith("model")]
TERMS = ["ribosome", "ribosomal", "polymerase", "polypeptide", "nucleotide", "mitochondria"]


def domain_text(documents: int, seed: int = 0) -> str:
    """Text in which each domain term is followed by a word determined by it."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        lines = []
        for _ in range(8):
            words = [str(word) for word in rng.choice(WORDS, 8)]
            for _ in range(2):
                term, position = int(rng.integers(len(TERMS))), int(rng.integers(len(words)))
                words[position:position] = [TERMS[term], WORDS[term]]
            lines.append(" ".join(words).capitalize() + ".")
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


@pytest.fixture(scope="module")
def home(corpus, tmp_path_factory):
    """A folder with a general model, its tokenizer extended for the domain, and the domain corpus by both tokenizers."""
    folder = tmp_path_factory.mktemp("adaptation")
    (folder / "domain.txt").write_text(domain_text(60), encoding="utf-8")
    run_cli("pretrain", f"corpus={corpus}", f"out={folder / 'bert'}", *SMALL, "model.norm=pre", "train.learning_rate=3e-3",
        "train.steps=150")  # fmt: skip
    run_cli("tokenizer", f"extend={folder / 'bert'}", f"texts={folder / 'domain.txt'}", "add=7", f"out={folder / 'extended'}")
    for tokenizer, out in (("extended", "corpus"), ("bert", "plain")):
        run_cli(
            "prepare", f"texts={folder / 'domain.txt'}", f"tokenizer={folder / tokenizer}", f"out={folder / out}", "workers=1"
        )
    return folder


def continue_pretraining(home, out, *settings, corpus="corpus", init="bert"):
    arguments = [f"corpus={home / corpus}", f"init={home / init}", f"out={out}", *COMMON_SETTINGS, "eval_tokens=8192"]
    return run_cli_json("pretrain", *arguments, *settings)


def nll_per_character(home, result, corpus):
    """Negative log-likelihood in nats per byte, comparable between vocabularies."""
    card = json.loads((home / corpus / "card.json").read_text())
    return result["valid_mlm_loss"] * card["tokens"] / (home / "domain.txt").stat().st_size


def test_extended_tokenizer_records_parent_and_gains(home):
    arguments = ["tokenizer", f"extend={home / 'bert'}", f"texts={home / 'domain.txt'}", "add=7", f"out={home / 'extended'}"]
    output = run_cli(*arguments)
    assert "already exists" in output.stderr and "before" in output.stderr and "polypeptide" in output.stderr
    result = run_cli_json(*arguments)
    parent = Tokenizer.load(home / "bert")
    assert not result["created"] and result["num_added_tokens"] == 7 and result["vocab_size"] == len(parent) + 7
    assert {token for token, _ in result["added_tokens"]} == {*TERMS, "ribosom"}
    assert result["fertility"] == pytest.approx(1, abs=0.001) and result["parent"]["fertility"] > 2
    saved = (result["parent"]["fertility"] - result["fertility"]) * result["words"]
    assert sum(gain for _, gain in result["added_tokens"]) == pytest.approx(saved)
    card = json.loads((home / "extended" / "card.json").read_text())
    assert card["parent"]["tokenizer_fingerprint"] == parent.fingerprint and card["parent"]["vocab_size"] == len(parent)
    assert (home / "extended" / "vocab.txt").read_text().splitlines() == Tokenizer.load(home / "extended").id_to_token
    assert "other texts or with other settings" in run_cli_error(*arguments, "min_frequency=3")


def test_continued_pretraining_adapts_to_domain(home, tmp_path):
    no_training = ["train.steps=1", "train.learning_rate=1e-9"]
    initial, initial_plain = (
        continue_pretraining(home, tmp_path / "begun", *no_training),
        continue_pretraining(home, tmp_path / "plain", *no_training, corpus="plain"),
    )
    adapted = continue_pretraining(home, tmp_path / "made", "train.learning_rate=3e-3", "train.steps=150")
    size = len(Tokenizer.load(home / "extended"))
    assert initial["valid_mlm_loss"] < math.log(size) + 1  # new embeddings are about as good as uniform guessing
    assert adapted["valid_mlm_loss"] < initial["valid_mlm_loss"] - 0.3
    assert nll_per_character(home, adapted, "corpus") < nll_per_character(home, initial_plain, "plain")
    guesses = bertsmith.load(tmp_path / "made").fill("the way of [MASK] the", top_k=6)
    assert {guess["token_str"] for guess in guesses} & set(TERMS)  # terms that are one token now


def test_new_token_embeddings_are_mean_of_their_subwords(home, tmp_path):
    output = run_cli("pretrain", f"corpus={home / 'corpus'}", f"init={home / 'bert'}", f"out={tmp_path / 'out'}",
                     *COMMON_SETTINGS, "train.steps=1", "train.learning_rate=1e-9", "train.weight_decay=0")  # fmt: skip
    base, parent, _ = checkpoint.load(home / "bert")
    extended, child, _ = checkpoint.load(tmp_path / "out")
    assert "7 new tokens start from the mean embedding of the old tokens they consist of" in output.stderr
    for name in ("encoder.word_embeddings.weight", "heads.lm.bias"):
        before, after = base.state_dict()[name], extended.state_dict()[name]
        torch.testing.assert_close(after[: len(parent)], before, atol=1e-6, rtol=0)
        assert len(after) == len(child) == len(parent) + 7
        for row, ids in zip(after[len(parent) :], map_to_parent_ids(child, parent), strict=True):
            torch.testing.assert_close(row, before[ids].mean(0), atol=1e-6, rtol=0)


def test_resize_token_embeddings_uses_padding_rows_first():
    table = torch.arange(24.0).reshape(8, 3)  # six tokens, two padding rows
    weights = {"encoder.word_embeddings.weight": table, "encoder.embedding_norm.weight": table[0]}
    by_one = resize_token_embeddings(weights, 6, [[0, 2]])
    torch.testing.assert_close(by_one["encoder.word_embeddings.weight"], torch.cat([table[:6], table[1:2], table[7:]]))
    by_three = resize_token_embeddings(weights, 6, [[0, 2], [3], [0, 1, 2]])["encoder.word_embeddings.weight"]
    torch.testing.assert_close(by_three, torch.cat([table[:6], table[[1, 3, 1]]]))
    assert by_one["encoder.embedding_norm.weight"] is weights["encoder.embedding_norm.weight"]


def test_padded_embeddings_take_new_tokens_without_growing(home, tmp_path):
    model, tokenizer, card = checkpoint.load(home / "bert")
    padded = ("encoder.word_embeddings.weight", "heads.lm.bias")
    weights = {n: torch.cat([t, t.new_zeros(64, *t.shape[1:])]) if n in padded else t
               for n, t in model.state_dict().items()}  # fmt: skip
    size = model.config.vocab_size + 64
    padded = checkpoint.Model(ModelConfig(encoder=model.config.encoder, vocab_size=size, heads=model.config.heads))
    padded.load_state_dict(weights)
    checkpoint.save(tmp_path / "padded", padded, tokenizer, card, {"tokenizer_fingerprint": tokenizer.fingerprint})
    run_cli("pretrain", f"corpus={home / 'corpus'}", f"init={tmp_path / 'padded'}", f"out={tmp_path / 'out'}", *COMMON_SETTINGS,
        "train.steps=1", "train.learning_rate=1e-9")  # fmt: skip
    new, child, _ = checkpoint.load(tmp_path / "out")
    assert new.config.vocab_size == size > len(child)
    assert new.encoder.word_embeddings.weight[len(tokenizer) : len(child)].abs().sum(1).min() > 0


def test_adapted_model_is_fine_tuned_and_predicts(home, tmp_path):
    continue_pretraining(home, tmp_path / "bert", "train.steps=5")
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        label = int(rng.integers(2))
        words = [*map(str, rng.choice(WORDS, 6)), TERMS[label]]
        rows.append({"text": " ".join(map(str, rng.permutation(words))), "label": ["assembly", "ending"][label]})
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_cli("finetune", "task=classify", f"model={tmp_path / 'bert'}", f"data.train={tmp_path / 'train.jsonl'}",
        f"out={tmp_path / 'out'}", "max_length=32", "train.batch_tokens=512", "train.learning_rate=3e-3",
        "train.epochs=8")  # fmt: skip
    predictor = bertsmith.load(tmp_path / "out")
    assert predictor("the way of the ribosome was made")["label"] == "assembly"
    assert json.loads(run_cli("predict", f"model={tmp_path / 'out'}", "text=all ribosomal people").stdout)["label"] == "ending"


def test_pretrain_init_rejects_unrelated_tokenizer(home, tmp_path):
    (tmp_path / "text.txt").write_text(domain_text(20, seed=1), encoding="utf-8")
    run_cli("tokenizer", f"texts={tmp_path / 'text.txt'}", "vocab_size=200", f"out={tmp_path / 'other'}")
    run_cli("prepare", f"texts={tmp_path / 'text.txt'}", f"tokenizer={tmp_path / 'other'}", f"out={tmp_path / 'corpus'}")
    arguments = [
        "pretrain",
        f"corpus={tmp_path / 'corpus'}",
        f"init={home / 'bert'}",
        f"out={tmp_path / 'out'}",
        *COMMON_SETTINGS,
    ]
    message = run_cli_error(*arguments, "train.steps=1")
    assert "another tokenizer" in message and "tokenizer extend=" in message


def test_tokenizer_extend_rejects_contradicting_settings(home, tmp_path):
    arguments = ["tokenizer", f"texts={home / 'domain.txt'}", f"out={tmp_path / 'out'}"]
    assert "needs extend=TOKENIZER" in run_cli_error(*arguments, "add=5")
    assert "add=1000" in run_cli_error(*arguments, f"extend={home / 'bert'}")
    assert "vocab_size is taken from extend=" in run_cli_error(*arguments, f"extend={home / 'bert'}", "add=5", "vocab_size=500")
    assert "there is no tokenizer at" in run_cli_error(*arguments, f"extend={tmp_path / 'nowhere'}", "add=5")


def test_tokenizer_extend_warns_of_chinese_characters(home, tmp_path):
    (tmp_path / "text.txt").write_text(f"{CHINESE_CHARS}龘龘龘\n\n{CHINESE_CHARS}\n", encoding="utf-8")
    output = run_cli(
        "tokenizer", f"extend={home / 'bert'}", f"texts={tmp_path / 'text.txt'}", "add=50", f"out={tmp_path / 'out'}"
    )
    assert "no new token joins several of them" in output.stderr and "only 1 added:" in output.stderr
    assert Tokenizer.load(tmp_path / "out").id_to_token[-1] == "龘"


@pytest.mark.parametrize(("recipe", "name"), [("domain-tokenizer", "tokenizer"), ("domain-pretrain", "pretrain")])
def test_domain_recipes_can_be_read(recipe, name):
    loaded = recipes.read_recipe(load_stage(name).Recipe, ROOT / "recipes" / f"{recipe}.toml")
    assert loaded.extend if name == "tokenizer" else loaded.init
