"""BERT is BERT: weights of transformers' BertForPreTraining copied in give its logits, losses and gradients."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Batch, Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig
from bertsmith.model.packing import Layout, PaddedLayout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import SentencePairMLM

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTHS = 97, (17, 5, 40, 1, 23, 40)
NAMES = {
    "bert.embeddings.word_embeddings": "encoder.tokens", "bert.embeddings.position_embeddings": "encoder.positions",
    "bert.embeddings.token_type_embeddings": "encoder.segments", "bert.embeddings.LayerNorm": "encoder.norm",
    "bert.encoder.layer": "encoder.stack.blocks", "bert.pooler.dense": "encoder.pooler",
    "attention.output.dense": "mixer.project.out", "attention.output.LayerNorm": "mixer_norm",
    "intermediate.dense": "feedforward.up", "output.dense": "feedforward.down", "output.LayerNorm": "feedforward_norm",
    "cls.predictions.transform.dense": "heads.words.transform", "cls.predictions.transform.LayerNorm": "heads.words.norm",
    "cls.predictions.bias": "heads.words.bias", "cls.seq_relationship": "heads.next.score",
}  # fmt: skip


def theirs():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForPreTraining(
        transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes, **drop)
    )
    for weight in model.parameters():  # biases and norms, too, must matter
        torch.nn.init.normal_(weight, std=0.2)
    return model.eval()


def ours(original):
    encoder = EncoderConfig(
        layers=3, width=32, mixer=Attention(heads=4), feedforward=FeedForwardConfig(inner=64), positions=64, dropout=0.0
    )
    model = Model(ModelConfig(encoder=encoder, vocabulary=VOCABULARY, heads=SentencePairMLM().heads()))
    model.load_state_dict(renamed(original.state_dict()))
    return model.eval()


def renamed(weights):
    """Their names to ours; query, key and value become one matrix."""
    out = {}
    for name, weight in weights.items():
        if name in ("bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
            continue
        if ".attention.self." in name:
            if ".query." not in name:
                continue
            weight = torch.cat([weights[name.replace("query", part)] for part in ("query", "key", "value")])
            name = name.replace("attention.self.query", "mixer.project.qkv")
        for old, new in NAMES.items():
            name = name.replace(old, new)
        out[name] = weight.clone()
    return out


def batch():
    torch.manual_seed(1)
    layout = Layout.from_lengths(LENGTHS)
    tokens, segments = torch.randint(5, VOCABULARY, (sum(LENGTHS),)), (layout.position > 8).long()
    where = torch.randperm(sum(LENGTHS))[:20].sort().values
    targets = {"where": where, "words": torch.randint(5, VOCABULARY, (20,)), "next": torch.randint(0, 2, (len(LENGTHS),))}
    return Batch(Inputs(tokens, layout, segments), targets, {"words": 20, "next": len(LENGTHS)})


def padded(data):
    """The same batch as transformers takes it: rectangles, a mask, and -100 where nothing is asked."""
    layout, labels = data.inputs.layout, torch.full((data.tokens,), -100)
    labels[data.targets["where"]] = data.targets["words"]
    mask = layout.real()
    grid = {"input_ids": layout.grid(data.inputs.tokens), "token_type_ids": layout.grid(data.inputs.segments)}
    full = layout.grid(labels).masked_fill(~mask, -100)
    return {**grid, "attention_mask": mask.long(), "labels": full, "next_sentence_label": data.targets["next"]}, mask


def test_logits_equal():
    original, data = theirs(), batch()
    model = ours(original)
    inputs, mask = padded(data)
    want, hidden = original(**inputs), model(data.inputs)
    assert_close(model.compute_logits("words", hidden), want.prediction_logits[mask], atol=1e-5, rtol=1e-5)
    next_scores = model.compute_logits("next", hidden[data.inputs.layout.first_token])
    assert_close(next_scores, want.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_a_rectangle_gives_what_the_pack_gives():
    model, data = ours(theirs()), batch()
    inputs, mask = padded(data)
    flat = Inputs(inputs["input_ids"].flatten(), PaddedLayout.from_mask(mask), inputs["token_type_ids"].flatten())
    assert_close(model(flat)[mask.flatten()], model(data.inputs), atol=1e-5, rtol=1e-5)


def test_losses_and_gradients_equal():
    original, data = theirs(), batch()
    model = ours(original)
    inputs, _ = padded(data)
    want = original(**inputs).loss
    want.backward()
    loss = SentencePairMLM().compute_loss(model, data)
    got = sum(part / data.target_counts[name] for name, part in loss.parts.items())
    got.backward()
    assert_close(got, want, atol=1e-5, rtol=1e-5)
    slopes = renamed({name: weight.grad for name, weight in original.named_parameters(remove_duplicate=False)})
    assert slopes.keys() == {name for name, _ in model.named_parameters()}
    for name, weight in model.named_parameters():
        assert_close(weight.grad, slopes[name], atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("preset", "parameters"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_the_published_sizes(preset, parameters):
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets[preset], vocabulary=30_522))
    assert sum(weight.numel() for weight in model.encoder.parameters()) == parameters


@pytest.mark.parametrize("preset", [name for name in EncoderConfig.presets if name.startswith("bert-")])
def test_every_preset_has_the_size_transformers_gives_it(preset):
    config = EncoderConfig.presets[preset]
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=config, vocabulary=30_522, heads=SentencePairMLM().heads()))
        sizes = {"hidden_size": config.width, "num_hidden_layers": config.layers, "intermediate_size": 4 * config.width}
        peer = transformers.BertForPreTraining(transformers.BertConfig(num_attention_heads=config.width // 64, **sizes))
    assert sum(w.numel() for w in model.parameters()) == sum(w.numel() for w in peer.parameters())
