"""What Hugging Face calls the parts of our model, family by family and class by class, for both ways."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

QKV = "mixer.project.qkv"  # one matrix of ours, three of theirs
Shape = Literal["text", "token", "span", "choice"]  # what a class with a task's head gives scores of


Names = tuple[str | None, str | None, str | None]


@dataclass(frozen=True)
class Form:
    """One of transformers' classes: which of our heads it has, and where it keeps them."""

    name: str
    heads: tuple[str, ...] = ()  # sorted
    pooler: str | None = None  # the module of theirs that is our pooler; without it, the class has none
    shape: Shape | None = None
    score: str = ""  # the module that is the score of our head `task`
    dropout: str | None = None  # of that head: its key in config.json; without it, there is none


@dataclass(frozen=True)
class Family:
    """How Hugging Face writes one family. Names are of modules; each stands for its `.weight` and `.bias`."""

    kind: str  # `model_type` in config.json
    prefix: str  # before the encoder's names, in a model with a head
    tables: dict[str, str]  # embeddings, which have no bias; what is not here is zero
    layers: dict[str, str]
    block: str  # what a block's names begin with, {} for its number
    blocks: dict[str, tuple[str, ...]]
    heads: dict[str, dict[str, str]]  # of pre-training; `bias` is no module but a tensor itself
    copies: dict[str, str]  # tied tensors, which some files hold twice
    forms: tuple[Form, ...]  # the first is the encoder alone
    sizes: dict[str, str]  # our keys to theirs, in config.json
    fixed: dict[str, Any]  # ours that they cannot choose
    defaults: dict[str, Any] = field(default_factory=dict)  # theirs that may be left out, where they are not as ours
    offset: bool = False  # positions begin after the padding's id
    widens: Literal["never", "narrow", "always"] = "never"  # a projection above the tables: where they are narrower, or always
    erf: bool = False  # the head over the words has GELU by erf, whatever the blocks have
    bare: bool = False  # the head over the words is the table of tokens alone
    across: bool = False  # the matrices of blocks are stored the other way round
    four: bool = False  # the inner width is four times the outer where config.json does not say
    spelt: dict[str, str] = field(default_factory=dict)  # activations that it calls as others call another
    same: dict[str, str] = field(default_factory=dict)  # keys of theirs that say once more what a key of ours does
    windows: bool = False  # its attention is within windows, and anchors have matrices of their own
    buffers: str = r"(^|\.)(position_ids|token_type_ids)$"  # what older versions kept in the file, and is no weight

    @property
    def roots(self) -> tuple[str, ...]:
        """What the encoder's names begin with where it was saved alone, without the prefix."""
        names = [*self.tables.values(), *self.layers.values(), self.block, "pooler."]
        return tuple({f"{name.split('.')[0]}." for name in names})

    @property
    def pooler(self) -> str | None:
        """Where the encoder by itself has it."""
        return self.forms[0].pooler

    def form(self, heads: tuple[str, ...], shape: Shape | None) -> Form | None:
        """The class with these heads."""
        return next((form for form in self.forms if form.heads == heads and form.shape == shape), None)


def _forms(word: str, poolers: Names, dropouts: Names, *more: Form, score: str = "classifier") -> tuple[Form, ...]:
    """A family's classes: poolers of the encoder, a text's head and a choice's; dropouts of heads of texts, tokens, spans."""
    pooler, text, choice = poolers
    of_text, of_token, of_span = dropouts
    return (
        Form(f"{word}Model", pooler=pooler),
        Form(f"{word}ForMaskedLM", ("words",)),
        Form(f"{word}ForSequenceClassification", ("task",), text, "text", score, of_text),
        Form(f"{word}ForTokenClassification", ("task",), None, "token", "classifier", of_token),
        Form(f"{word}ForQuestionAnswering", ("task",), None, "span", "qa_outputs", of_span),
        Form(f"{word}ForMultipleChoice", ("task",), choice, "choice", "classifier", of_text),
        *more,
    )


BLOCKS = {
    QKV: ("attention.self.query", "attention.self.key", "attention.self.value"),
    "mixer.project.out": ("attention.output.dense",),
    "mixer_norm": ("attention.output.LayerNorm",),
    "feedforward.up": ("intermediate.dense",),
    "feedforward.down": ("output.dense",),
    "feedforward_norm": ("output.LayerNorm",),
}
TABLES = {
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
}
SIZES = {
    "layers": "num_hidden_layers", "width": "hidden_size", "mixer.heads": "num_attention_heads",
    "feedforward.inner": "intermediate_size", "feedforward.activation": "hidden_act",
    "positions": "max_position_embeddings", "segments": "type_vocab_size", "dropout": "hidden_dropout_prob",
    "mixer.dropout": "attention_probs_dropout_prob", "eps": "layer_norm_eps", "deviation": "initializer_range",
}  # fmt: skip
CLASSIFIER: Names = ("classifier_dropout", "classifier_dropout", None)
MAPPING = "encoder.embedding_hidden_mapping_in"

