"""The recipes of BERT's relatives (ALBERT, ELECTRA, ModernBERT, ...) at a small size: each pre-trains."""

import json
from pathlib import Path

import pytest

import bertsmith
from tests.support.cli import run_cli_json

ROOT = Path(__file__).parents[2]
TINY = """
model.num_hidden_layers=3 model.hidden_size=32 model.mixer.num_attention_heads=2 model.feedforward.intermediate_size=64
model.max_position_embeddings=64 model.initializer_range=0.1 max_length=64 phase_fractions=[] train.batch_tokens=512
train.gradient_accumulation_steps=1 train.steps=30 train.precision=fp32 train.compile=false train.workers=0
train.warmup_steps=0.1 train.log_every=5 eval_tokens=2048 validation_split=0.1
""".split()  # noqa: SIM905
RECIPE_OPTIONS = {
    "albert": ["model.embedding_size=16", "train.learning_rate=1e-2"],
    "electra": ["model.embedding_size=16"],
    "modernbert": ["model.layer_types.mixer.num_attention_heads=2", "model.layer_types.mixer.attention_window=[8]"],
    "lite": ["model.mixer.num_filters=2"],
    "roberta-style": [],
}


@pytest.mark.parametrize("name", RECIPE_OPTIONS)
def test_family_recipe_pretrains(name, corpus, tmp_path):
    out = tmp_path / name
    recipe = (ROOT / "recipes" / f"{name}.toml").read_text().replace("epochs = 20\n", "")  # the test sets steps instead
    (tmp_path / "recipe.toml").write_text(recipe)
    result = run_cli_json("pretrain", tmp_path / "recipe.toml", f"corpus={corpus}", f"out={out}", *TINY, *RECIPE_OPTIONS[name])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert result["valid_mlm_loss"] < rows[0]["mlm_loss"]
    model = bertsmith.load(out).model
    assert len(model.encoder.stack.layers) == (1 if name == "albert" else 3)
    heads = {"albert": ["lm", "sop"], "electra": ["rtd"]}
    assert list(model.config.heads) == heads.get(name, ["lm"])
