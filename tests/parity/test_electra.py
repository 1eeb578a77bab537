"""The losses of replaced-token detection are those of transformers' generator and discriminator, weights copied in."""

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

SMALL = {"layers": 2, "width": 32, "embedding": 16, "mixer": {"heads": 4}, "feedforward": {"inner": 48}, "positions": 64,
         "pooler": "gelu", "dropout": 0.0}  # fmt: skip
SIZES = {"embedding_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0}  # fmt: skip
LARGE = {**SIZES, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
QUARTER = {**SIZES, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 12}


def given(corpus, objective, samples=12):
    reading = objective.batches(Corpus.open(corpus), np.arange(60), 64, 1 << 12, 0)
    plan, epoch = reading.rows(0)
    return objective.batch(reading.maker(plan.chosen(np.arange(samples)), epoch))


def ours(corpus, objective):
    vocabulary = len(Corpus.open(corpus).tokenizer)
    model = build_model(ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocabulary=vocabulary, heads=objective.heads()), 0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def copied(name, sizes, weights, vocabulary, head):
    """A model of theirs with weights of ours: the encoder's names, and those of one head, as `import` knows them."""
    kind = getattr(transformers, name)
    theirs = kind(kind.config_class(vocab_size=vocabulary, **sizes))
    held = {}
    for part, module in {**ELECTRA.embeddings, **ELECTRA.modules}.items():
        held |= {f"electra.{module}{end}": weights.get(f"encoder.{part}{end}") for end in (".weight", ".bias")}
    for layer in range(2):
        for part, modules in ELECTRA.block_modules.items():
            for end in (".weight", ".bias"):
                whole = weights[f"encoder.stack.blocks.{layer}.{part}{end}"].chunk(len(modules))
                held |= {
                    f"electra.{ELECTRA.block_prefix.format(layer)}{module}{end}": one
                    for module, one in zip(modules, whole, strict=True)
                }
    for part, module in ELECTRA.head_modules[head].items():
        ends = {"": ""} if part == "bias" else {".weight": ".weight", ".bias": ".bias"}
        held |= {f"{module}{end}": weights[f"heads.{head}.{part}{end}"] for end in ends}
    held = {key: weight for key, weight in held.items() if weight is not None}
    missing, unexpected = theirs.load_state_dict(held, strict=False)
    assert not unexpected and not [
        key for key in missing if "position_ids" not in key and "generator_lm_head.weight" not in key
    ]
    return theirs.eval()


def padded(batch, tokens):
    layout = batch.inputs.layout
    segments = batch.inputs.segments if batch.inputs.segments is not None else torch.zeros_like(tokens)
    return {"input_ids": layout.grid(tokens), "attention_mask": layout.real().long(), "token_type_ids": layout.grid(segments)}


def test_both_losses_are_those_of_transformers(corpus):
    objective = ReplacedTokenDetection()
    model, batch = ours(corpus, objective).eval(), given(corpus, objective)
    loss, held = objective.compute_loss(model, batch), model.state_dict()
    layout, where, words = batch.inputs.layout, batch.targets["where"], batch.targets["words"]
    vocabulary = model.config.vocabulary

    small = {
        "heads.words" + key.removeprefix("heads.generator.words"): w for key, w in held.items() if "generator.words" in key
    }
    small |= {key.replace("heads.generator.", "encoder."): w for key, w in held.items()
              if key.startswith(("heads.generator.stack", "heads.generator.widen"))}  # fmt: skip
    small = {**{key: w for key, w in held.items() if key.startswith("encoder.") and "stack" not in key}, **small}
    generator = copied("ElectraForMaskedLM", QUARTER, small, vocabulary, "words")
    labels = torch.full_like(batch.inputs.input_ids, -100).index_copy(0, where, words)
    asked = layout.pad(labels).masked_fill(~layout.padding_mask(), -100)
    theirs = generator(**padded(batch, batch.inputs.input_ids), labels=asked)
    assert_close(loss.parts["words"] / batch.target_counts["words"], theirs.loss, atol=1e-5, rtol=1e-5)

    rows = model.heads["generator"](batch.inputs, model.encoder)
    drawn = model.heads["generator"].drawn(rows[where], model.encoder)
    shown = batch.inputs.input_ids.index_copy(0, where, drawn)
    fake = torch.zeros_like(shown).index_copy(0, where, (drawn != words).long())
    assert 0 < fake.sum() <= len(where)
    discriminator = copied("ElectraForPreTraining", LARGE, held, vocabulary, "replaced")
    theirs = discriminator(**padded(batch, shown), labels=layout.pad(fake))
    assert_close(loss.parts["replaced"] / batch.target_counts["replaced"], 50 * theirs.loss, atol=1e-4, rtol=1e-5)
    called = torch.cat([one[real] for one, real in zip(theirs.logits > 0, layout.padding_mask(), strict=True)])
    assert int(loss.metrics["replaced_accuracy"][0]) == int((called == fake.bool()).sum())
    assert [int(n) for n in loss.metrics["replaced_found"]] == [int((called & fake.bool()).sum()), int(fake.sum())]


def test_the_discriminator_teaches_the_generator_nothing_but_through_the_tables(corpus):
    objective = ReplacedTokenDetection(weight=1.0)
    model, batch = ours(corpus, objective), given(corpus, objective)
    torch.manual_seed(0)
    objective.compute_loss(model, batch).parts["replaced"].backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert "encoder.tokens.weight" in moved and not [name for name in moved if "generator" in name]
    model.zero_grad()
    objective.compute_loss(model, batch).parts["words"].backward()
    still = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert not [name for name in still if "generator" in name or name in ("encoder.tokens.weight", "encoder.positions.weight")]
    assert all("stack" in name or "replaced" in name or "pooler" in name or "widen" in name for name in still)


def test_words_are_drawn_as_likely_as_they_score_and_again_the_same(corpus):
    model = ours(corpus, ReplacedTokenDetection()).train()
    generator = model.heads["generator"]
    rows = torch.randn(1, 8).expand(20_000, -1)
    torch.manual_seed(1)
    drawn = generator.drawn(rows, model.encoder)
    shares = generator.words(rows[:1], model.encoder).softmax(-1)[0]
    found = torch.bincount(drawn, minlength=len(shares)) / len(drawn)
    assert (found - shares).abs().max() < 0.02
    torch.manual_seed(1)
    assert torch.equal(drawn, generator.drawn(rows, model.encoder))
    assert not torch.equal(drawn, generator.drawn(rows, model.encoder))
    model.eval()  # where nothing is seeded
    assert torch.equal(generator.drawn(rows, model.encoder), generator.drawn(rows, model.encoder))


@pytest.mark.parametrize(("preset", "size", "width", "heads", "inner"), [
    ("electra-small", 0.25, 64, 1, 256), ("electra-base", 1 / 3, 256, 4, 1024), ("electra-large", 0.25, 256, 4, 1024),
    ("electra-base", 1.0, 768, 12, 3072),
])  # fmt: skip
def test_generators_have_the_sizes_of_the_paper(preset, size, width, heads, inner):
    head, encoder = ReplacedTokenDetection(size=size).heads()["generator"], EncoderConfig.presets[preset]
    small = head.generator_config(encoder)
    assert (small.layers, small.width, small.mixer.heads, small.feedforward.inner) == (encoder.layers, width, heads, inner)
    assert small.embedding_dim == encoder.embedding_dim


def test_blocks_of_other_kinds_have_generators_of_their_kind():
    objective = ReplacedTokenDetection(size=0.5)
    for preset in ("lite-mini", "modernbert-mini", "longformer-mini", "albert-base"):
        encoder = EncoderConfig.presets[preset]
        with torch.device("meta"):
            model = Model(ModelConfig(encoder=encoder, vocabulary=50, heads=objective.heads()))
        kinds = [type(block.mixer) for block in model.heads["generator"].stack.blocks]
        assert kinds == [type(block.mixer) for block in model.encoder.stack.blocks]
    with pytest.raises(UserError, match="wants a model of tables and feed-forwards"):
        objective.heads()["generator"].generator_config(EncoderConfig.presets["elmo"])


def test_a_finished_model_has_no_generator(corpus):
    model = ours(corpus, ReplacedTokenDetection())
    model.drop_training_heads()
    assert list(model.config.heads) == list(model.heads) == ["replaced"]
    assert not [name for name in model.state_dict() if "generator" in name]
    plain = build_model(ModelConfig(encoder=from_dict(EncoderConfig, SMALL), vocabulary=9, heads={"words": LMHeadConfig()}), 0)
    plain.drop_training_heads()
    assert list(plain.heads) == ["words"]


@pytest.mark.parametrize(("mixer", "width"), [
    (Longformer(heads=4, dilation=(2, 3)), 16), (Longformer(heads=4, dilation=(2, 2, 3, 3)), 16), (Cnn(), 16),
    (Lstm(hidden=100), 16), (Lstm(directions="forward"), 16),
])  # fmt: skip
def test_generators_of_other_mixers_are_as_small(mixer, width):
    encoder = EncoderConfig(layers=2, width=64, mixer=mixer, feedforward=FeedForwardConfig(inner=128))
    small = ReplacedTokenDetection(size=0.25).heads()["generator"].generator_config(encoder)
    assert (small.width, small.feedforward.inner) == (width, 32)
    assert getattr(small.mixer, "dilation", ()) == {2: (), 4: (3,)}.get(len(getattr(mixer, "dilation", ())), ())
    with torch.device("meta"):
        Model(ModelConfig(encoder=encoder, vocabulary=50, heads=ReplacedTokenDetection().heads()))


def test_a_generator_pays_its_price_and_keeps_as_little_as_the_model():
    mixer = AdaptiveSpan(heads=4, longest=64, ramp=8, begin=0.5, price=1e-3)
    encoder = EncoderConfig(layers=2, width=64, mixer=mixer, feedforward=FeedForwardConfig(inner=128))
    model = Model(ModelConfig(encoder=encoder, vocabulary=50, heads=ReplacedTokenDetection().heads()))
    assert model.penalty().item() == pytest.approx(4 * 1e-3 * 32)
    model.set_gradient_checkpointing(True)
    assert model.encoder.stack.gradient_checkpointing and model.heads["generator"].stack.recompute
