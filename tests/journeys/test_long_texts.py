"""convert-long: a BERT of short texts becomes a Longformer, is pre-trained further and fine-tuned; replacing mixers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith import api, recipes
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

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "mixer": {"num_attention_heads": 4},
    "feedforward": {"intermediate_size": 48},
    "max_position_embeddings": 32,
}
TRAIN = {"steps": 2, "batch_tokens": 256, "warmup_steps": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def short_bert(tmp_path_factory, corpus):
    out = tmp_path_factory.mktemp("long") / "bert"
    api.pretrain(corpus=str(corpus), model=SMALL, max_length=32, train=TRAIN, out=str(out), quiet=True)
    return out


@pytest.fixture(scope="module")
def long_bert(short_bert):
    out = short_bert.parent / "long"
    assert main(["convert-long", f"model={short_bert}", f"out={out}", "max_length=100", "attention_window=30", "--quiet"]) == 0
    return out


def run_random_tokens(folder, length, seed=1):
    model = checkpoint.load(folder)[0]
    tokens = torch.randint(5, 80, (2 * length,), generator=torch.Generator().manual_seed(seed))
    return model(Inputs(tokens, Layout.from_lengths([length, length])))


def test_convert_long_keeps_short_texts_and_allows_longer(short_bert, long_bert):
    assert_close(run_random_tokens(long_bert, 16), run_random_tokens(short_bert, 16), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(
        run_random_tokens(long_bert, 32), run_random_tokens(short_bert, 32), atol=1e-3
    )  # longer than the window: some tokens do not see each other
    assert run_random_tokens(long_bert, 100).shape == (200, 32)
    with pytest.raises(UserError, match="longer than the model's 32 positions"):
        run_random_tokens(short_bert, 33)


def test_convert_long_tiles_positions_and_copies_global_projections(short_bert, long_bert):
    before, after = (checkpoint.load(folder)[0].state_dict() for folder in (short_bert, long_bert))
    table = before["encoder.position_embeddings.weight"]
    assert torch.equal(after["encoder.position_embeddings.weight"], torch.cat([table, table, table, table[:4]]))
    for name in [name for name in before if "mixer.projections.qkv" in name]:
        assert torch.equal(after[name.replace("projections.qkv", "global_qkv")], before[name])
        assert torch.equal(after[name], before[name])


def test_convert_long_with_rope(corpus, tmp_path, capsys):
    """Rotary positions are relative: inside the window nothing changes."""
    model = SMALL | {"position_embedding_type": "none", "mixer": {"num_attention_heads": 4, "rope_theta": 10000.0}}
    api.pretrain(corpus=str(corpus), model=model, max_length=32, train=TRAIN, out=str(tmp_path / "bert"), quiet=True)
    assert (
        main(
            ["convert-long", f"model={tmp_path / 'bert'}", f"out={tmp_path / 'long'}", "max_length=100", "attention_window=30"]
        )
        == 0
    )
    assert "for global tokens, longer distances are clamped to the window" in " ".join(capsys.readouterr().err.split())
    assert checkpoint.load(tmp_path / "long")[0].config.encoder.mixer.rope_theta == 10000.0
    assert_close(run_random_tokens(tmp_path / "long", 16), run_random_tokens(tmp_path / "bert", 16), atol=1e-5, rtol=1e-5)
    assert run_random_tokens(tmp_path / "long", 100).shape == (200, 32)


def test_pretraining_continues_from_long_model_and_trains_global_projections(long_bert, corpus, tmp_path):
    out = tmp_path / "on"
    api.pretrain(
        corpus=str(corpus), init=str(long_bert), objective="mlm", max_length=100, train=TRAIN, out=str(out), quiet=True
    )
    before, after = (checkpoint.load(folder)[0].state_dict() for folder in (long_bert, out))
    global_weights = [name for name in after if name.endswith("global_qkv.weight")]
    assert len(global_weights) == 2 and not any(torch.equal(before[name], after[name]) for name in global_weights)


def test_pretrain_replaces_mixer_by_kind(short_bert, corpus, tmp_path):
    options = {"corpus": str(corpus), "init": str(short_bert), "max_length": 32, "train": TRAIN, "out": str(tmp_path / "out")}
    options["quiet"] = True
    api.pretrain(model={"mixer": {"kind": "longformer", "attention_window": 8}}, **options)
    encoder = checkpoint.load(tmp_path / "out")[0].config.encoder
    assert encoder.mixer == Longformer(num_attention_heads=4, attention_window=(8,)) and encoder.hidden_size == 32
    for model, message in (
        ({"mixer": "longformer", "hidden_size": 64}, "has its own model config"),
        ("bert-base", "has its own model config"),
        ({"mixer": "lstm"}, "mixer=lstm cannot take over the weights of mixer=attention: it needs"),
        (
            {"mixer": {"kind": "longformer", "num_attention_heads": 8}},
            r"mixer\.num_attention_heads = 8 is not what the weights were trained with, 4",
        ),
    ):
        with pytest.raises(UserError, match=message):
            api.pretrain(model=model, **options | {"out": str(tmp_path / "no")})


def test_convert_long_rerun_is_noop_and_other_options_refused(short_bert, long_bert):
    options = {"model": str(short_bert), "out": str(long_bert), "max_length": 100, "quiet": True}
    assert api.convert_long(attention_window=30, **options)["created"] is False
    with pytest.raises(UserError, match="contains another model"):
        api.convert_long(attention_window=32, **options)


@pytest.mark.parametrize(("mixer", "message"), [
    (Lstm(), "it needs projections.output.bias, projections.output.weight"),
    (Cnn(), "it does not use filters"),
])  # fmt: skip
def test_replace_mixer_refuses_models_without_attention(mixer, message):
    with pytest.raises(UserError, match=message):
        replace_mixer(EncoderConfig(hidden_size=32, num_hidden_layers=1, mixer=mixer), Longformer(num_attention_heads=4))


def test_longformer_back_to_full_attention_drops_global_projections():
    encoder = EncoderConfig(hidden_size=32, num_hidden_layers=1, mixer=Longformer(num_attention_heads=4, causal=True))
    converted = replace_mixer(encoder, Attention())
    assert converted.mixer == Attention(num_attention_heads=4, causal=True)
    prefix = "encoder.stack.layers.0.mixer."
    weights = {f"{prefix}projections.qkv.weight": torch.ones(1), f"{prefix}global_qkv.weight": torch.zeros(1)}
    assert set(convert_weights(weights, converted)) == {f"{prefix}projections.qkv.weight"}
    assert convert_weights(weights, encoder)[f"{prefix}global_qkv.weight"] == 0  # its own global projections are kept


MIXER_CHANGES = {
    "alibi": (
        Attention(num_attention_heads=4, position_bias=AlibiConfig()),
        Attention(attention_dropout=0.1),
        Attention(num_attention_heads=4, position_bias=AlibiConfig(), attention_dropout=0.1),
    ),
    "heads": (Reformer(num_attention_heads=4), Reformer(num_hashes=8), Reformer(num_attention_heads=4, num_hashes=8)),
    "direction": (
        Reformer(num_attention_heads=4, causal=True),
        Reformer(bucket_window=9),
        Reformer(num_attention_heads=4, causal=True, bucket_window=9),
    ),
    "rope": (
        LiteTransformer(num_attention_heads=2, rope_theta=100.0),
        LiteTransformer(attention_dropout=0.1),
        LiteTransformer(num_attention_heads=2, rope_theta=100.0, attention_dropout=0.1),
    ),
    "head size": (
        ReformerChunked(num_attention_heads=4, attention_head_size=6),
        ReformerChunked(num_hashes=3),
        ReformerChunked(num_attention_heads=4, attention_head_size=6, num_hashes=3),
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), MIXER_CHANGES.values(), ids=MIXER_CHANGES)
def test_replace_mixer_keeps_options_that_weights_depend_on(old, new, expected):
    assert replace_mixer(EncoderConfig(hidden_size=48, num_hidden_layers=3, mixer=old), new).mixer == expected


def test_merge_mixer_config_changes_only_given_options():
    window = Longformer(num_attention_heads=4, attention_window=(16,), dilation=(2,), dilated_layers=1, global_attention=False)
    for old, new, expected in (
        (window, Longformer(attention_dropout=0.1), replace(window, attention_dropout=0.1)),
        (
            TransformerXL(num_attention_heads=4, clamp_len=8, same_length=True),
            TransformerXL(mem_len=32),
            TransformerXL(num_attention_heads=4, clamp_len=8, same_length=True, mem_len=32),
        ),
        (
            TransformerXL(num_attention_heads=4, tie_biases=True),
            TransformerXL(mem_len=32),
            TransformerXL(num_attention_heads=4, tie_biases=True, mem_len=32),
        ),
        (
            AdaptiveSpan(num_attention_heads=4, max_span=64),
            AdaptiveSpan(span_loss=0.1),
            AdaptiveSpan(num_attention_heads=4, max_span=64, span_loss=0.1),
        ),
        (
            LiteTransformer(num_attention_heads=4, kernel_sizes=(3, 5, 7)),
            LiteTransformer(attention_dropout=0.1),
            LiteTransformer(num_attention_heads=4, kernel_sizes=(3, 5, 7), attention_dropout=0.1),
        ),
    ):
        assert (
            replace_mixer(EncoderConfig(hidden_size=32, num_hidden_layers=3, mixer=old), merge_mixer_config(new, old)).mixer
            == expected
        )
    assert merge_mixer_config(Longformer(), Attention(num_attention_heads=4)) == Longformer()
    with pytest.raises(UserError, match="num_attention_heads = 8 is not"):
        replace_mixer(
            EncoderConfig(hidden_size=32, num_hidden_layers=3, mixer=window),
            merge_mixer_config(Longformer(num_attention_heads=8), window),
        )


def test_pretrain_logs_mixer_it_continues_with(long_bert, corpus, tmp_path, capsys):
    options = [
        f"corpus={corpus}",
        f"init={long_bert}",
        f"out={tmp_path / 'out'}",
        "max_length=32",
        "train.steps=1",
        "train.device=cpu",
    ]
    assert main(["pretrain", *options, "model.mixer=longformer", "model.mixer.attention_dropout=0.1"]) == 0
    assert (
        "model continues with mixer=longformer, num_attention_heads=4, attention_window=[30], attention_dropout=0.1"
        in " ".join(capsys.readouterr().err.split())
    )
    assert checkpoint.load(tmp_path / "out")[0].config.encoder.mixer == Longformer(
        num_attention_heads=4, attention_window=(30,), attention_dropout=0.1
    )


ROTARY_WINDOW = Longformer(num_attention_heads=4, rope_theta=100.0, global_attention=False)


@pytest.mark.parametrize(
    ("mixer", "others", "lacks_positions"),
    [
        (Attention(num_attention_heads=4), None, True),
        (Attention(num_attention_heads=4, rope_theta=100.0), None, False),
        (Attention(num_attention_heads=4, position_bias=AlibiConfig()), None, False),
        (Attention(num_attention_heads=4), LayerTypes(mixer=ROTARY_WINDOW), False),
        (Attention(num_attention_heads=4), LayerTypes(), True),
        (Longformer(num_attention_heads=4), None, True),
        (Reformer(num_attention_heads=4), None, True),
        (ReformerChunked(num_attention_heads=4), None, True),
        (LiteTransformer(num_attention_heads=4), None, False),
        (TransformerXL(num_attention_heads=4), None, False),
        (AdaptiveSpan(num_attention_heads=4), None, False),
        (Lstm(), None, False),
    ],
)
def test_lacks_position_information_is_detected(mixer, others, lacks_positions):
    """By the check before training, and by whether reordering the tokens changes the output."""
    others = others and replace(others, mixer=replace(others.mixer, num_attention_heads=4))
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=32,
        mixer=mixer,
        layer_types=others,
        position_embedding_type="none",
        feedforward=FeedForwardConfig(intermediate_size=48),
    )
    assert (
        encoder.lacks_position_information == lacks_positions
        and not replace(encoder, position_embedding_type="absolute").lacks_position_information
    )
    model, tokens = (
        build_model(ModelConfig(encoder=replace(encoder, initializer_range=0.3), vocab_size=50), 0).eval(),
        torch.arange(5, 25),
    )
    reordered = torch.cat([tokens[:1], tokens[1:-1].flip(0), tokens[-1:]])
    with torch.no_grad():
        outs = [model(Inputs(ids, Layout.from_lengths([20])))[-1] for ids in (tokens, reordered)]
    assert torch.allclose(*outs, atol=1e-4) == lacks_positions


REFUSED_CHANGES = {
    "heads": (
        LiteTransformer(num_attention_heads=4),
        LiteTransformer(num_attention_heads=8),
        "num_attention_heads = 8 is not what the weights were trained with, 4",
    ),
    "direction": (Cnn(), Cnn(causal=True), "causal = True is not"),
    "backwards": (
        TransformerXL(num_attention_heads=4),
        TransformerXL(num_attention_heads=4, causal=False),
        "causal = False is not",
    ),
    "position bias": (
        Attention(num_attention_heads=4),
        Attention(position_bias=AlibiConfig()),
        r"position_bias = .*alibi.* is not .* trained with, None",
    ),
    "activation": (Cnn(), Cnn(hidden_act="tanh"), "hidden_act = tanh is not"),
    "upper blocks": (
        LiteTransformer(kernel_sizes=(3, 7)),
        LiteTransformer(kernel_sizes=(3, 9)),
        "lite-transformer: shapes differ for convolution.kernel",
    ),
    "chunks": (
        ReformerChunked(num_attention_heads=4),
        ReformerChunked(attn_layers=("local",)),
        "reformer-chunked: shapes differ for qkv.weight",
    ),
    "shared": (TransformerXL(num_attention_heads=4, tie_biases=True), TransformerXL(), "it needs content_bias, position_bias"),
    "no heads": (Lstm(), Longformer(), "mixer=longformer cannot take over the weights of mixer=lstm"),
    "other heads": (
        LiteTransformer(num_attention_heads=4),
        Longformer(),
        "mixer=longformer cannot take over the weights of mixer=lite-transformer",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), REFUSED_CHANGES.values(), ids=REFUSED_CHANGES)
def test_replace_mixer_refuses_incompatible_options(old, new, message):
    with pytest.raises(UserError, match=message):
        replace_mixer(EncoderConfig(hidden_size=32, num_hidden_layers=3, mixer=old), new)


def mixed_layers_config(has_global):
    others = LayerTypes(mixer=Longformer(num_attention_heads=4, attention_window=(8,), global_attention=has_global))
    return EncoderConfig(
        num_hidden_layers=3,
        hidden_size=32,
        mixer=Attention(num_attention_heads=4),
        layer_types=others,
        feedforward=FeedForwardConfig(intermediate_size=48),
        max_position_embeddings=64,
    )


@pytest.mark.parametrize("has_global", [False, True])
def test_convert_long_with_layer_types(has_global):
    before = build_model(ModelConfig(encoder=mixed_layers_config(has_global), vocab_size=80), 0).eval()
    assert convert_weights(before.state_dict(), mixed_layers_config(has_global)).keys() == before.state_dict().keys()
    after, tokens = convert_model(before, Recipe(model="a", out="b", max_length=128)), torch.arange(40)
    assert [block.mixer.global_qkv is not None for block in after.encoder.stack.layers] == [True, has_global, has_global]
    assert_close(*(model(Inputs(tokens, Layout.from_lengths([40]))) for model in (after, before)), atol=1e-5, rtol=1e-5)


def test_convert_long_keeps_windows_unless_given():
    windows = Longformer(
        num_attention_heads=4, attention_window=(8, 16), dilation=(2, 2), dilated_layers=1, attention_dropout=0.1
    )
    before = build_model(
        ModelConfig(encoder=EncoderConfig(num_hidden_layers=2, hidden_size=32, mixer=windows), vocab_size=80), 0
    )
    converted = [convert_model(before, Recipe(model="a", out="b", max_length=600, **options)).config.encoder.mixer
            for options in ({}, {"attention_window": (18,)}, {"dilation": ()}, {"dilation": (3,)})]  # fmt: skip
    assert converted == [windows, *(replace(windows, **options) for options in (
        {"attention_window": (18,)}, {"dilation": (), "dilated_layers": None}, {"dilation": (3,), "dilated_layers": None}
    ))]  # fmt: skip
    with pytest.raises(UserError, match=r"attention_window=\[\] is empty"):
        convert_model(before, Recipe(model="a", out="b", max_length=600, attention_window=()))


def test_convert_long_reports_dropped_attention_dropout(corpus, tmp_path, capsys):
    model = SMALL | {"mixer": {"num_attention_heads": 4, "attention_dropout": 0.1}}
    api.pretrain(corpus=str(corpus), model=model, max_length=32, train=TRAIN, out=str(tmp_path / "bert"), quiet=True)
    assert main(["convert-long", f"model={tmp_path / 'bert'}", f"out={tmp_path / 'long'}", "max_length=100"]) == 0
    assert "mixer.attention_dropout=0.1 is not kept" in " ".join(capsys.readouterr().err.split())
    assert checkpoint.load(tmp_path / "long")[0].config.encoder.mixer == Longformer(num_attention_heads=4)
    assert json.loads((tmp_path / "long" / "config.json").read_text())["recipe"]["attention_window"] == [512]


def test_extend_positions_never_shrinks():
    assert torch.equal(tile_positions(torch.arange(3.0)[:, None], 3), torch.arange(3.0)[:, None])
    with pytest.raises(UserError, match="less than the model's 512 positions"):
        extend_positions(EncoderConfig(), 256)


def encoded_examples():
    ids = [np.arange(7), np.arange(5)]
    return EncodedExamples(ids, [np.array([0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 1])], np.array([0, 1]))


@pytest.mark.parametrize(("task", "global_tokens"), [
    (QuestionAnswering(), [0, 1, 2, 7, 8]), (MultipleChoice(), [0, 3, 4, 5, 6, 7, 9, 10, 11]),
    (TextClassification(labels=("a", "b")), None), (TokenClassification(labels=("O",)), None),
])  # fmt: skip
def test_task_chooses_global_tokens(task, global_tokens):
    groups = [np.array([0, 1])] if isinstance(task, MultipleChoice) else [np.array([0]), np.array([1])]
    examples = encoded_examples()
    if isinstance(task, MultipleChoice):
        examples.metadata.extend(type("Fact", (), {"number": 0})() for _ in range(2))
    layout = build_batch(task, examples, groups).inputs.layout
    assert (None if layout.explicit_global_tokens is None else layout.explicit_global_tokens.tolist()) == global_tokens
    assert layout.global_tokens.tolist() == (global_tokens or [0, 7])


def test_converted_long_model_fine_tunes_on_question_answering(long_bert, tmp_path):
    context = "the people said so . " * 8 + "she was there ."
    answer = {"text": "she", "answer_start": context.index("she was")}
    questions = [
        {"id": str(n), "question": f"who was {word}", "answers": [answer]} for n, word in enumerate(["there", "it", "up"])
    ]
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}))
    out = tmp_path / "answers"
    data = {"train": str(file), "dev": str(file)}
    result = api.finetune(task="answer", model=str(long_bert), data=data, max_length=64, train=TRAIN, out=str(out), quiet=True)
    assert result["created"] and 0 <= result["dev"]["f1"] <= 1


def test_convert_long_of_fine_tuned_model(short_bert, tmp_path):
    file = tmp_path / "train.tsv"
    file.write_text("text\tlabel\n" + "".join(f"the people said so {word}\t{word}\n" for word in ("up", "it")))
    options = {"task": "classify", "data": {"train": str(file)}, "max_length": 32, "train": TRAIN}
    api.finetune(model=str(short_bert), out=str(tmp_path / "short"), quiet=True, **options)
    result = api.convert_long(
        model=str(tmp_path / "short"), max_length=100, attention_window=[30], out=str(tmp_path / "long"), quiet=True
    )
    assert result["created"] and checkpoint.read_config(tmp_path / "long")["max_length"] == 100
    short_model, long_model = (api.load(str(tmp_path / name)) for name in ("short", "long"))
    short_text, long_text = "the people said so", "she was there . " * 15 + "the people said so it"
    assert long_model(short_text)["scores"] == pytest.approx(short_model(short_text)["scores"], abs=1e-5)
    changed = long_text.replace("so it", "so up")
    assert (
        short_model(long_text)["scores"] == short_model(changed)["scores"]
        and long_model(long_text)["scores"] != long_model(changed)["scores"]
    )


@pytest.mark.parametrize("name", ["longformer", "longformer-causal"])
def test_longformer_recipes_are_valid(name):
    recipe = recipes.read_recipe(load_stage("pretrain").Recipe, Path(__file__).parents[2] / "recipes" / f"{name}.toml")
    assert recipe.init if recipe.model is None else len(recipe.model.mixer.attention_window) == recipe.model.num_hidden_layers
