"""Their config.json to our encoder's config, and back; what our model cannot be is refused by name."""

from typing import Any

from ..config import RecipeError, parse, plain
from ..errors import BadInput
from ..model.encoder import EncoderConfig
from .names import BERT, FAMILIES, Family

# What other values would change, and our model does not have.
ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu", "gelu_python"),
    "activation": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
LACKS = {
    "albert": "embeddings narrower than the blocks (embedding_size) and blocks that share their weights",
    "electra": "embeddings narrower than the blocks (embedding_size) and a head that finds replaced words",
}


def family_of(config: dict[str, Any], source: str) -> Family:
    """Which family a config.json is of; one without `model_type`, as Google wrote them, is BERT's."""
    if not isinstance(config, dict):
        raise BadInput(f"{source} holds no settings, but {type(config).__name__}")
    kind = str(config.get("model_type", "bert"))
    if kind in LACKS:
        raise BadInput(f"{source} is of an {kind.upper()}, which needs what this model does not have: {LACKS[kind]}")
    if kind not in FAMILIES:
        raise BadInput(f"{source} is of a {kind!r}, which is not known here; known: {', '.join(FAMILIES)}")
    width, narrow = config.get("hidden_size"), config.get("embedding_size", config.get("hidden_size"))
    if narrow != width:
        raise BadInput(f"{source} has embeddings of {narrow} (embedding_size) for blocks of {width}: factorised embeddings, "
                       "which this model does not have")  # fmt: skip
    for name, allowed in ONLY.items():
        if config.get(name, allowed[0]) not in allowed:
            raise BadInput(f"{source} has {name} = {config[name]!r}; this model has only {allowed[0]!r}")
    return FAMILIES[kind]


def skipped(family: Family, config: dict[str, Any], source: str) -> int:
    """Rows of the table of positions that stand before position 0."""
    if not family.offset:
        return 0
    pad = config.get("pad_token_id", 1)
    if not isinstance(pad, int) or not 0 <= pad < 1 << 16:
        raise BadInput(f"{source} has pad_token_id = {pad!r}; positions of a {family.kind} begin after it, so it is a number")
    return pad + 1


def ours(family: Family, config: dict[str, Any], source: str) -> EncoderConfig:
    """The encoder that their config is of."""
    values: dict[str, Any] = dict(family.fixed)
    optional = ("dropout", "mixer.dropout", "eps", "deviation")  # Google's leave some out, and mean BERT's own
    for name, theirs in family.sizes.items():
        if config.get(theirs) is not None:
            values[name] = config[theirs]
        elif name not in optional:
            raise BadInput(f"{source} does not say {theirs}; it is not a whole config.json of a {family.kind}")
    if isinstance(values["positions"], int):
        values["positions"] -= skipped(family, config, source)
    try:
        return parse(EncoderConfig, nested(values), source)
    except RecipeError as error:
        raise BadInput(
            f"{error} ({', '.join(f'{n} is their {t}' for n, t in family.sizes.items() if n in str(error))})"
        ) from None


def theirs(
    family: Family, encoder: EncoderConfig, vocabulary: int, special: dict[str, int], architecture: str
) -> dict[str, Any]:
    """A config.json that transformers reads back as this very encoder; refused, where theirs cannot be that."""
    values = flat(plain(encoder))
    told = {name: values[key] for key, name in family.sizes.items() if key in values}
    config = {"model_type": family.kind, "architectures": [architecture], "vocab_size": vocabulary, **told}
    config |= {family.activation: "gelu", "pad_token_id": special["pad"], "tie_word_embeddings": True, "torch_dtype": "float32"}
    if family.offset:
        config |= {"bos_token_id": special["cls"], "eos_token_id": special["sep"]}
        config["max_position_embeddings"] += skipped(family, config, "config.json")
    back = flat(plain(ours(family, config, "config.json")))
    if lost := [f"{name} = {value!r}" for name, value in values.items() if back.get(name) != value]:
        raise BadInput(
            f"Hugging Face's {family.kind} cannot say {', '.join(lost)}; such a model stays in bertsmith's own format"
        )
    return config


def fits(family: Family, encoder: EncoderConfig) -> bool:
    """What the family cannot choose is as it has it."""
    values = flat(plain(encoder))
    return all(values.get(name) == value for name, value in family.fixed.items())


def chosen(kind: str | None) -> Family:
    """The family a folder says it came from; BERT, where it says nothing."""
    return FAMILIES.get(kind or "", BERT)


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted names to tables in tables."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        table = out
        for part in path:
            table = table.setdefault(part, {})
        table[last] = value
    return out


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables in tables to dotted names."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return out
