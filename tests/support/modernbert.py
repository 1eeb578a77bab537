"""The weights of transformers' ModernBERT under our names."""

import torch

VOCAB_SIZE, HIDDEN_SIZE = 97, 32

KEY_MAP = {
    "model.embeddings.tok_embeddings": "encoder.word_embeddings", "model.embeddings.norm": "encoder.embedding_norm",
    "model.layers": "encoder.stack.layers", "model.final_norm": "encoder.stack.final_norm",
    "attn.Wqkv": "mixer.projections.qkv", "attn.Wo": "mixer.projections.output", "attn_norm": "mixer_norm",
    "mlp.Wi": "feedforward.intermediate", "mlp.Wo": "feedforward.output", "mlp_norm": "feedforward_norm",
    "head.dense": "heads.lm.transform", "head.norm": "heads.lm.norm", "decoder.bias": "heads.lm.bias",
}  # fmt: skip

EXTRA_WEIGHTS = {  # weights that only our model has, with values that make them the identity or zero
    "encoder.token_type_embeddings.weight": torch.zeros(1, HIDDEN_SIZE),
    "encoder.pooler.weight": torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE), "encoder.pooler.bias": torch.zeros(HIDDEN_SIZE),
    "heads.lm.transform.bias": torch.zeros(HIDDEN_SIZE),
}  # fmt: skip


def rename_key(name):
    for old, new in KEY_MAP.items():
        name = name.replace(old, new)
    return name
