"""A trained BERT of short texts becomes one of long ones, goes on learning, and does tasks with its question in sight."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith import api, config
from bertsmith.cli import main
from bertsmith.commands import load_stage
from bertsmith.commands.convert_long import Recipe, convert_model
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig, LayerTypes
from bertsmith.model.mixers import (
    AdaptiveSpan,
    Attention,
    Cnn,
    LiteTransformer,
    Longformer,
    Lstm,
    Reformer,
    ReformerChunked,
    TransformerXL,
)
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.model.surgery import convert_weights, extend_positions, merge_mixer_config, replace_mixer, tile_positions
from bertsmith.objectives.supervised import build_batch
from bertsmith.tasks import MultipleChoice, QuestionAnswering, TextClassification, TokenClassification
from bertsmith.tasks.base import EncodedExamples

SMALL = {"layers": 2, "width": 32, "mixer": {"heads": 4}, "feedforward": {"inner": 48}, "positions": 32}
TRAIN = {"steps": 2, "batch_tokens": 256, "warmup": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory, corpus):
    out = tmp_path_factory.mktemp("long") / "bert"
    api.pretrain(corpus=str(corpus), model=SMALL, length=32, train=TRAIN, out=str(out), quiet=True)
    return out


@pytest.fixture(scope="module")
def long(bert):
    out = bert.parent / "long"
    assert main(["convert-long", f"model={bert}", f"out={out}", "length=100", "reach=15", "--quiet"]) == 0
    return out


def read(folder, length, seed=1):
    model = checkpoint.load(folder)[0]
    tokens = torch.randint(5, 80, (2 * length,), generator=torch.Generator().manual_seed(seed))
    return model(Inputs(tokens, Layout.from_lengths([length, length])))


def test_texts_within_reach_are_read_as_before_and_longer_ones_can_be(bert, long):
    assert_close(read(long, 16), read(bert, 16), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(read(long, 32), read(bert, 32), atol=1e-3)  # there, some tokens do not see each other
    assert read(long, 100).shape == (200, 32)
    with pytest.raises(UserError, match="longer than the model's 32 positions"):
        read(bert, 33)


def test_positions_are_tiled_and_anchors_begin_as_copies(bert, long):
    before, after = (checkpoint.load(folder)[0].state_dict() for folder in (bert, long))
    table = before["encoder.positions.weight"]
    assert torch.equal(after["encoder.positions.weight"], torch.cat([table, table, table, table[:4]]))
    for name in [name for name in before if "mixer.project.qkv" in name]:
        assert torch.equal(after[name.replace("project.qkv", "anchored")], before[name])
        assert torch.equal(after[name], before[name])


def test_rotary_positions_need_no_table(corpus, tmp_path, capsys):
    """They are distances: what a window sees is as far away as ever."""
    model = SMALL | {"table": False, "mixer": {"heads": 4, "rotary": 10000.0}}
    api.pretrain(corpus=str(corpus), model=model, length=32, train=TRAIN, out=str(tmp_path / "bert"), quiet=True)
    assert main(["convert-long", f"model={tmp_path / 'bert'}", f"out={tmp_path / 'long'}", "length=100", "reach=15"]) == 0
    assert "anchors beyond it are met as if they stood at its edge" in " ".join(capsys.readouterr().err.split())
    assert checkpoint.load(tmp_path / "long")[0].config.encoder.mixer.rotary == 10000.0
    assert_close(read(tmp_path / "long", 16), read(tmp_path / "bert", 16), atol=1e-5, rtol=1e-5)
    assert read(tmp_path / "long", 100).shape == (200, 32)


def test_pre_training_goes_on_from_it_and_teaches_the_anchors(long, corpus, tmp_path):
    out = tmp_path / "on"
    api.pretrain(corpus=str(corpus), init=str(long), objective="masked", length=100, train=TRAIN, out=str(out), quiet=True)
    before, after = (checkpoint.load(folder)[0].state_dict() for folder in (long, out))
    moved = [name for name in after if name.endswith("anchored.weight")]
    assert len(moved) == 2 and not any(torch.equal(before[name], after[name]) for name in moved)


def test_a_mixer_is_swapped_by_its_name_alone(bert, corpus, tmp_path):
    words = {"corpus": str(corpus), "init": str(bert), "length": 32, "train": TRAIN, "out": str(tmp_path / "out")}
    words["quiet"] = True
    api.pretrain(model={"mixer": {"kind": "window", "reach": 4}}, **words)
    encoder = checkpoint.load(tmp_path / "out")[0].config.encoder
    assert encoder.mixer == Longformer(heads=4, reach=(4,)) and encoder.width == 32
    for model, said in (
        ({"mixer": "window", "width": 64}, "brings its own model"),
        ("bert-base", "brings its own model"),
        ({"mixer": "lstm"}, "mixer=lstm cannot take over the weights of mixer=dense: it needs"),
        ({"mixer": {"kind": "window", "heads": 8}}, r"mixer\.heads = 8 is not what the weights were trained with, 4"),
    ):
        with pytest.raises(UserError, match=said):
            api.pretrain(model=model, **words | {"out": str(tmp_path / "no")})


def test_the_same_command_again_finds_its_work_done_and_another_is_refused(bert, long):
    words = {"model": str(bert), "out": str(long), "length": 100, "quiet": True}
    assert api.convert_long(reach=15, **words)["made"] is False
    with pytest.raises(UserError, match="holds another model"):
        api.convert_long(reach=16, **words)


@pytest.mark.parametrize(("mixer", "says"), [
    (Lstm(), "it needs project.out.bias, project.out.weight"),
    (Cnn(), "it has no use for filters"),
])  # fmt: skip
def test_what_has_no_queries_and_keys_gets_no_window(mixer, says):
    with pytest.raises(UserError, match=says):
        replace_mixer(EncoderConfig(width=32, layers=1, mixer=mixer), Longformer(heads=4))


def test_a_window_goes_back_to_full_attention_without_its_anchors():
    encoder = EncoderConfig(width=32, layers=1, mixer=Longformer(heads=4, causal=True))
    dense = replace_mixer(encoder, Attention())
    assert dense.mixer == Attention(heads=4, causal=True)
    block = "encoder.stack.blocks.0.mixer."
    weights = {f"{block}project.qkv.weight": torch.ones(1), f"{block}anchored.weight": torch.zeros(1)}
    assert set(convert_weights(weights, dense)) == {f"{block}project.qkv.weight"}
    assert convert_weights(weights, encoder)[f"{block}anchored.weight"] == 0  # those it has stay


SWAPS = {
    "alibi": (
        Attention(heads=4, distance=AlibiConfig()),
        Attention(dropout=0.1),
        Attention(heads=4, distance=AlibiConfig(), dropout=0.1),
    ),
    "heads": (Reformer(heads=4), Reformer(rounds=8), Reformer(heads=4, rounds=8)),
    "direction": (Reformer(heads=4, causal=True), Reformer(reach=9), Reformer(heads=4, causal=True, reach=9)),
    "rotary": (
        LiteTransformer(heads=2, rotary=100.0),
        LiteTransformer(dropout=0.1),
        LiteTransformer(heads=2, rotary=100.0, dropout=0.1),
    ),
    "size": (ReformerChunked(heads=4, size=6), ReformerChunked(rounds=3), ReformerChunked(heads=4, size=6, rounds=3)),
}


@pytest.mark.parametrize(("old", "said", "found"), SWAPS.values(), ids=SWAPS)
def test_what_decides_the_meaning_of_the_weights_stays(old, said, found):
    assert replace_mixer(EncoderConfig(width=48, layers=3, mixer=old), said).mixer == found


def test_going_on_with_a_mixer_of_the_same_kind_changes_what_is_said_alone():
    window = Longformer(heads=4, reach=(8,), dilation=(2,), dilated=1, anchors=False)
    for old, said, found in (
        (window, Longformer(dropout=0.1), replace(window, dropout=0.1)),
        (TransformerXL(heads=4, clamp=8, same_length=True), TransformerXL(remembers=32),
         TransformerXL(heads=4, clamp=8, same_length=True, remembers=32)),
        (TransformerXL(heads=4, shared=True), TransformerXL(remembers=32), TransformerXL(heads=4, shared=True, remembers=32)),
        (AdaptiveSpan(heads=4, longest=64), AdaptiveSpan(price=0.1), AdaptiveSpan(heads=4, longest=64, price=0.1)),
        (LiteTransformer(heads=4, kernels=(3, 5, 7)), LiteTransformer(dropout=0.1), LiteTransformer(heads=4, kernels=(3, 5, 7), dropout=0.1)),
    ):  # fmt: skip
        assert replace_mixer(EncoderConfig(width=32, layers=3, mixer=old), merge_mixer_config(said, old)).mixer == found
    assert merge_mixer_config(Longformer(), Attention(heads=4)) == Longformer()
    with pytest.raises(UserError, match="heads = 8 is not"):
        replace_mixer(EncoderConfig(width=32, layers=3, mixer=window), merge_mixer_config(Longformer(heads=8), window))


def test_what_it_goes_on_with_is_told(long, corpus, tmp_path, capsys):
    words = [f"corpus={corpus}", f"init={long}", f"out={tmp_path / 'out'}", "length=32", "train.steps=1", "train.device=cpu"]
    assert main(["pretrain", *words, "model.mixer=window", "model.mixer.dropout=0.1"]) == 0
    assert "goes on with mixer=window, heads=4, reach=[15], dropout=0.1" in " ".join(capsys.readouterr().err.split())
    assert checkpoint.load(tmp_path / "out")[0].config.encoder.mixer == Longformer(heads=4, reach=(15,), dropout=0.1)


ROTARY = Longformer(heads=4, rotary=100.0, anchors=False)


@pytest.mark.parametrize(("mixer", "others", "placeless"), [
    (Attention(heads=4), None, True), (Attention(heads=4, rotary=100.0), None, False), (Attention(heads=4, distance=AlibiConfig()), None, False),
    (Attention(heads=4), LayerTypes(mixer=ROTARY), False), (Attention(heads=4), LayerTypes(), True), (Longformer(heads=4), None, True),
    (Reformer(heads=4), None, True), (ReformerChunked(heads=4), None, True), (LiteTransformer(heads=4), None, False),
    (TransformerXL(heads=4), None, False), (AdaptiveSpan(heads=4), None, False), (Lstm(), None, False),
])  # fmt: skip
def test_a_model_that_tells_no_places_apart_is_known(mixer, others, placeless):
    """By what is asked before training, and by what a model makes of words in another order."""
    others = others and replace(others, mixer=replace(others.mixer, heads=4))
    encoder = EncoderConfig(
        layers=2, width=32, mixer=mixer, others=others, table=False, feedforward=FeedForwardConfig(inner=48)
    )
    assert encoder.lacks_position_information == placeless and not replace(encoder, table=True).lacks_position_information
    model, words = (
        build_model(ModelConfig(encoder=replace(encoder, deviation=0.3), vocabulary=50), 0).eval(),
        torch.arange(5, 25),
    )
    other = torch.cat([words[:1], words[1:-1].flip(0), words[-1:]])
    with torch.no_grad():
        rows = [model(Inputs(given, Layout.from_lengths([20])))[-1] for given in (words, other)]
    assert torch.allclose(*rows, atol=1e-4) == placeless


REFUSED = {
    "heads": (LiteTransformer(heads=4), LiteTransformer(heads=8), "heads = 8 is not what the weights were trained with, 4"),
    "direction": (Cnn(), Cnn(causal=True), "causal = True is not"),
    "backwards": (TransformerXL(heads=4), TransformerXL(heads=4, causal=False), "causal = False is not"),
    "distance": (Attention(heads=4), Attention(distance=AlibiConfig()), r"distance = Alibi\(\) is not .* trained with, None"),
    "activation": (Cnn(), Cnn(activation="tanh"), "activation = tanh is not"),
    "upper blocks": (
        LiteTransformer(kernels=(3, 7)),
        LiteTransformer(kernels=(3, 9)),
        "long-short: other shapes has near.kernel",
    ),
    "chunks": (ReformerChunked(heads=4), ReformerChunked(layers=("near",)), "chunked: other shapes has project.weight"),
    "shared": (TransformerXL(heads=4, shared=True), TransformerXL(), "it needs content, distant"),
    "no heads": (Lstm(), Longformer(), "mixer=window cannot take over the weights of mixer=lstm"),
    "other heads": (LiteTransformer(heads=4), Longformer(), "mixer=window cannot take over the weights of mixer=long-short"),
}


@pytest.mark.parametrize(("old", "said", "why"), REFUSED.values(), ids=REFUSED)
def test_a_mixer_that_would_read_them_otherwise_is_refused(old, said, why):
    with pytest.raises(UserError, match=why):
        replace_mixer(EncoderConfig(width=32, layers=3, mixer=old), said)


def mixed(anchors):
    others = LayerTypes(mixer=Longformer(heads=4, reach=(4,), anchors=anchors))
    return EncoderConfig(
        layers=3, width=32, mixer=Attention(heads=4), others=others, feedforward=FeedForwardConfig(inner=48), positions=64
    )


@pytest.mark.parametrize("anchors", [False, True])
def test_anchors_are_of_the_blocks_that_have_them(anchors):
    before = build_model(ModelConfig(encoder=mixed(anchors), vocabulary=80), 0).eval()
    assert convert_weights(before.state_dict(), mixed(anchors)).keys() == before.state_dict().keys()
    after, tokens = convert_model(before, Recipe(model="a", out="b", length=128)), torch.arange(40)
    assert [block.mixer.anchored is not None for block in after.encoder.stack.blocks] == [True, anchors, anchors]
    assert_close(*(one(Inputs(tokens, Layout.from_lengths([40]))) for one in (after, before)), atol=1e-5, rtol=1e-5)


def test_windows_stay_as_they_are_unless_something_is_said():
    windows = Longformer(heads=4, reach=(4, 8), dilation=(2, 2), dilated=1, dropout=0.1)
    before = build_model(ModelConfig(encoder=EncoderConfig(layers=2, width=32, mixer=windows), vocabulary=80), 0)
    made = [convert_model(before, Recipe(model="a", out="b", length=600, **said)).config.encoder.mixer
            for said in ({}, {"reach": (9,)}, {"dilation": ()}, {"dilation": (3,)})]  # fmt: skip
    assert made == [windows, *(replace(windows, **said) for said in (
        {"reach": (9,)}, {"dilation": (), "dilated": None}, {"dilation": (3,), "dilated": None}
    ))]  # fmt: skip
    with pytest.raises(UserError, match=r"reach=\[\] sees nothing"):
        convert_model(before, Recipe(model="a", out="b", length=600, reach=()))


def test_dropout_that_is_left_out_is_told(corpus, tmp_path, capsys):
    model = SMALL | {"mixer": {"heads": 4, "dropout": 0.1}}
    api.pretrain(corpus=str(corpus), model=model, length=32, train=TRAIN, out=str(tmp_path / "bert"), quiet=True)
    assert main(["convert-long", f"model={tmp_path / 'bert'}", f"out={tmp_path / 'long'}", "length=100"]) == 0
    assert "mixer.dropout=0.1 is left out" in " ".join(capsys.readouterr().err.split())
    assert checkpoint.load(tmp_path / "long")[0].config.encoder.mixer == Longformer(heads=4)
    assert json.loads((tmp_path / "long" / "config.json").read_text())["recipe"]["reach"] == [256]


def test_positions_are_never_lost():
    assert torch.equal(tile_positions(torch.arange(3.0)[:, None], 3), torch.arange(3.0)[:, None])
    with pytest.raises(UserError, match="less than the model's 512 positions"):
        extend_positions(EncoderConfig(), 256)


def encoded():
    ids = [np.arange(7), np.arange(5)]
    return EncodedExamples(ids, [np.array([0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 1])], np.array([0, 1]))


@pytest.mark.parametrize(("task", "anchors"), [
    (QuestionAnswering(), [0, 1, 2, 7, 8]), (MultipleChoice(), [0, 3, 4, 5, 6, 7, 9, 10, 11]), (TextClassification(labels=("a", "b")), None),
    (TokenClassification(labels=("O",)), None),
])  # fmt: skip
def test_a_task_chooses_what_meets_the_whole_text(task, anchors):
    units = [np.array([0, 1])] if isinstance(task, MultipleChoice) else [np.array([0]), np.array([1])]
    data = encoded()
    if isinstance(task, MultipleChoice):
        data.metadata.extend(type("Fact", (), {"number": 0})() for _ in range(2))
    layout = build_batch(task, data, units).inputs.layout
    assert (None if layout.explicit_global_tokens is None else layout.explicit_global_tokens.tolist()) == anchors
    assert layout.global_tokens.tolist() == (anchors or [0, 7])


def test_a_converted_model_learns_to_answer_questions(long, tmp_path):
    context = "the people said so . " * 8 + "she was there ."
    answer = {"text": "she", "answer_start": context.index("she was")}
    asked = [{"id": str(n), "question": f"who was {word}", "answers": [answer]} for n, word in enumerate(["there", "it", "up"])]
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}))
    out = tmp_path / "answers"
    told = api.finetune(task="answer", model=str(long), data={"train": str(file), "dev": str(file)}, length=64, train=TRAIN,
                        out=str(out), quiet=True)  # fmt: skip
    assert told["made"] and 0 <= told["dev"]["f1"] <= 1


def test_a_model_that_was_taught_a_task_does_it_on_longer_texts(bert, tmp_path):
    file = tmp_path / "train.tsv"
    file.write_text("text\tlabel\n" + "".join(f"the people said so {word}\t{word}\n" for word in ("up", "it")))
    taught = {"task": "classify", "data": {"train": str(file)}, "length": 32, "train": TRAIN}
    api.finetune(model=str(bert), out=str(tmp_path / "short"), quiet=True, **taught)
    told = api.convert_long(model=str(tmp_path / "short"), length=100, reach=[15], out=str(tmp_path / "long"), quiet=True)
    assert told["made"] and checkpoint.read_config(tmp_path / "long")["length"] == 100
    short, long = (api.load(str(tmp_path / name)) for name in ("short", "long"))
    brief, lengthy = "the people said so", "she was there . " * 15 + "the people said so it"
    assert long(brief)["scores"] == pytest.approx(short(brief)["scores"], abs=1e-5)
    changed = lengthy.replace("so it", "so up")
    assert short(lengthy)["scores"] == short(changed)["scores"] and long(lengthy)["scores"] != long(changed)["scores"]


@pytest.mark.parametrize("name", ["longformer", "longformer-causal"])
def test_the_recipes_can_be_read(name):
    recipe = config.read_recipe(load_stage("pretrain").Recipe, Path(__file__).parents[2] / "recipes" / f"{name}.toml")
    assert recipe.init if recipe.model is None else len(recipe.model.mixer.reach) == recipe.model.layers
