"""Replaced token detection: parity with transformers' ELECTRA generator and discriminator; sampling; generator sizes."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.convert.huggingface.names import ELECTRA
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import AdaptiveSpan, Cnn, Longformer, Lstm
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import ReplacedTokenDetection

transformers = pytest.importorskip("transformers")

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "embedding_size": 16,
    "mixer": {"num_attention_heads": 4},
    "feedforward": {"intermediate_size": 48},
    "max_position_embeddings": 64,
    "pooler_act": "gelu",
    "hidden_dropout_prob": 0.0,
}
SIZES = {"embedding_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0}  # fmt: skip
LARGE = {**SIZES, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
QUARTER = {**SIZES, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 12}


def build_batch(corpus, objective, num_samples=12):
    loader = objective.build_batches(Corpus.open(corpus), np.arange(60), 64, 1 << 12, 0)
    sample_index, epoch = loader.select_samples(0)
    return objective.to_batch(loader.collator(sample_index.select(np.arange(num_samples)), epoch))


def build_small_model(corpus, objective):
    vocab_size = len(Corpus.open(corpus).tokenizer)
    model = build_model(ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocab_size=vocab_size, heads=objective.heads()), 0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def build_reference(name, sizes, weights, vocab_size, head):
    """A transformers model with our weights: encoder and one head, renamed by the tables that `import` uses."""
    model_class = getattr(transformers, name)
    reference = model_class(model_class.config_class(vocab_size=vocab_size, **sizes))
    state_dict = {}
    for part, module in {**ELECTRA.embeddings, **ELECTRA.modules}.items():
        state_dict |= {f"electra.{module}{suffix}": weights.get(f"encoder.{part}{suffix}") for suffix in (".weight", ".bias")}
    for layer in range(2):
        for part, modules in ELECTRA.block_modules.items():
            for suffix in (".weight", ".bias"):
                parts = weights[f"encoder.stack.layers.{layer}.{part}{suffix}"].chunk(len(modules))
                state_dict |= {
                    f"electra.{ELECTRA.block_prefix.format(layer)}{module}{suffix}": tensor
                    for module, tensor in zip(modules, parts, strict=True)
                }
    for part, module in ELECTRA.head_modules[head].items():
        ends = {"": ""} if part == "bias" else {".weight": ".weight", ".bias": ".bias"}
        state_dict |= {f"{module}{suffix}": weights[f"heads.{head}.{part}{suffix}"] for suffix in ends}
    state_dict = {key: weight for key, weight in state_dict.items() if weight is not None}
    missing, unexpected = reference.load_state_dict(state_dict, strict=False)
    assert not unexpected and not [
        key for key in missing if "position_ids" not in key and "generator_lm_head.weight" not in key
    ]
    return reference.eval()


def pad_batch(batch, input_ids):
    layout = batch.inputs.layout
    token_type_ids = batch.inputs.token_type_ids if batch.inputs.token_type_ids is not None else torch.zeros_like(input_ids)
    return {
        "input_ids": layout.pad(input_ids),
        "attention_mask": layout.padding_mask().long(),
        "token_type_ids": layout.pad(token_type_ids),
    }


def test_electra_losses_match_transformers(corpus):
    objective = ReplacedTokenDetection()
    model, batch = build_small_model(corpus, objective).eval(), build_batch(corpus, objective)
    loss, weights = objective.compute_loss(model, batch), model.state_dict()
    layout, masked_positions, masked_labels = batch.inputs.layout, batch.targets["output_indices"], batch.targets["target_ids"]
    vocab_size = model.config.vocab_size

    generator_weights = {
        "heads.lm" + key.removeprefix("heads.generator.lm_head"): weight
        for key, weight in weights.items()
        if "generator.lm_head" in key
    }
    generator_weights |= {key.replace("heads.generator.", "encoder."): weight for key, weight in weights.items()
              if key.startswith(("heads.generator.stack", "heads.generator.embedding_projection"))}  # fmt: skip
    generator_weights = {
        **{key: weight for key, weight in weights.items() if key.startswith("encoder.") and "stack" not in key},
        **generator_weights,
    }
    generator = build_reference("ElectraForMaskedLM", QUARTER, generator_weights, vocab_size, "lm")
    token_labels = torch.full_like(batch.inputs.input_ids, -100).index_copy(0, masked_positions, masked_labels)
    padded_labels = layout.pad(token_labels).masked_fill(~layout.padding_mask(), -100)
    expected = generator(**pad_batch(batch, batch.inputs.input_ids), labels=padded_labels)
    assert_close(loss.parts["mlm"] / batch.target_counts["mlm"], expected.loss, atol=1e-5, rtol=1e-5)

    rows = model.heads["generator"](batch.inputs, model.encoder)
    sampled = model.heads["generator"].sample(rows[masked_positions], model.encoder)
    corrupted = batch.inputs.input_ids.index_copy(0, masked_positions, sampled)
    is_replaced = torch.zeros_like(corrupted).index_copy(0, masked_positions, (sampled != masked_labels).long())
    assert 0 < is_replaced.sum() <= len(masked_positions)
    discriminator = build_reference("ElectraForPreTraining", LARGE, weights, vocab_size, "rtd")
    expected = discriminator(**pad_batch(batch, corrupted), labels=layout.pad(is_replaced))
    assert_close(loss.parts["rtd"] / batch.target_counts["rtd"], 50 * expected.loss, atol=1e-4, rtol=1e-5)
    predicted = torch.cat([row[mask] for row, mask in zip(expected.logits > 0, layout.padding_mask(), strict=True)])
    assert int(loss.metrics["rtd_accuracy"][0]) == int((predicted == is_replaced.bool()).sum())
    assert [int(value) for value in loss.metrics["rtd_recall"]] == [
        int((predicted & is_replaced.bool()).sum()),
        int(is_replaced.sum()),
    ]


def test_electra_discriminator_grads_reach_the_generator_only_through_embeddings(corpus):
    objective = ReplacedTokenDetection(discriminator_weight=1.0)
    model, batch = build_small_model(corpus, objective), build_batch(corpus, objective)
    torch.manual_seed(0)
    objective.compute_loss(model, batch).parts["rtd"].backward()
    with_grad = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert "encoder.word_embeddings.weight" in with_grad and not [name for name in with_grad if "generator" in name]
    model.zero_grad()
    objective.compute_loss(model, batch).parts["mlm"].backward()
    without_grad = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert not [
        name
        for name in without_grad
        if "generator" in name or name in ("encoder.word_embeddings.weight", "encoder.position_embeddings.weight")
    ]
    assert all("stack" in name or "rtd" in name or "pooler" in name or "embedding_projection" in name for name in without_grad)


def test_electra_generator_samples_from_softmax_reproducibly(corpus):
    model = build_small_model(corpus, ReplacedTokenDetection()).train()
    generator = model.heads["generator"]
    rows = torch.randn(1, 8).expand(20_000, -1)
    torch.manual_seed(1)
    sampled = generator.sample(rows, model.encoder)
    probs = generator.lm_head(rows[:1], model.encoder).softmax(-1)[0]
    frequencies = torch.bincount(sampled, minlength=len(probs)) / len(sampled)
    assert (frequencies - probs).abs().max() < 0.02
    torch.manual_seed(1)
    assert torch.equal(sampled, generator.sample(rows, model.encoder))
    assert not torch.equal(sampled, generator.sample(rows, model.encoder))
    model.eval()  # a fixed seed
    assert torch.equal(generator.sample(rows, model.encoder), generator.sample(rows, model.encoder))


@pytest.mark.parametrize(("preset", "size", "width", "heads", "inner"), [
    ("electra-small", 0.25, 64, 1, 256), ("electra-base", 1 / 3, 256, 4, 1024), ("electra-large", 0.25, 256, 4, 1024),
    ("electra-base", 1.0, 768, 12, 3072),
])  # fmt: skip
def test_electra_generator_sizes_match_the_paper(preset, size, width, heads, inner):
    head, encoder = ReplacedTokenDetection(generator_size=size).heads()["generator"], EncoderConfig.presets()[preset]
    config = head.generator_config(encoder)
    assert (
        config.num_hidden_layers,
        config.hidden_size,
        config.mixer.num_attention_heads,
        config.feedforward.intermediate_size,
    ) == (encoder.num_hidden_layers, width, heads, inner)
    assert config.embedding_dim == encoder.embedding_dim


def test_electra_generator_has_the_mixers_of_the_model():
    objective = ReplacedTokenDetection(generator_size=0.5)
    for preset in ("lite-mini", "modernbert-mini", "longformer-mini", "albert-base"):
        encoder = EncoderConfig.presets()[preset]
        with torch.device("meta"):
            model = Model(ModelConfig(encoder=encoder, vocab_size=50, heads=objective.heads()))
        mixer_types = [type(block.mixer) for block in model.heads["generator"].stack.layers]
        assert mixer_types == [type(block.mixer) for block in model.encoder.stack.layers]
    with pytest.raises(UserError, match="needs a model with a token table and feed-forward"):
        objective.heads()["generator"].generator_config(EncoderConfig.presets()["elmo"])


def test_electra_generator_is_dropped_from_the_final_model(corpus):
    model = build_small_model(corpus, ReplacedTokenDetection())
    model.drop_training_heads()
    assert list(model.config.heads) == list(model.heads) == ["rtd"]
    assert not [name for name in model.state_dict() if "generator" in name]
    plain = build_model(ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocab_size=9, heads={"lm": LMHeadConfig()}), 0)
    plain.drop_training_heads()
    assert list(plain.heads) == ["lm"]


@pytest.mark.parametrize(
    ("mixer", "width"),
    [
        (Longformer(num_attention_heads=4, dilation=(2, 3)), 16),
        (Longformer(num_attention_heads=4, dilation=(2, 2, 3, 3)), 16),
        (Cnn(), 16),
        (Lstm(cell_size=100), 16),
        (Lstm(directions="forward"), 16),
    ],
)
def test_electra_generator_scales_other_mixers(mixer, width):
    encoder = EncoderConfig(
        num_hidden_layers=2, hidden_size=64, mixer=mixer, feedforward=FeedForwardConfig(intermediate_size=128)
    )
    config = ReplacedTokenDetection(generator_size=0.25).heads()["generator"].generator_config(encoder)
    assert (config.hidden_size, config.feedforward.intermediate_size) == (width, 32)
    dilation = getattr(mixer, "dilation", ())
    expected = {(2, 3): (), (2, 2, 3, 3): (3,)}.get(dilation, dilation)
    assert getattr(config.mixer, "dilation", ()) == expected
    with torch.device("meta"):
        Model(ModelConfig(encoder=encoder, vocab_size=50, heads=ReplacedTokenDetection().heads()))


def test_electra_generator_has_span_penalty_and_gradient_checkpointing():
    mixer = AdaptiveSpan(num_attention_heads=4, max_span=64, span_ramp=8, init_span=0.5, span_loss=1e-3)
    encoder = EncoderConfig(
        num_hidden_layers=2, hidden_size=64, mixer=mixer, feedforward=FeedForwardConfig(intermediate_size=128)
    )
    model = Model(ModelConfig(encoder=encoder, vocab_size=50, heads=ReplacedTokenDetection().heads()))
    assert model.aux_loss().item() == pytest.approx(4 * 1e-3 * 32)
    model.set_gradient_checkpointing(True)
    assert model.encoder.stack.gradient_checkpointing and model.heads["generator"].stack.gradient_checkpointing
