"""What other libraries call the parts of our model, family by family, for both ways."""

import re
from dataclasses import dataclass

QKV = "mixer.project.qkv"  # one matrix of ours, three of theirs


@dataclass(frozen=True)
class Family:
    """How Hugging Face writes one family. Names are of modules; each stands for its `.weight` and `.bias`."""

    kind: str  # `model_type` in config.json
    prefix: str  # before the encoder's names, in a model with a head
    tables: dict[str, str]  # embeddings, which have no bias; what is not here is zero
    layers: dict[str, str]
    block: str  # what a block's names begin with
    blocks: dict[str, tuple[str, ...]]
    heads: dict[str, dict[str, str]]
    biases: dict[str, str]  # a head's bias over the words, by head
    copies: dict[str, str]  # tied tensors, which some files hold twice
    classes: dict[tuple[str, ...], str]  # heads, sorted, to transformers' class
    pooled: tuple[str, ...]  # classes with a pooler
    sizes: dict[str, str]  # our keys to theirs, in config.json
    fixed: dict[str, float]  # ours that they cannot choose
    activation: str = "hidden_act"  # its key in config.json
    offset: bool = False  # positions begin after the padding's id

    @property
    def roots(self) -> tuple[str, ...]:
        """What the encoder's names begin with where it was saved alone, without the prefix."""
        names = [*self.tables.values(), *self.layers.values(), self.block, "pooler."]
        return tuple({f"{name.split('.')[0]}." for name in names})


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
    "feedforward.inner": "intermediate_size", "positions": "max_position_embeddings", "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob", "mixer.dropout": "attention_probs_dropout_prob", "eps": "layer_norm_eps",
    "deviation": "initializer_range",
}  # fmt: skip

BERT = Family(
    kind="bert",
    prefix="bert.",
    tables=TABLES,
    layers={"norm": "embeddings.LayerNorm", "pooler": "pooler.dense"},
    block="encoder.layer.",
    blocks=BLOCKS,
    heads={
        "words": {"transform": "cls.predictions.transform.dense", "norm": "cls.predictions.transform.LayerNorm"},
        "next": {"score": "cls.seq_relationship"},
    },
    biases={"words": "cls.predictions.bias"},
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    classes={
        (): "BertModel",
        ("words",): "BertForMaskedLM",
        ("next",): "BertForNextSentencePrediction",
        ("next", "words"): "BertForPreTraining",
    },
    pooled=("BertModel", "BertForNextSentencePrediction", "BertForPreTraining"),
    sizes=SIZES,
    fixed={},
)

ROBERTA = Family(
    kind="roberta",
    prefix="roberta.",
    tables=TABLES,
    layers=BERT.layers,
    block=BERT.block,
    blocks=BLOCKS,
    heads={"words": {"transform": "lm_head.dense", "norm": "lm_head.layer_norm"}},
    biases={"words": "lm_head.bias"},
    copies={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    classes={(): "RobertaModel", ("words",): "RobertaForMaskedLM"},
    pooled=("RobertaModel",),
    sizes=SIZES,
    fixed={},
    offset=True,
)

DISTILBERT = Family(
    kind="distilbert",
    prefix="distilbert.",
    tables={name: theirs for name, theirs in TABLES.items() if name != "segments"},
    layers={"norm": "embeddings.LayerNorm"},
    block="transformer.layer.",
    blocks={
        QKV: ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "mixer.project.out": ("attention.out_lin",),
        "mixer_norm": ("sa_layer_norm",),
        "feedforward.up": ("ffn.lin1",),
        "feedforward.down": ("ffn.lin2",),
        "feedforward_norm": ("output_layer_norm",),
    },
    heads={"words": {"transform": "vocab_transform", "norm": "vocab_layer_norm"}},
    biases={"words": "vocab_projector.bias"},
    copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    classes={(): "DistilBertModel", ("words",): "DistilBertForMaskedLM"},
    pooled=(),
    sizes={
        "layers": "n_layers", "width": "dim", "mixer.heads": "n_heads", "feedforward.inner": "hidden_dim",
        "positions": "max_position_embeddings", "dropout": "dropout", "mixer.dropout": "attention_dropout",
        "deviation": "initializer_range",
    },
    fixed={"segments": 1, "eps": 1e-12},
    activation="activation",
)  # fmt: skip

FAMILIES = {family.kind: family for family in (BERT, ROBERTA, DISTILBERT)}


def places(family: Family, layers: int, heads: tuple[str, ...], pooler: bool) -> dict[str, tuple[str, ...]]:
    """Each tensor of ours to those of theirs it is made of, one below another."""
    found: dict[str, tuple[str, ...]]
    found = {f"encoder.{ours}.weight": (f"{family.prefix}{theirs}.weight",) for ours, theirs in family.tables.items()}
    modules: dict[str, tuple[str, ...]]
    modules = {ours: (theirs,) for ours, theirs in family.layers.items() if ours != "pooler" or pooler}
    for number in range(layers):
        for ours, theirs in family.blocks.items():
            modules[f"stack.blocks.{number}.{ours}"] = tuple(f"{family.block}{number}.{name}" for name in theirs)
    for part in ("weight", "bias"):
        for ours, theirs in modules.items():
            found[f"encoder.{ours}.{part}"] = tuple(f"{family.prefix}{name}.{part}" for name in theirs)
        for head in heads:
            found |= {f"heads.{head}.{ours}.{part}": (f"{name}.{part}",) for ours, name in family.heads[head].items()}
    return found | {f"heads.{head}.bias": (family.biases[head],) for head in heads if head in family.biases}


def normal(family: Family, name: str) -> str | None:
    """A name as today's files have it: old names of norms, encoders saved alone; None for what is no weight."""
    if name.endswith((".position_ids", ".token_type_ids")) or name in ("position_ids", "token_type_ids"):
        return None  # counts from 0 that older versions kept in the file
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return family.prefix + name if name.startswith(family.roots) else name


GOOGLE = {"output_weights": "weight", "output_bias": "bias", "kernel": "weight", "gamma": "weight", "beta": "bias"}
SLOTS = r"/(adam_[mv]|Adam(_1)?|lamb_[mv])$|^(global_step|beta[12]_power)$"


def from_google(name: str) -> str | None:
    """A variable of Google's BERT by the name Hugging Face gives it; None for what only its optimizer needs."""
    if re.search(SLOTS, name):
        return None
    name = re.sub(r"\blayer_(\d+)\b", r"layer.\1", name).replace("/", ".")
    name = re.sub(r"(_embeddings)$", r"\1.weight", name)
    return re.sub(r"\.(output_weights|output_bias|kernel|gamma|beta)$", lambda end: f".{GOOGLE[end[1]]}", name)
