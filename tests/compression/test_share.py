"""`share`: layers of one block, factorized embeddings, and the stage."""

import json
from copy import deepcopy

import msgspec
import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.compression.sharing.embeddings import factorize_embeddings
from bertsmith.compression.sharing.layers import group_layers, share_layers
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from tests.support.cli import run_cli_error, run_cli_json
from tests.support.models import TASKS, TOKENIZER, save_model
from tests.support.rows import write_classification_files

ENCODER = EncoderConfig(
    num_hidden_layers=4, hidden_size=24, mixer=Attention(num_attention_heads=4),
    feedforward=FeedForwardConfig(intermediate_size=40), max_position_embeddings=32, initializer_range=0.2,
)  # fmt: skip


def random_model(head=LMHeadConfig(), **settings):  # noqa: B008
    encoder = msgspec.structs.replace(ENCODER, **settings)
    return build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads={"lm": head}), 0).eval()


def inputs():
    return Inputs(torch.arange(12) % len(TOKENIZER), Layout.from_lengths([5, 7]))


def outputs(model):
    with torch.no_grad():
        hidden_states = model(inputs())
        return hidden_states, model.compute_logits("lm", hidden_states)


def test_layers_are_grouped_as_in_the_model():
    assert group_layers(4, 2) == [[0, 1], [2, 3]] and group_layers(5, 2) == [[0, 1, 2], [3, 4]]
    for num_layers, num_groups in ((12, 5), (7, 3), (6, 4)):
        stack = random_model(num_hidden_layers=num_layers, num_hidden_groups=num_groups).encoder.stack
        groups = group_layers(num_layers, num_groups)
        assert all(stack.group_indices[layer] == group for group, layers in enumerate(groups) for layer in layers)


def test_shared_weights_are_the_mean_of_the_layers():
    model = random_model()
    shared = share_layers(model, 2, "average")
    layers = model.encoder.stack.layers
    for group, pair in enumerate(((0, 1), (2, 3))):
        expected = sum(layers[layer].feedforward.output.weight for layer in pair) / 2
        torch.testing.assert_close(shared.encoder.stack.layers[group].feedforward.output.weight, expected)
    first = share_layers(model, 1, "first")
    assert torch.equal(first.encoder.stack.layers[0].mixer.projections.qkv.weight, layers[0].mixer.projections.qkv.weight)
    assert first.config.encoder.num_hidden_groups == 1 and len(first.encoder.stack.layers) == 1


def test_equal_layers_are_shared_without_a_change():
    model = random_model()
    for layer in model.encoder.stack.layers[1:]:
        layer.load_state_dict(model.encoder.stack.layers[0].state_dict())
    torch.testing.assert_close(outputs(share_layers(model, 1, "average")), outputs(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", [LMHeadConfig(), LMHeadConfig(tied=False), LMHeadConfig(transform=False, bias=False)])
def test_full_rank_changes_nothing(head, tmp_path):
    model = random_model(head)
    factorized, error = factorize_embeddings(model, 24)
    assert error == 0
    torch.testing.assert_close(outputs(factorized), outputs(model), rtol=1e-4, atol=1e-5)
    checkpoint.save(tmp_path / "narrow", factorized, TOKENIZER, {}, {})
    loaded = checkpoint.load(tmp_path / "narrow")[0]
    assert all(map(torch.equal, outputs(loaded), outputs(factorized)))


def test_error_is_that_of_the_discarded_singular_values():
    model = random_model()
    table = model.encoder.word_embeddings.weight.detach()
    factorized, error = factorize_embeddings(model, 6)
    product = factorized.encoder.word_embeddings.weight @ factorized.encoder.input_embeddings.projection.weight.T
    values = np.linalg.svd(table.numpy(), compute_uv=False)
    assert (product - table).norm().item() == pytest.approx(np.sqrt((values[6:] ** 2).sum()), rel=1e-5)
    assert error == pytest.approx(np.sqrt((values[6:] ** 2).sum() / (values**2).sum()), rel=1e-5)
    assert factorized.encoder.word_embeddings.weight.shape == (len(TOKENIZER), 6)


def test_gradients_of_a_factorized_model_reach_both_factors():
    model = factorize_embeddings(random_model(), 6).model
    model.cross_entropy("lm", model(inputs()), inputs().input_ids)[0].backward()
    for weight in (model.encoder.word_embeddings.weight, model.encoder.input_embeddings.projection.weight):
        assert weight.grad is not None and weight.grad.any()


@pytest.mark.parametrize(("settings", "message"), [
    ({"embedding_size": 8}, "factorized already"),
    ({"num_hidden_groups": 2}, "share 2 blocks already"),
])  # fmt: skip
def test_what_is_shared_already_is_refused(settings, message):
    model = random_model(**settings)
    with pytest.raises(UserError, match=message):
        share_layers(model, 1, "average") if "groups" in str(settings) else factorize_embeddings(model, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("share")
    write_classification_files(folder, 80, 30)
    save_model(folder / "mood", TASKS["classify"])
    save_model(folder / "bert")
    return folder


def test_a_fine_tuned_model_is_shared_and_trained(folder):
    data = [
        f"data.train={folder / 'train.jsonl'}",
        f"data.dev={folder / 'dev.jsonl'}",
        "train.steps=6",
        "train.batch_tokens=128",
    ]
    words = ["share", f"model={folder / 'mood'}", "num_hidden_groups=1", "embedding_size=8", f"out={folder / 'albert'}"]
    result = run_cli_json(*words, *data)
    assert len(result["after"]["heads"]) == 1 and result["after"]["parameters"] < result["before"]["parameters"]
    assert 0 < result["embedding_error"] < 1 and result["score"]["metric"] == "accuracy" and result["step"] == 6
    model = bertsmith.load(folder / "albert")
    assert model("people")["label"] in ("good", "bad")
    assert not run_cli_json(*words, *data)["created"]
    pruned = run_cli_json("prune", f"model={folder / 'albert'}", "unit=neuron,vocab", *data, f"out={folder / 'albert-pruned'}")
    assert pruned["after"]["neurons"] == [32] and pruned["after"]["vocab_size"] < result["after"]["vocab_size"]


def test_a_pretrained_model_is_factorized_and_fine_tuned(folder):
    result = run_cli_json("share", f"model={folder / 'bert'}", "embedding_size=8", f"out={folder / 'narrow'}")
    assert "score" not in result and bertsmith.load(folder / "narrow").fill("the [MASK]")[0]["score"] > 0
    run_cli_json("finetune", "task=classify", f"model={folder / 'narrow'}", f"data.train={folder / 'train.jsonl'}",
                 "train.steps=2", "train.early_stopping_patience=0", f"out={folder / 'tuned'}")  # fmt: skip
    config = json.loads((folder / "tuned" / "config.json").read_text())
    assert config["model"]["encoder"]["embeddings"] == {"kind": "factorized", "embedding_size": 8}


@pytest.mark.parametrize(("words", "message"), [
    ([], "nothing is shared"),
    (["embedding_size=64"], "is more than the hidden size 32"),
    (["num_hidden_groups=2"], "shares nothing among 2 layers"),
    (["embedding_size=8", "group_init=first"], "group_init applies only to"),
    (["embedding_size=8", "train.steps=3"], "train applies only with data"),
])  # fmt: skip
def test_contradicting_settings_are_refused(folder, words, message):
    assert message in run_cli_error("share", f"model={folder / 'bert'}", f"out={folder / 'no'}", *words)


def test_the_original_is_left_alone():
    model = random_model()
    before = deepcopy(model.state_dict())
    share_layers(model, 1, "average")
    factorize_embeddings(model, 4)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
