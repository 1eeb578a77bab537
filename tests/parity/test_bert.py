"""Parity with transformers' BertForPreTraining: logits, losses and gradients with the same weights."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig
from bertsmith.model.packing import Layout, PaddedLayout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import NextSentenceMLM
from bertsmith.train.objective import Batch

transformers = pytest.importorskip("transformers")

VOCAB_SIZE, LENGTHS = 97, (17, 5, 40, 1, 23, 40)
NAMES = {
    "bert.embeddings.word_embeddings": "encoder.word_embeddings",
    "bert.embeddings.position_embeddings": "encoder.position_embeddings",
    "bert.embeddings.token_type_embeddings": "encoder.token_type_embeddings",
    "bert.embeddings.LayerNorm": "encoder.embedding_norm",
    "bert.encoder.layer": "encoder.stack.layers", "bert.pooler.dense": "encoder.pooler",
    "attention.output.dense": "mixer.projections.output", "attention.output.LayerNorm": "mixer_norm",
    "intermediate.dense": "feedforward.intermediate", "output.dense": "feedforward.output",
    "output.LayerNorm": "feedforward_norm",
    "cls.predictions.transform.dense": "heads.lm.transform", "cls.predictions.transform.LayerNorm": "heads.lm.norm",
    "cls.predictions.bias": "heads.lm.bias", "cls.seq_relationship": "heads.nsp.classifier",
}  # fmt: skip


def build_reference():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.BertForPreTraining(
        transformers.BertConfig(vocab_size=VOCAB_SIZE, max_position_embeddings=64, **sizes, **dropout)
    )
    for weight in model.parameters():  # biases and norms too, so that leaving one out shows
        torch.nn.init.normal_(weight, std=0.2)
    return model.eval()


def build_ours(reference):
    encoder = EncoderConfig(
        num_hidden_layers=3,
        hidden_size=32,
        mixer=Attention(num_attention_heads=4),
        feedforward=FeedForwardConfig(intermediate_size=64),
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
    )
    model = Model(ModelConfig(encoder=encoder, vocab_size=VOCAB_SIZE, heads=NextSentenceMLM().heads()))
    model.load_state_dict(convert_names(reference.state_dict()))
    return model.eval()


def convert_names(weights):
    """Their parameter names to ours; query, key and value become one matrix."""
    converted = {}
    for name, weight in weights.items():
        if name in ("bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
            continue
        if ".attention.self." in name:
            if ".query." not in name:
                continue
            weight = torch.cat([weights[name.replace("query", part)] for part in ("query", "key", "value")])
            name = name.replace("attention.self.query", "mixer.projections.qkv")
        for old, new in NAMES.items():
            name = name.replace(old, new)
        converted[name] = weight.clone()
    return converted


def build_batch():
    torch.manual_seed(1)
    layout = Layout.from_lengths(LENGTHS)
    input_ids, token_type_ids = torch.randint(5, VOCAB_SIZE, (sum(LENGTHS),)), (layout.position > 8).long()
    masked_positions = torch.randperm(sum(LENGTHS))[:20].sort().values
    targets = {
        "output_indices": masked_positions,
        "target_ids": torch.randint(5, VOCAB_SIZE, (20,)),
        "pair_labels": torch.randint(0, 2, (len(LENGTHS),)),
    }
    return Batch(Inputs(input_ids, layout, token_type_ids), targets, {"mlm": 20, "nsp": len(LENGTHS)})


def pad_batch(batch):
    """The batch as transformers takes it: padded, with an attention mask, and labels -100 where nothing is predicted."""
    layout, labels = batch.inputs.layout, torch.full((batch.num_tokens,), -100)
    labels[batch.targets["output_indices"]] = batch.targets["target_ids"]
    mask = layout.padding_mask()
    padded = {"input_ids": layout.pad(batch.inputs.input_ids), "token_type_ids": layout.pad(batch.inputs.token_type_ids)}
    padded_labels = layout.pad(labels).masked_fill(~mask, -100)
    return {
        **padded,
        "attention_mask": mask.long(),
        "labels": padded_labels,
        "next_sentence_label": batch.targets["pair_labels"],
    }, mask


def test_bert_logits_match_transformers():
    reference, batch = build_reference(), build_batch()
    model = build_ours(reference)
    inputs, mask = pad_batch(batch)
    expected, hidden = reference(**inputs), model(batch.inputs)
    assert_close(model.compute_logits("lm", hidden), expected.prediction_logits[mask], atol=1e-5, rtol=1e-5)
    next_scores = model.compute_logits("nsp", hidden[batch.inputs.layout.first_token])
    assert_close(next_scores, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_padded_layout_matches_packed():
    model, batch = build_ours(build_reference()), build_batch()
    inputs, mask = pad_batch(batch)
    padded_inputs = Inputs(inputs["input_ids"].flatten(), PaddedLayout.from_mask(mask), inputs["token_type_ids"].flatten())
    assert_close(model(padded_inputs)[mask.flatten()], model(batch.inputs), atol=1e-5, rtol=1e-5)


def test_bert_loss_and_grads_match_transformers():
    reference, batch = build_reference(), build_batch()
    model = build_ours(reference)
    inputs, _ = pad_batch(batch)
    expected = reference(**inputs).loss
    expected.backward()
    loss = NextSentenceMLM().compute_loss(model, batch)
    actual = sum(loss_sum / batch.target_counts[name] for name, loss_sum in loss.parts.items())
    actual.backward()
    assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    expected_grads = convert_names({name: weight.grad for name, weight in reference.named_parameters(remove_duplicate=False)})
    assert expected_grads.keys() == {name for name, _ in model.named_parameters()}
    for name, weight in model.named_parameters():
        assert_close(weight.grad, expected_grads[name], atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("preset", "num_parameters"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_bert_presets_have_the_published_parameter_count(preset, num_parameters):
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets()[preset], vocab_size=30_522))
    assert sum(weight.numel() for weight in model.encoder.parameters()) == num_parameters


@pytest.mark.parametrize("preset", [name for name in EncoderConfig.presets() if name.startswith("bert-")])
def test_bert_presets_have_the_parameter_count_of_transformers(preset):
    config = EncoderConfig.presets()[preset]
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=config, vocab_size=30_522, heads=NextSentenceMLM().heads()))
        sizes = {
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            "intermediate_size": 4 * config.hidden_size,
        }
        reference = transformers.BertForPreTraining(
            transformers.BertConfig(num_attention_heads=config.hidden_size // 64, **sizes)
        )
    assert sum(weight.numel() for weight in model.parameters()) == sum(weight.numel() for weight in reference.parameters())
