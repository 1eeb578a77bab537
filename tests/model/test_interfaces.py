"""What stacks may lack: blocks, feed-forwards, norms, sums, tables; and what stands for a text then."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from tests.model.test_transformer import LENGTHS, PLAIN, inputs, normed

BARE = PLAIN | {"embedding_norm": False, "table": False, "segments": 0, "norm": "none", "feedforward": "none"}


def model(**more):
    return build_model(ModelConfig(encoder=from_dict(EncoderConfig, BARE | more), vocabulary=50), 0).train()


def test_no_layers_is_the_table_and_nothing_else():
    made, given = model(layers=0, pooler="none"), inputs()
    assert [name for name, _ in made.named_parameters()] == ["encoder.tokens.weight"]
    kept = []
    assert torch.equal(made(given, kept), made.encoder.tokens.weight[given.input_ids]) and len(kept) == 1
    rows = torch.tensor([3, 0, 56])
    assert torch.equal(made(Inputs(given.input_ids, given.layout, output_indices=rows)), made(given)[rows])
    assert torch.equal(made.encoder.apply_pooler(made(given)), made(given))


@pytest.mark.parametrize("residual", ["all", "between", "none"])
@pytest.mark.parametrize("fed", [False, True])
def test_without_norms_parts_add_to_what_they_read_or_take_its_place(residual, fed):
    more = {"feedforward": PLAIN["feedforward"]} if fed else {}
    made, given = model(residual=residual, **more), inputs()
    x = made.encoder.tokens.weight[given.input_ids]
    for number, block in enumerate(made.encoder.stack.blocks):
        kept = residual == "all" or (residual == "between" and number > 0)
        x = block.mixer(x, given.layout) + kept * x
        if fed:
            x = block.feedforward(x) + kept * x
    states = []
    assert_close(made(given, states), x)
    assert len(states) == len(made.encoder.stack.blocks) + 1 and torch.equal(states[-1], made(given))


@pytest.mark.parametrize("norm", ["after", "before"])
def test_without_feed_forwards_a_block_is_its_mixer_and_norm(norm):
    made, given = model(norm=norm), inputs()
    x = made.encoder.tokens.weight[given.input_ids]
    for block in made.encoder.stack.blocks:
        read = normed(block.mixer_norm, x) if norm == "before" else x
        x = x + block.mixer(read, given.layout)
        x = x if norm == "before" else normed(block.mixer_norm, x)
    wanted = normed(made.encoder.stack.norm, x) if norm == "before" else x
    kept = []
    assert_close(made(given), wanted)
    assert_close(made(given, kept), wanted)


def test_dropout_falls_on_what_joins_even_without_a_norm():
    made, given = model(dropout=0.5), inputs()
    torch.manual_seed(0)
    assert not torch.equal(made(given), made(given))
    assert torch.equal(made.eval()(given), made(given))


def test_a_text_is_its_first_token_its_last_its_mean_or_its_most():
    lengths, given = list(LENGTHS), inputs()
    for more, of in (
        ({}, lambda part: part[0]), ({"mixer": {"heads": 2, "causal": True}}, lambda part: part[-1]),
        ({"pool": "mean"}, lambda part: part.mean(0)), ({"pool": "max"}, lambda part: part.amax(0)),
    ):  # fmt: skip
        made = model(**more).eval()
        wanted = torch.stack([of(part) for part in made(given).split(lengths)])
        assert_close(made.encoder.pool_tokens(given), wanted)


def test_the_most_of_a_sequence_passes_its_slope_to_whoever_has_it():
    x = torch.tensor([[1.0, 5.0], [3.0, 2.0], [-4.0, -1.0]], requires_grad=True)
    Layout.from_lengths([2, 1]).max_pool(x).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))


def test_a_sum_left_out_beside_norms_is_refused():
    with pytest.raises(UserError, match=r"set model\.norm=none"):
        model(norm="after", residual="none")


def test_configs_of_before_are_the_models_of_before():
    """Every folder on disk says what it says; what it does not say is as it was."""
    told = to_dict(from_dict(EncoderConfig, "bert-tiny"))
    new = {"residual", "front", "pool", "embedding_norm"}
    old = {name: value for name, value in told.items() if name not in new}
    assert from_dict(EncoderConfig, old) == EncoderConfig.presets["bert-tiny"]
    names = set(build_model(ModelConfig(encoder=from_dict(EncoderConfig, old), vocabulary=9), 0).state_dict())
    block = {f"encoder.stack.blocks.0.{part}.{kind}" for part in (
        "mixer.project.qkv", "mixer.project.out", "feedforward.up", "feedforward.down", "mixer_norm", "feedforward_norm",
    ) for kind in ("weight", "bias")}  # fmt: skip
    tables = {f"encoder.{part}.weight" for part in ("tokens", "positions", "segments", "norm", "pooler")}
    ours = {name for name in names if "blocks.1" not in name}
    assert ours == block | tables | {"encoder.norm.bias", "encoder.pooler.bias"}
