"""`Family` and `Architecture`: what differs between the model families of transformers, for import and export."""

from dataclasses import dataclass, field
from typing import Any, Literal

QKV = "mixer.projections.qkv"  # one fused matrix here, three in most families
HeadType = Literal["text", "token", "span", "choice"]  # what the scores of a task head are for
NameTriple = tuple[str | None, str | None, str | None]
PAIR_HEADS = {"nsp", "sop"}  # heads of a pair of sentences, on the pooled first token


@dataclass(frozen=True)
class Architecture:
    """A transformers class: its heads, in our names, and the modules that hold them."""

    name: str
    heads: tuple[str, ...] = ()  # sorted
    pooler_module: str | None = None  # module of the pooler; None: no pooler
    head_type: HeadType | None = None
    score_module: str = ""  # module of the final linear layer of our head `task`
    dropout_key: str | None = None  # key in config.json of that head's dropout; None: no dropout


@dataclass(frozen=True)
class Family:
    """One model family in transformers. Dictionaries map our module names to theirs, each for `.weight` and `.bias`."""

    model_type: str  # `model_type` in config.json
    prefix: str  # of the encoder's tensors in a model with a head
    embeddings: dict[str, str]  # no bias; an embedding missing here is zero
    modules: dict[str, str]
    block_prefix: str  # {} is the index of the block
    block_modules: dict[str, tuple[str, ...]]
    head_modules: dict[str, dict[str, str]]  # pre-training heads; `bias` is a tensor, not a module
    tied_weights: dict[str, str]  # copy -> original; some files contain both
    architectures: tuple[Architecture, ...]  # the first is the bare encoder
    config_keys: dict[str, str]  # our dotted keys to keys of config.json
    fixed_values: dict[str, Any]  # our keys that the family fixes
    defaults: dict[str, Any] = field(default_factory=dict)  # of keys of config.json, where they differ from ours
    positions_after_pad: bool = False  # position ids start at pad_token_id + 1
    embedding_projection: Literal["never", "narrow", "always"] = "never"  # narrow: if embedding_size < hidden_size
    erf_mlm_head: bool = False  # the MLM head has exact GELU (erf) whatever hidden_act is
    bare_lm_head: bool = False  # the LM head is the tied embedding matrix alone, without bias
    transposed_weights: bool = False  # matrices of the blocks are stored as (in, out)
    default_intermediate_4x: bool = False  # intermediate_size defaults to 4 * hidden_size
    activation_names: dict[str, str] = field(default_factory=dict)  # activations that the family names differently
    repeated_keys: dict[str, str] = field(default_factory=dict)  # further keys of config.json -> our key with the same value
    windowed_attention: bool = False  # Longformer: window attention, global tokens with projections of their own
    is_modernbert: bool = False  # layers with full and with local attention; one dense layer and norm in every head
    buffer_pattern: str = r"(^|\.)(position_ids|token_type_ids)$"  # buffers in files of older versions

    @property
    def root_prefixes(self) -> tuple[str, ...]:
        """First components of the encoder's tensor names in files of the bare encoder, which lack the prefix."""
        names = [*self.embeddings.values(), *self.modules.values(), self.block_prefix, "pooler."]
        return tuple({f"{name.split('.')[0]}." for name in names})

    @property
    def pooler_module(self) -> str | None:
        """Module of the bare encoder's pooler."""
        return self.architectures[0].pooler_module

    def find_architecture(self, heads: tuple[str, ...], head_type: HeadType | None) -> Architecture | None:
        """The class with these heads, None if there is none."""
        matches = (arch for arch in self.architectures if arch.heads == heads and arch.head_type == head_type)
        return next(matches, None)


def build_architectures(
    class_prefix: str, poolers: NameTriple, dropouts: NameTriple, *extra: Architecture, score_module: str = "classifier"
) -> tuple[Architecture, ...]:
    """The usual classes of a family. `poolers`: of the encoder, the sequence head, the choice head; `dropouts`: config keys of
    the sequence, token and span heads."""
    encoder_pooler, text_pooler, choice_pooler = poolers
    text_dropout, token_dropout, span_dropout = dropouts
    return (
        Architecture(f"{class_prefix}Model", pooler_module=encoder_pooler),
        Architecture(f"{class_prefix}ForMaskedLM", ("lm",)),
        Architecture(f"{class_prefix}ForSequenceClassification", ("task",), text_pooler, "text", score_module, text_dropout),
        Architecture(f"{class_prefix}ForTokenClassification", ("task",), None, "token", "classifier", token_dropout),
        Architecture(f"{class_prefix}ForQuestionAnswering", ("task",), None, "span", "qa_outputs", span_dropout),
        Architecture(f"{class_prefix}ForMultipleChoice", ("task",), choice_pooler, "choice", "classifier", text_dropout),
        *extra,
    )
