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
from bertsmith.commands import stage
from bertsmith.commands.convert_long import Recipe, converted
from bertsmith.errors import BadInput
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig, Others
from bertsmith.model.mixers import Adaptive, Chunked, Convolution, Dense, Hashed, LongShort, Lstm, Recurrent, Window
from bertsmith.model.model import ModelConfig, built
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import Alibi
from bertsmith.model.sublayers import FeedForward
from bertsmith.model.surgery import adopted, going_on, lengthened, swapped, tiled
from bertsmith.objectives.supervised import batch
from bertsmith.tasks import Answering, Choose, Classify, Tag
from bertsmith.tasks.base import Encoded

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
    return model(Inputs(tokens, Layout.of([length, length])))


def test_texts_within_reach_are_read_as_before_and_longer_ones_can_be(bert, long):
    assert_close(read(long, 16), read(bert, 16), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(read(long, 32), read(bert, 32), atol=1e-3)  # there, some tokens do not see each other
    assert read(long, 100).shape == (200, 32)
    with pytest.raises(BadInput, match="longer than the model's 32 positions"):
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
    assert encoder.mixer == Window(heads=4, reach=(4,)) and encoder.width == 32
    for model, said in (
        ({"mixer": "window", "width": 64}, "brings its own model"),
        ("bert-base", "brings its own model"),
        ({"mixer": "lstm"}, "mixer=lstm cannot take over the weights of mixer=dense: it needs"),
        ({"mixer": {"kind": "window", "heads": 8}}, r"mixer\.heads = 8 is not what the weights were trained with, 4"),
    ):
        with pytest.raises(BadInput, match=said):
            api.pretrain(model=model, **words | {"out": str(tmp_path / "no")})


def test_the_same_command_again_finds_its_work_done_and_another_is_refused(bert, long):
    words = {"model": str(bert), "out": str(long), "length": 100, "quiet": True}
    assert api.convert_long(reach=15, **words)["made"] is False
    with pytest.raises(BadInput, match="holds another model"):
        api.convert_long(reach=16, **words)


@pytest.mark.parametrize(("mixer", "says"), [
    (Lstm(), "it needs project.out.bias, project.out.weight"),
    (Convolution(), "it has no use for filters"),
])  # fmt: skip
def test_what_has_no_queries_and_keys_gets_no_window(mixer, says):
    with pytest.raises(BadInput, match=says):
        swapped(EncoderConfig(width=32, layers=1, mixer=mixer), Window(heads=4))


def test_a_window_goes_back_to_full_attention_without_its_anchors():
    encoder = EncoderConfig(width=32, layers=1, mixer=Window(heads=4, causal=True))
    dense = swapped(encoder, Dense())
    assert dense.mixer == Dense(heads=4, causal=True)
    block = "encoder.stack.blocks.0.mixer."
    weights = {f"{block}project.qkv.weight": torch.ones(1), f"{block}anchored.weight": torch.zeros(1)}
    assert set(adopted(weights, dense)) == {f"{block}project.qkv.weight"}
    assert adopted(weights, encoder)[f"{block}anchored.weight"] == 0  # those it has stay


SWAPS = {
    "alibi": (Dense(heads=4, distance=Alibi()), Dense(dropout=0.1), Dense(heads=4, distance=Alibi(), dropout=0.1)),
    "heads": (Hashed(heads=4), Hashed(rounds=8), Hashed(heads=4, rounds=8)),
    "direction": (Hashed(heads=4, causal=True), Hashed(reach=9), Hashed(heads=4, causal=True, reach=9)),
    "rotary": (LongShort(heads=2, rotary=100.0), LongShort(dropout=0.1), LongShort(heads=2, rotary=100.0, dropout=0.1)),
    "size": (Chunked(heads=4, size=6), Chunked(rounds=3), Chunked(heads=4, size=6, rounds=3)),
}


@pytest.mark.parametrize(("old", "said", "found"), SWAPS.values(), ids=SWAPS)
def test_what_decides_the_meaning_of_the_weights_stays(old, said, found):
    assert swapped(EncoderConfig(width=48, layers=3, mixer=old), said).mixer == found


def test_going_on_with_a_mixer_of_the_same_kind_changes_what_is_said_alone():
    window = Window(heads=4, reach=(8,), dilation=(2,), dilated=1, anchors=False)
    for old, said, found in (
        (window, Window(dropout=0.1), replace(window, dropout=0.1)),
        (Recurrent(heads=4, clamp=8, same_length=True), Recurrent(remembers=32),
         Recurrent(heads=4, clamp=8, same_length=True, remembers=32)),
        (Recurrent(heads=4, shared=True), Recurrent(remembers=32), Recurrent(heads=4, shared=True, remembers=32)),
        (Adaptive(heads=4, longest=64), Adaptive(price=0.1), Adaptive(heads=4, longest=64, price=0.1)),
        (LongShort(heads=4, kernels=(3, 5, 7)), LongShort(dropout=0.1), LongShort(heads=4, kernels=(3, 5, 7), dropout=0.1)),
    ):  # fmt: skip
        assert swapped(EncoderConfig(width=32, layers=3, mixer=old), going_on(said, old)).mixer == found
    assert going_on(Window(), Dense(heads=4)) == Window()
    with pytest.raises(BadInput, match="heads = 8 is not"):
        swapped(EncoderConfig(width=32, layers=3, mixer=window), going_on(Window(heads=8), window))


def test_what_it_goes_on_with_is_told(long, corpus, tmp_path, capsys):
    words = [f"corpus={corpus}", f"init={long}", f"out={tmp_path / 'out'}", "length=32", "train.steps=1", "train.device=cpu"]
    assert main(["pretrain", *words, "model.mixer=window", "model.mixer.dropout=0.1"]) == 0
    assert "goes on with mixer=window, heads=4, reach=[15], dropout=0.1" in " ".join(capsys.readouterr().err.split())
    assert checkpoint.load(tmp_path / "out")[0].config.encoder.mixer == Window(heads=4, reach=(15,), dropout=0.1)


ROTARY = Window(heads=4, rotary=100.0, anchors=False)


@pytest.mark.parametrize(("mixer", "others", "placeless"), [
    (Dense(heads=4), None, True), (Dense(heads=4, rotary=100.0), None, False), (Dense(heads=4, distance=Alibi()), None, False),
    (Dense(heads=4), Others(mixer=ROTARY), False), (Dense(heads=4), Others(), True), (Window(heads=4), None, True),
    (Hashed(heads=4), None, True), (Chunked(heads=4), None, True), (LongShort(heads=4), None, False),
    (Recurrent(heads=4), None, False), (Adaptive(heads=4), None, False), (Lstm(), None, False),
])  # fmt: skip
def test_a_model_that_tells_no_places_apart_is_known(mixer, others, placeless):
    """By what is asked before training, and by what a model makes of words in another order."""
    others = others and replace(others, mixer=replace(others.mixer, heads=4))
    encoder = EncoderConfig(layers=2, width=32, mixer=mixer, others=others, table=False, feedforward=FeedForward(inner=48))
    assert encoder.placeless == placeless and not replace(encoder, table=True).placeless
    model, words = built(ModelConfig(encoder=replace(encoder, deviation=0.3), vocabulary=50), 0).eval(), torch.arange(5, 25)
    other = torch.cat([words[:1], words[1:-1].flip(0), words[-1:]])
    with torch.no_grad():
        rows = [model(Inputs(given, Layout.of([20])))[-1] for given in (words, other)]
    assert torch.allclose(*rows, atol=1e-4) == placeless


REFUSED = {
    "heads": (LongShort(heads=4), LongShort(heads=8), "heads = 8 is not what the weights were trained with, 4"),
    "direction": (Convolution(), Convolution(causal=True), "causal = True is not"),
    "backwards": (Recurrent(heads=4), Recurrent(heads=4, causal=False), "causal = False is not"),
    "distance": (Dense(heads=4), Dense(distance=Alibi()), r"distance = Alibi\(\) is not .* trained with, None"),
    "activation": (Convolution(), Convolution(activation="tanh"), "activation = tanh is not"),
    "upper blocks": (LongShort(kernels=(3, 7)), LongShort(kernels=(3, 9)), "long-short: other shapes has near.kernel"),
    "chunks": (Chunked(heads=4), Chunked(layers=("near",)), "chunked: other shapes has project.weight"),
    "shared": (Recurrent(heads=4, shared=True), Recurrent(), "it needs content, distant"),
    "no heads": (Lstm(), Window(), "mixer=window cannot take over the weights of mixer=lstm"),
    "other heads": (LongShort(heads=4), Window(), "mixer=window cannot take over the weights of mixer=long-short"),
}


@pytest.mark.parametrize(("old", "said", "why"), REFUSED.values(), ids=REFUSED)
def test_a_mixer_that_would_read_them_otherwise_is_refused(old, said, why):
    with pytest.raises(BadInput, match=why):
        swapped(EncoderConfig(width=32, layers=3, mixer=old), said)


def mixed(anchors):
    others = Others(mixer=Window(heads=4, reach=(4,), anchors=anchors))
    return EncoderConfig(
        layers=3, width=32, mixer=Dense(heads=4), others=others, feedforward=FeedForward(inner=48), positions=64
    )


@pytest.mark.parametrize("anchors", [False, True])
def test_anchors_are_of_the_blocks_that_have_them(anchors):
    before = built(ModelConfig(encoder=mixed(anchors), vocabulary=80), 0).eval()
    assert adopted(before.state_dict(), mixed(anchors)).keys() == before.state_dict().keys()
    after, tokens = converted(before, Recipe(model="a", out="b", length=128)), torch.arange(40)
    assert [block.mixer.anchored is not None for block in after.encoder.stack.blocks] == [True, anchors, anchors]
    assert_close(*(one(Inputs(tokens, Layout.of([40]))) for one in (after, before)), atol=1e-5, rtol=1e-5)


def test_windows_stay_as_they_are_unless_something_is_said():
    windows = Window(heads=4, reach=(4, 8), dilation=(2, 2), dilated=1, dropout=0.1)
    before = built(ModelConfig(encoder=EncoderConfig(layers=2, width=32, mixer=windows), vocabulary=80), 0)
    made = [converted(before, Recipe(model="a", out="b", length=600, **said)).config.encoder.mixer
            for said in ({}, {"reach": (9,)}, {"dilation": ()}, {"dilation": (3,)})]  # fmt: skip
    assert made == [windows, *(replace(windows, **said) for said in (
        {"reach": (9,)}, {"dilation": (), "dilated": None}, {"dilation": (3,), "dilated": None}
    ))]  # fmt: skip
    with pytest.raises(BadInput, match=r"reach=\[\] sees nothing"):
        converted(before, Recipe(model="a", out="b", length=600, reach=()))


def test_dropout_that_is_left_out_is_told(corpus, tmp_path, capsys):
    model = SMALL | {"mixer": {"heads": 4, "dropout": 0.1}}
    api.pretrain(corpus=str(corpus), model=model, length=32, train=TRAIN, out=str(tmp_path / "bert"), quiet=True)
    assert main(["convert-long", f"model={tmp_path / 'bert'}", f"out={tmp_path / 'long'}", "length=100"]) == 0
    assert "mixer.dropout=0.1 is left out" in " ".join(capsys.readouterr().err.split())
    assert checkpoint.load(tmp_path / "long")[0].config.encoder.mixer == Window(heads=4)
    assert json.loads((tmp_path / "long" / "config.json").read_text())["recipe"]["reach"] == [256]


def test_positions_are_never_lost():
    assert torch.equal(tiled(torch.arange(3.0)[:, None], 3), torch.arange(3.0)[:, None])
    with pytest.raises(BadInput, match="less than the model's 512 positions"):
        lengthened(EncoderConfig(), 256)


def encoded():
    ids = [np.arange(7), np.arange(5)]
    return Encoded(ids, [np.array([0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 1])], np.array([0, 1]))


@pytest.mark.parametrize(("task", "anchors"), [
    (Answering(), [0, 1, 2, 7, 8]), (Choose(), [0, 3, 4, 5, 6, 7, 9, 10, 11]), (Classify(labels=("a", "b")), None),
    (Tag(labels=("O",)), None),
])  # fmt: skip
def test_a_task_chooses_what_meets_the_whole_text(task, anchors):
    units = [np.array([0, 1])] if isinstance(task, Choose) else [np.array([0]), np.array([1])]
    data = encoded()
    if isinstance(task, Choose):
        data.facts.extend(type("Fact", (), {"number": 0})() for _ in range(2))
    layout = batch(task, data, units).inputs.layout
    assert (None if layout.anchors is None else layout.anchors.tolist()) == anchors
    assert layout.anchored.tolist() == (anchors or [0, 7])


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
    assert told["made"] and checkpoint.recorded(tmp_path / "long")["length"] == 100
    short, long = (api.load(str(tmp_path / name)) for name in ("short", "long"))
    brief, lengthy = "the people said so", "she was there . " * 15 + "the people said so it"
    assert long(brief)["scores"] == pytest.approx(short(brief)["scores"], abs=1e-5)
    changed = lengthy.replace("so it", "so up")
    assert short(lengthy)["scores"] == short(changed)["scores"] and long(lengthy)["scores"] != long(changed)["scores"]


@pytest.mark.parametrize("name", ["longformer", "longformer-causal"])
def test_the_recipes_can_be_read(name):
    recipe = config.read(stage("pretrain").Recipe, Path(__file__).parents[2] / "recipes" / f"{name}.toml")
    assert recipe.init if recipe.model is None else len(recipe.model.mixer.reach) == recipe.model.layers
