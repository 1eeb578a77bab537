"""Checkpoints as Google published BERT: a TensorFlow bundle, bert_config.json and vocab.txt."""

import json

import numpy as np

from tests.support.texts import VOCAB
from tests.support.tf_checkpoint_writer import write_bundle

SIZES = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": len(VOCAB),
    "max_position_embeddings": 24, "type_vocab_size": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
}  # fmt: skip


def to_google_names(tensors):
    """A transformers state dict under the variable names of Google's BERT, kernels transposed, with Adam's slots."""
    arrays = {}
    for name, tensor in tensors.items():
        if "decoder" in name or "position_ids" in name or name == "bert.embeddings.token_type_ids":
            continue
        array = tensor.numpy()
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        elif "seq_relationship" in name or name == "cls.predictions.bias":
            name = name.replace(".weight", ".output_weights").replace(".bias", ".output_bias")
        elif "_embeddings" in name:
            name = name.removesuffix(".weight")
        elif name.endswith(".weight"):
            name, array = name.replace(".weight", ".kernel"), np.ascontiguousarray(array.T)
        name = name.replace("layer.", "layer_").replace(".", "/")
        arrays[name] = array
        arrays |= {f"{name}/adam_{moment}": np.full_like(array, 9) for moment in "mv"}
    return arrays | {"global_step": np.array(1000)}


def write_checkpoint(folder, arrays, **settings):
    folder.mkdir()
    write_bundle(folder / "bert_model.ckpt", arrays, shards=2)
    (folder / "bert_config.json").write_text(json.dumps({**SIZES, **settings}))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return folder