BERT = Family(
    kind="bert",
    prefix="bert.",
    tables=TABLES,
    layers={"norm": "embeddings.LayerNorm"},
    block="encoder.layer.{}.",
    blocks=BLOCKS,
    heads={
        "words": {
            "transform": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "bias": "cls.predictions.bias",
        },
        "next": {"score": "cls.seq_relationship"},
    },
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    forms=_forms(
        "Bert", ("bert.pooler.dense", "bert.pooler.dense", "bert.pooler.dense"), CLASSIFIER,
        Form("BertForNextSentencePrediction", ("next",), "bert.pooler.dense"),
        Form("BertForPreTraining", ("next", "words"), "bert.pooler.dense"),
    ),
    sizes=SIZES,
    fixed={"pooler": "tanh", "groups": None, "embedding": None},
)  # fmt: skip

# Chinese checkpoints of Google's kind whose tables are narrower than their blocks; Hugging Face's BERT cannot be that.
NARROW_BERT = replace(
    BERT,
    layers={**BERT.layers, "widen": MAPPING},
    sizes={**SIZES, "embedding": "embedding_size"},
    fixed={"pooler": "tanh", "groups": None},
    widens="always",
)

ROBERTA = Family(
    kind="roberta",
    prefix="roberta.",
    tables=TABLES,
    layers=BERT.layers,
    block=BERT.block,
    blocks=BLOCKS,
    heads={"words": {"transform": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"}},
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    forms=_forms(
        "Roberta", ("roberta.pooler.dense", "classifier.dense", "roberta.pooler.dense"), CLASSIFIER,
        score="classifier.out_proj",
    ),
    sizes=SIZES,
    fixed=BERT.fixed,
    offset=True,
    erf=True,
)  # fmt: skip

LONGFORMER = replace(
    ROBERTA,
    kind="longformer",
    prefix="longformer.",
    blocks={
        **BLOCKS,
        "mixer.anchored": ("attention.self.query_global", "attention.self.key_global", "attention.self.value_global"),
    },
    copies={
        "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    forms=_forms(
        "Longformer", ("longformer.pooler.dense", "classifier.dense", "longformer.pooler.dense"),
        ("hidden_dropout_prob", "hidden_dropout_prob", None), score="classifier.out_proj",
    ),
    fixed={**ROBERTA.fixed, "mixer.kind": "window"},
    windows=True,
)  # fmt: skip

DISTILBERT = Family(
    kind="distilbert",
    prefix="distilbert.",
    tables={name: theirs for name, theirs in TABLES.items() if name != "segments"},
    layers=BERT.layers,
    block="transformer.layer.{}.",
    blocks={
        QKV: ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "mixer.project.out": ("attention.out_lin",),
        "mixer_norm": ("sa_layer_norm",),
        "feedforward.up": ("ffn.lin1",),
        "feedforward.down": ("ffn.lin2",),
        "feedforward_norm": ("output_layer_norm",),
    },
    heads={"words": {"transform": "vocab_transform", "norm": "vocab_layer_norm", "bias": "vocab_projector.bias"}},
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    forms=_forms(
        "DistilBert", (None, "pre_classifier", "pre_classifier"), ("seq_classif_dropout", "dropout", "qa_dropout")
    ),
    sizes={
        "layers": "n_layers", "width": "dim", "mixer.heads": "n_heads", "feedforward.inner": "hidden_dim",
        "feedforward.activation": "activation", "positions": "max_position_embeddings", "dropout": "dropout",
        "mixer.dropout": "attention_dropout", "deviation": "initializer_range",
    },
    fixed={"segments": 1, "eps": 1e-12, "pooler": "relu", "groups": None, "embedding": None},
    defaults={"seq_classif_dropout": 0.2, "qa_dropout": 0.1},
)  # fmt: skip

ALBERT = Family(
    kind="albert",
    prefix="albert.",
    tables=TABLES,
    layers={"norm": "embeddings.LayerNorm", "widen": MAPPING},
    block="encoder.albert_layer_groups.{}.albert_layers.0.",
    blocks={
        QKV: ("attention.query", "attention.key", "attention.value"),
        "mixer.project.out": ("attention.dense",),
        "mixer_norm": ("attention.LayerNorm",),
        "feedforward.up": ("ffn",),
        "feedforward.down": ("ffn_output",),
        "feedforward_norm": ("full_layer_layer_norm",),
    },
    heads={
        "words": {"transform": "predictions.dense", "norm": "predictions.LayerNorm", "bias": "predictions.bias"},
        "next": {"score": "sop_classifier.classifier"},
    },
    copies={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    forms=_forms(
        "Albert", ("albert.pooler", "albert.pooler", "albert.pooler"),
        ("classifier_dropout_prob", "classifier_dropout_prob", None),
        Form("AlbertForPreTraining", ("next", "words"), "albert.pooler"),
    ),
    sizes={**SIZES, "groups": "num_hidden_groups", "embedding": "embedding_size"},
    fixed={"pooler": "tanh"},
    defaults={"hidden_act": "gelu_new", "num_hidden_groups": 1, "embedding_size": 128, "hidden_dropout_prob": 0.0,
              "classifier_dropout_prob": 0.1},
    widens="always",
)  # fmt: skip

ELECTRA = Family(
    kind="electra",
    prefix="electra.",
    tables=TABLES,
    layers={"norm": "embeddings.LayerNorm", "widen": "embeddings_project"},
    block=BERT.block,
    blocks=BLOCKS,
    heads={
        "words": {
            "transform": "generator_predictions.dense",
            "norm": "generator_predictions.LayerNorm",
            "bias": "generator_lm_head.bias",
        },
        "replaced": {
            "transform": "discriminator_predictions.dense",
            "score": "discriminator_predictions.dense_prediction",
        },
    },
    copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    forms=_forms(
        "Electra", (None, "classifier.dense", "sequence_summary.summary"), CLASSIFIER,
        Form("ElectraForPreTraining", ("replaced",)), score="classifier.out_proj",
    ),
    sizes={**SIZES, "embedding": "embedding_size"},
    fixed={"pooler": "gelu", "groups": None},
    defaults={"embedding_size": 128},
    widens="narrow",
    erf=True,
)  # fmt: skip

GPT2 = Family(
    kind="gpt2",
    prefix="transformer.",
    tables={"tokens": "wte", "positions": "wpe"},
    layers={"stack.norm": "ln_f"},
    block="h.{}.",
    blocks={
        QKV: ("attn.c_attn",),
        "mixer.project.out": ("attn.c_proj",),
        "mixer_norm": ("ln_1",),
        "feedforward.up": ("mlp.c_fc",),
        "feedforward.down": ("mlp.c_proj",),
        "feedforward_norm": ("ln_2",),
    },
    heads={"words": {}},
    copies={"lm_head.weight": "transformer.wte.weight"},
    forms=(Form("GPT2Model"), Form("GPT2LMHeadModel", ("words",))),
    sizes={
        "layers": "n_layer", "width": "n_embd", "mixer.heads": "n_head", "feedforward.inner": "n_inner",
        "feedforward.activation": "activation_function", "positions": "n_positions", "dropout": "resid_pdrop",
        "mixer.dropout": "attn_pdrop", "eps": "layer_norm_epsilon", "deviation": "initializer_range",
    },
    fixed={"mixer.causal": True, "norm": "before", "segments": 0, "embedding_norm": False, "pooler": "none", "groups": None,
           "embedding": None},
    defaults={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_positions": 1024},
    bare=True,
    across=True,
    four=True,
    same={"embd_pdrop": "dropout"},
    buffers=r"\.attn\.(masked_)?bias$",
)  # fmt: skip

OPENAI_GPT = replace(
    GPT2,
    kind="openai-gpt",
    tables={"tokens": "tokens_embed", "positions": "positions_embed"},
    layers={},
    copies={"lm_head.weight": "transformer.tokens_embed.weight"},
    forms=(Form("OpenAIGPTModel"), Form("OpenAIGPTLMHeadModel", ("words",))),
    sizes={ours: theirs for ours, theirs in GPT2.sizes.items() if ours != "feedforward.inner"}
    | {"feedforward.activation": "afn"},
    fixed={**GPT2.fixed, "norm": "after"},
    defaults={"afn": "gelu", "layer_norm_epsilon": 1e-5, "n_positions": 512},
    spelt={"gelu": "gelu-tanh", "relu": "relu"},
    buffers=r"\.attn\.bias$|(^|\.)position_ids$",
)

FAMILIES = {family.kind: family for family in (BERT, ROBERTA, LONGFORMER, DISTILBERT, ALBERT, ELECTRA, GPT2, OPENAI_GPT)}
