"""Names of tensors, config keys and classes in transformers for each model family, used for import and export."""

from dataclasses import replace

from .family import QKV, Architecture, Family, HeadType, NameTriple, build_architectures
from .modernbert import DEFAULTS as MODERNBERT_DEFAULTS

BLOCK_MODULES = {
    QKV: ("attention.self.query", "attention.self.key", "attention.self.value"),
    "mixer.projections.output": ("attention.output.dense",),
    "mixer_norm": ("attention.output.LayerNorm",),
    "feedforward.intermediate": ("intermediate.dense",),
    "feedforward.output": ("output.dense",),
    "feedforward_norm": ("output.LayerNorm",),
}
EMBEDDINGS = {
    "word_embeddings": "embeddings.word_embeddings",
    "position_embeddings": "embeddings.position_embeddings",
    "token_type_embeddings": "embeddings.token_type_embeddings",
}
CONFIG_KEYS = {
    "num_hidden_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "mixer.num_attention_heads": "num_attention_heads",
    "feedforward.intermediate_size": "intermediate_size",
    "feedforward.hidden_act": "hidden_act",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "mixer.attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
CLASSIFIER_DROPOUTS: NameTriple = ("classifier_dropout", "classifier_dropout", None)
EMBEDDING_PROJECTION = "encoder.embedding_hidden_mapping_in"

BERT = Family(
    model_type="bert",
    prefix="bert.",
    embeddings=EMBEDDINGS,
    modules={"embedding_norm": "embeddings.LayerNorm"},
    block_prefix="encoder.layer.{}.",
    block_modules=BLOCK_MODULES,
    head_modules={
        "lm": {
            "transform": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "bias": "cls.predictions.bias",
        },
        "nsp": {"classifier": "cls.seq_relationship"},
    },
    tied_weights={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    architectures=build_architectures(
        "Bert", ("bert.pooler.dense", "bert.pooler.dense", "bert.pooler.dense"), CLASSIFIER_DROPOUTS,
        Architecture("BertForNextSentencePrediction", ("nsp",), "bert.pooler.dense"),
        Architecture("BertForPreTraining", ("lm", "nsp"), "bert.pooler.dense"),
    ),
    config_keys=CONFIG_KEYS,
    fixed_values={"pooler_act": "tanh", "num_hidden_groups": None, "embedding_size": None},
)  # fmt: skip

# Chinese checkpoints in Google's format with embedding_size < hidden_size, which transformers' BERT does not support.
NARROW_BERT = replace(
    BERT,
    modules={**BERT.modules, "embedding_projection": EMBEDDING_PROJECTION},
    config_keys={**CONFIG_KEYS, "embedding_size": "embedding_size"},
    fixed_values={"pooler_act": "tanh", "num_hidden_groups": None},
    embedding_projection="always",
)

ROBERTA = Family(
    model_type="roberta",
    prefix="roberta.",
    embeddings=EMBEDDINGS,
    modules=BERT.modules,
    block_prefix=BERT.block_prefix,
    block_modules=BLOCK_MODULES,
    head_modules={"lm": {"transform": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"}},
    tied_weights={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    architectures=build_architectures(
        "Roberta", ("roberta.pooler.dense", "classifier.dense", "roberta.pooler.dense"), CLASSIFIER_DROPOUTS,
        score_module="classifier.out_proj",
    ),
    config_keys=CONFIG_KEYS,
    fixed_values=BERT.fixed_values,
    positions_after_pad=True,
    erf_mlm_head=True,
)  # fmt: skip

LONGFORMER = replace(
    ROBERTA,
    model_type="longformer",
    prefix="longformer.",
    block_modules={
        **BLOCK_MODULES,
        "mixer.global_qkv": ("attention.self.query_global", "attention.self.key_global", "attention.self.value_global"),
    },
    tied_weights={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    architectures=build_architectures(
        "Longformer", ("longformer.pooler.dense", "classifier.dense", "longformer.pooler.dense"),
        ("hidden_dropout_prob", "hidden_dropout_prob", None), score_module="classifier.out_proj",
    ),
    fixed_values={**ROBERTA.fixed_values, "mixer.kind": "longformer"},
    windowed_attention=True,
)  # fmt: skip

DISTILBERT = Family(
    model_type="distilbert",
    prefix="distilbert.",
    embeddings={ours: theirs for ours, theirs in EMBEDDINGS.items() if ours != "token_type_embeddings"},
    modules=BERT.modules,
    block_prefix="transformer.layer.{}.",
    block_modules={
        QKV: ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "mixer.projections.output": ("attention.out_lin",),
        "mixer_norm": ("sa_layer_norm",),
        "feedforward.intermediate": ("ffn.lin1",),
        "feedforward.output": ("ffn.lin2",),
        "feedforward_norm": ("output_layer_norm",),
    },
    head_modules={"lm": {"transform": "vocab_transform", "norm": "vocab_layer_norm", "bias": "vocab_projector.bias"}},
    tied_weights={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    architectures=build_architectures(
        "DistilBert", (None, "pre_classifier", "pre_classifier"), ("seq_classif_dropout", "dropout", "qa_dropout")
    ),
    config_keys={
        "num_hidden_layers": "n_layers",
        "hidden_size": "dim",
        "mixer.num_attention_heads": "n_heads",
        "feedforward.intermediate_size": "hidden_dim",
        "feedforward.hidden_act": "activation",
        "max_position_embeddings": "max_position_embeddings",
        "hidden_dropout_prob": "dropout",
        "mixer.attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
    },
    fixed_values={"type_vocab_size": 1, "layer_norm_eps": 1e-12, "pooler_act": "relu", "num_hidden_groups": None,
                  "embedding_size": None},
    defaults={"seq_classif_dropout": 0.2, "qa_dropout": 0.1},
)  # fmt: skip

ALBERT = Family(
    model_type="albert",
    prefix="albert.",
    embeddings=EMBEDDINGS,
    modules={"embedding_norm": "embeddings.LayerNorm", "embedding_projection": EMBEDDING_PROJECTION},
    block_prefix="encoder.albert_layer_groups.{}.albert_layers.0.",
    block_modules={
        QKV: ("attention.query", "attention.key", "attention.value"),
        "mixer.projections.output": ("attention.dense",),
        "mixer_norm": ("attention.LayerNorm",),
        "feedforward.intermediate": ("ffn",),
        "feedforward.output": ("ffn_output",),
        "feedforward_norm": ("full_layer_layer_norm",),
    },
    head_modules={
        "lm": {"transform": "predictions.dense", "norm": "predictions.LayerNorm", "bias": "predictions.bias"},
        "sop": {"classifier": "sop_classifier.classifier"},
    },
    tied_weights={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    architectures=build_architectures(
        "Albert", ("albert.pooler", "albert.pooler", "albert.pooler"),
        ("classifier_dropout_prob", "classifier_dropout_prob", None),
        Architecture("AlbertForPreTraining", ("lm", "sop"), "albert.pooler"),
    ),
    config_keys={**CONFIG_KEYS, "num_hidden_groups": "num_hidden_groups", "embedding_size": "embedding_size"},
    fixed_values={"pooler_act": "tanh"},
    defaults={"hidden_act": "gelu_new", "num_hidden_groups": 1, "embedding_size": 128, "hidden_dropout_prob": 0.0,
              "classifier_dropout_prob": 0.1},
    embedding_projection="always",
)  # fmt: skip

ELECTRA = Family(
    model_type="electra",
    prefix="electra.",
    embeddings=EMBEDDINGS,
    modules={"embedding_norm": "embeddings.LayerNorm", "embedding_projection": "embeddings_project"},
    block_prefix=BERT.block_prefix,
    block_modules=BLOCK_MODULES,
    head_modules={
        "lm": {
            "transform": "generator_predictions.dense",
            "norm": "generator_predictions.LayerNorm",
            "bias": "generator_lm_head.bias",
        },
        "rtd": {
            "transform": "discriminator_predictions.dense",
            "classifier": "discriminator_predictions.dense_prediction",
        },
    },
    tied_weights={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    architectures=build_architectures(
        "Electra", (None, "classifier.dense", "sequence_summary.summary"), CLASSIFIER_DROPOUTS,
        Architecture("ElectraForPreTraining", ("rtd",)), score_module="classifier.out_proj",
    ),
    config_keys={**CONFIG_KEYS, "embedding_size": "embedding_size"},
    fixed_values={"pooler_act": "gelu", "num_hidden_groups": None},
    defaults={"embedding_size": 128},
    embedding_projection="narrow",
    erf_mlm_head=True,
)  # fmt: skip

GPT2 = Family(
    model_type="gpt2",
    prefix="transformer.",
    embeddings={"word_embeddings": "wte", "position_embeddings": "wpe"},
    modules={"stack.final_norm": "ln_f"},
    block_prefix="h.{}.",
    block_modules={
        QKV: ("attn.c_attn",),
        "mixer.projections.output": ("attn.c_proj",),
        "mixer_norm": ("ln_1",),
        "feedforward.intermediate": ("mlp.c_fc",),
        "feedforward.output": ("mlp.c_proj",),
        "feedforward_norm": ("ln_2",),
    },
    head_modules={"lm": {}},
    tied_weights={"lm_head.weight": "transformer.wte.weight"},
    architectures=(Architecture("GPT2Model"), Architecture("GPT2LMHeadModel", ("lm",))),
    config_keys={
        "num_hidden_layers": "n_layer",
        "hidden_size": "n_embd",
        "mixer.num_attention_heads": "n_head",
        "feedforward.intermediate_size": "n_inner",
        "feedforward.hidden_act": "activation_function",
        "max_position_embeddings": "n_positions",
        "hidden_dropout_prob": "resid_pdrop",
        "mixer.attention_dropout": "attn_pdrop",
        "layer_norm_eps": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
    },
    fixed_values={"mixer.causal": True, "norm": "pre", "type_vocab_size": 0, "embedding_norm": False, "pooler_act": "none",
                  "num_hidden_groups": None, "embedding_size": None},
    defaults={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_positions": 1024},
    bare_lm_head=True,
    transposed_weights=True,
    default_intermediate_4x=True,
    repeated_keys={"embd_pdrop": "hidden_dropout_prob"},
    buffer_pattern=r"\.attn\.(masked_)?bias$",
)  # fmt: skip

OPENAI_GPT = replace(
    GPT2,
    model_type="openai-gpt",
    embeddings={"word_embeddings": "tokens_embed", "position_embeddings": "positions_embed"},
    modules={},
    tied_weights={"lm_head.weight": "transformer.tokens_embed.weight"},
    architectures=(Architecture("OpenAIGPTModel"), Architecture("OpenAIGPTLMHeadModel", ("lm",))),
    config_keys={ours: theirs for ours, theirs in GPT2.config_keys.items() if ours != "feedforward.intermediate_size"}
    | {"feedforward.hidden_act": "afn"},
    fixed_values={**GPT2.fixed_values, "norm": "post"},
    defaults={"afn": "gelu", "layer_norm_epsilon": 1e-5, "n_positions": 512},
    activation_names={"gelu": "gelu-tanh", "relu": "relu"},
    buffer_pattern=r"\.attn\.bias$|(^|\.)position_ids$",
)

MODERNBERT_HEADS: dict[str, HeadType] = {
    "SequenceClassification": "text", "TokenClassification": "token", "QuestionAnswering": "span", "MultipleChoice": "choice",
}  # fmt: skip
MODERNBERT = Family(
    model_type="modernbert",
    prefix="model.",
    embeddings={"word_embeddings": "embeddings.tok_embeddings"},
    modules={"embedding_norm": "embeddings.norm", "stack.final_norm": "final_norm"},
    block_prefix="layers.{}.",
    block_modules={
        QKV: ("attn.Wqkv",),
        "mixer.projections.output": ("attn.Wo",),
        "mixer_norm": ("attn_norm",),
        "feedforward.intermediate": ("mlp.Wi",),
        "feedforward.output": ("mlp.Wo",),
        "feedforward_norm": ("mlp_norm",),
    },
    head_modules={
        "lm": {"transform": "head.dense", "norm": "head.norm", "bias": "decoder.bias"},
        "task": {"transform": "head.dense", "norm": "head.norm"},
    },
    tied_weights={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    architectures=(
        Architecture("ModernBertModel"),
        Architecture("ModernBertForMaskedLM", ("lm",)),
        *(Architecture(f"ModernBertFor{name}", ("task",), None, head_type, "classifier", "classifier_dropout")
          for name, head_type in MODERNBERT_HEADS.items()),
    ),
    config_keys={
        **{ours: theirs for ours, theirs in CONFIG_KEYS.items() if ours != "type_vocab_size"},
        "feedforward.hidden_act": "hidden_activation",
        "hidden_dropout_prob": "embedding_dropout",
        "mixer.attention_dropout": "attention_dropout",
        "layer_norm_eps": "norm_eps",
        "norm_bias": "norm_bias",
        "mixer.bias": "attention_bias",
        "feedforward.bias": "mlp_bias",
        "pooling": "classifier_pooling",
    },
    fixed_values={"norm": "pre", "first_attention_norm": False, "feedforward.glu": True, "position_embedding_type": "none",
                  "type_vocab_size": 0, "pooler_act": "none", "head_transform": True, "num_hidden_groups": None,
                  "embedding_size": None},
    defaults=MODERNBERT_DEFAULTS,
    repeated_keys={"mlp_dropout": "hidden_dropout_prob", "classifier_activation": "feedforward.hidden_act"},
    is_modernbert=True,
)  # fmt: skip

FAMILIES = {
    family.model_type: family
    for family in (BERT, ROBERTA, LONGFORMER, DISTILBERT, ALBERT, ELECTRA, GPT2, OPENAI_GPT, MODERNBERT)
}
