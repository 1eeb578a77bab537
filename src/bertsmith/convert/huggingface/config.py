"""What a Longformer's config.json says of its windows, as our mixer has it, and back."""

from typing import Any

import msgspec

from ...config import RecipeError, parse, plain
from ...errors import BadInput
from ...model.config import EncoderConfig
from ...model.mixers import Dense, Window
from .names import BERT, FAMILIES, Family, Form

WINDOW, DILATION, CAUSAL = "attention_window", "attention_dilation", "autoregressive"  # the last two: its authors' alone


def windowed(config: dict[str, Any], layers: Any, heads: Any, source: str) -> dict[str, Any]:
    """Our keys: half of each window is what a token sees on each side; a layer's dilation is of all its heads."""
    windows = _numbers(config.get(WINDOW, 512), layers, WINDOW, source)
    if odd := next((window for window in windows if window % 2 or window < 2), None):
        raise BadInput(f"{source} has {WINDOW} = {odd}, which has no two halves")
    steps = _numbers(config.get(DILATION, 1), layers, DILATION, source)
    top = [step for step in steps if step > 1]
    if len(set(top)) > 1 or steps[len(steps) - len(top) :] != top:
        raise BadInput(f"{source} has {DILATION} = {steps}; this model dilates its top layers, all by the same steps")
    dilated = {"mixer.dilation": top[:1] * heads, "mixer.dilated": len(top)} if top else {}
    return {"mixer.reach": shortest([window // 2 for window in windows]), "mixer.causal": bool(config.get(CAUSAL)), **dilated}


def shortest(reaches: list[int]) -> list[int]:
    """One number for all layers, where all are alike."""
    return reaches[:1] if len(set(reaches)) == 1 else reaches


def windows(reaches: list[int], layers: int) -> list[int]:
    """What config.json says of ours: a window for each layer."""
    return [2 * reach for reach in (reaches * layers if len(reaches) == 1 else reaches)]


def _numbers(value: Any, layers: Any, name: str, source: str) -> list[int]:
    numbers = [value] * layers if isinstance(value, int) and isinstance(layers, int) else value
    if not isinstance(numbers, list) or len(numbers) != layers or not all(isinstance(one, int) for one in numbers):
        raise BadInput(f"{source} has {name} = {value!r}, not a number or one for each of its {layers} layers")
    return numbers


# What other values would change, and our model does not have.
ONLY: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "inner_group_num": (1,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}
ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu-tanh", "gelu_fast": "gelu-tanh", "relu": "relu",
    "gelu_pytorch_tanh": "gelu-tanh", "gelu_python_tanh": "gelu-tanh", "silu": "silu", "swish": "silu",
}  # fmt: skip
SPELT = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "silu": "silu"}
OPTIONAL = ("dropout", "mixer.dropout", "eps", "deviation", "feedforward.activation")  # Google's leave some out: BERT's own


def family_of(config: dict[str, Any], source: str) -> Family:
    """Which family a config.json is of; one without `model_type`, as Google wrote them, is BERT's."""
    if not isinstance(config, dict):
        raise BadInput(f"{source} holds no settings, but {type(config).__name__}")
    kind = str(config.get("model_type", "bert"))
    if kind not in FAMILIES:
        raise BadInput(f"{source} is of a {kind!r}, which is not known here; known: {', '.join(FAMILIES)}")
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
    config, values = {**family.defaults, **config}, dict(family.fixed)
    for name, theirs in family.sizes.items():
        if config.get(theirs) is not None:
            values[name] = config[theirs]
        elif name == "feedforward.inner" and family.four:
            continue
        elif name not in OPTIONAL:
            raise BadInput(f"{source} does not say {theirs}; it is not a whole config.json of a {family.kind}")
    if isinstance(values["positions"], int):
        values["positions"] -= skipped(family, config, source)
    values |= _activation(family, values, source)
    if family.windows:
        values |= windowed(config, values["layers"], values["mixer.heads"], source)
    if family.four and isinstance(values["width"], int):
        values.setdefault("feedforward.inner", 4 * values["width"])
    if family.widens == "narrow" and values["embedding"] == values["width"]:
        values["embedding"] = None
    try:
        return canonical(parse(EncoderConfig, nested(values), source))
    except RecipeError as error:
        raise BadInput(
            f"{error} ({', '.join(f'{n} is their {t}' for n, t in family.sizes.items() if n in str(error))})"
        ) from None


def canonical(encoder: EncoderConfig) -> EncoderConfig:
    """As many different blocks as layers is the same as not sharing them; so is one reach for each layer, if all are alike."""
    if isinstance(encoder.mixer, Window):
        reach = tuple(shortest(list(encoder.mixer.reach)))
        encoder = msgspec.structs.replace(encoder, mixer=msgspec.structs.replace(encoder.mixer, reach=reach))
    return msgspec.structs.replace(encoder, groups=None) if encoder.groups == encoder.layers else encoder


def theirs(family: Family, form: Form, encoder: EncoderConfig, special: dict[str, int]) -> dict[str, Any]:
    """A config.json that transformers reads back as this very encoder; refused, where theirs cannot be that."""
    values = flat(plain(canonical(encoder)))
    if not isinstance(encoder.mixer, Window if family.windows else Dense):
        raise BadInput(f"Hugging Face's {family.kind} has no mixer={values['mixer.kind']}; such a model stays in bertsmith's "
                       "own format")  # fmt: skip
    if encoder.feedforward is None or (unknown := [key for key in family.sizes if key not in values]):
        lacking = "feedforward" if encoder.feedforward is None else unknown[0]
        raise BadInput(f"this model has no {lacking}, as every {family.kind} of Hugging Face does; it stays in bertsmith's "
                       "own format")  # fmt: skip
    told = {name: values[key] for key, name in family.sizes.items()}
    spelt = SPELT | {ours: word for word, ours in family.spelt.items()}
    told[family.sizes["feedforward.activation"]] = spelt[encoder.feedforward.activation]
    told |= {name: values[key] for name, key in family.same.items()}
    if "groups" in family.sizes:
        told[family.sizes["groups"]] = encoder.groups or encoder.layers
    if "embedding" in family.sizes:
        told[family.sizes["embedding"]] = encoder.embedded
    config = {"model_type": family.kind, "architectures": [form.name], **told, "pad_token_id": special["pad"]}
    config |= {"tie_word_embeddings": True, "torch_dtype": "float32"}
    if family.windows and isinstance(encoder.mixer, Window):
        config |= {WINDOW: windows(list(encoder.mixer.reach), encoder.layers), "sep_token_id": special["sep"]}
    if family.kind in ("roberta", "albert", "longformer") or family.bare:
        config |= {"bos_token_id": special["cls"], "eos_token_id": special["sep"]}
    config[family.sizes["positions"]] += skipped(family, config, "config.json")
    back = flat(plain(ours(family, config, "config.json")))
    matters = {name: value for name, value in values.items() if name != "pooler" or form.pooler}
    if lost := [f"{name} = {value!r}" for name, value in matters.items() if back.get(name) != value]:
        raise BadInput(
            f"Hugging Face's {family.kind} cannot say {', '.join(lost)}; such a model stays in bertsmith's own format"
        )
    return config


def heard(family: Family, encoder: EncoderConfig, heads: tuple[str, ...], source: str) -> None:
    """Refuses a head over the words that the family gives another activation than the blocks."""
    if family.erf and "words" in heads and encoder.activation != "gelu":
        raise BadInput(f"{source}: the blocks have {encoder.activation}, but a {family.kind}'s head over the words "
                       "has GELU by erf; this model has one for both")  # fmt: skip


def chosen(kind: str | None) -> Family:
    """The family a folder says it came from; BERT, where it says nothing."""
    return FAMILIES.get(kind or "", BERT)


def _activation(family: Family, values: dict[str, Any], source: str) -> dict[str, Any]:
    name = values.get(key := "feedforward.activation")
    if name is None:
        return {}
    if name not in (words := family.spelt or ACTIVATIONS):
        known = ", ".join(words)
        raise BadInput(f"{source} has {family.sizes[key]} = {name!r}, which this model does not have; known: {known}")
    return {key: words[name]}


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
