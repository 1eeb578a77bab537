"""schema.json: up to date, and equal to the structs it describes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bertsmith.commands import POSITIONAL, STAGES, load_stage
from bertsmith.config import RecipeError, from_user, iter_keys, to_dict
from bertsmith.model.presets import PRESETS
from bertsmith.recipes import read_recipe, read_values
from bertsmith.schema import SCHEMA_FILE, generate_schema, load_stage_schema

REQUIRED = ["corpus=c", "out=o"]


def parse_schema(text: str) -> Any:
    """JSON with sorted literals: `typing` caches equal annotations, so the order of a literal depends on earlier imports."""
    return json.loads(text, object_hook=lambda item: {"literal": sorted(item["literal"])} if "literal" in item else item)


def test_schema_is_up_to_date():
    assert parse_schema(SCHEMA_FILE.read_text(encoding="utf-8")) == parse_schema(generate_schema()), (
        "recipes have changed: write schema.json again with `make schema` (python -m bertsmith.schema)"
    )


@pytest.mark.parametrize("name", STAGES)
def test_schema_lists_the_same_keys_as_the_structs(name):
    keys = [
        [replace(key, type_name=" | ".join(sorted(key.type_name.split(" | ")))) for key in iter_keys(struct)]
        for struct in (load_stage_schema(name), load_stage(name).Recipe)
    ]
    assert keys[0] == keys[1]


def test_positional_keys_are_keys_of_their_stage():
    for name, keys in POSITIONAL.items():
        assert set(keys) <= set(load_stage_schema(name).__struct_fields__)


@pytest.mark.parametrize("preset", PRESETS)
def test_schema_presets_equal_those_of_the_structs(preset):
    overrides = [*REQUIRED, f"model={preset}"]
    from_schema, from_stage = (
        to_dict(read_recipe(recipe_type, None, overrides))
        for recipe_type in (load_stage_schema("pretrain"), load_stage("pretrain").Recipe)
    )
    assert from_schema["train"].pop("learning_rate") is None  # its default depends on the objective
    assert from_stage["train"].pop("learning_rate") == 1e-4
    assert from_schema == from_stage


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model=bert-tiny", "objective=mlm", "objective.masking=span", "max_length=[128, 512]", "train.optimizer=bert-adam"],
        [
            "model=modernbert-base",
            "model.num_hidden_layers=3",
            "model.layer_types.mixer=attention",
            "train.optimizer.betas=[0.8, 0.9]",
        ],
        [
            "model.mixer=longformer",
            "model.mixer.attention_window=[128]",
            "train.steps=7",
            "init=a/b",
            "seed=-1",
            "model.position_embedding_type=sinusoidal",
        ],
    ],
)
def test_schema_values_convert_to_the_same_recipe(overrides):
    values, source = read_values(load_stage_schema("pretrain"), None, [*REQUIRED, *overrides])
    assert from_user(load_stage("pretrain").Recipe, values, source) == read_recipe(
        load_stage("pretrain").Recipe, None, [*REQUIRED, *overrides]
    )


@pytest.mark.parametrize(
    "override",
    [
        "objectiv=mlm", "train.setps=3", "model.mixer.num_heads=3", "objective.masking.qqq=3", "steps=3", "objective=mlmm",
        "model=bert-mni", "model={mixer={kind='lstm', num_attention_heads=4}}", "train.steps=many", "train.steps=0",
        "model.num_hidden_layers=2.5", "train.optimizer.betas=0.9", 'max_length=[128, "x"]', "max_length=[]", "max_length=4",
        "validation_split=1", "max_length=[a]", "train=[1]", "train.steps.more=1", "model.norm=x", "model.mixer=3",
    ],
)  # fmt: skip
def test_schema_errors_equal_those_of_the_structs(override):
    messages = []
    for struct in (load_stage_schema("pretrain"), load_stage("pretrain").Recipe):
        with pytest.raises(RecipeError) as caught:
            read_recipe(struct, None, [*REQUIRED, override])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
