"""Hugging Face folders in and out."""

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import tensors
from ...artifacts import read_json, write_json
from ...config import parse
from ...errors import BadInput
from ...model.checkpoint import INDEX, SHARD, save_weights
from ...model.heads import LabelHead, TextHead, TokenHead
from ...model.mixers import Window
from ...model.model import Model
from ...tasks import Generate, TaskConfig
from ...tokenization.tokenizer import Tokenizer
from . import tokenizer as vocabulary
from .config import chosen, family_of, heard, skipped, theirs
from .mapping import POSITIONS, SEGMENTS, Fitted, fitted, unfitted, word_head
from .names import FAMILIES, Family, Form
from .tasks import SHAPES, told
from .weights import read_weights, weight_files

REST = "rest.safetensors"  # in our folder: what the source held and no model of ours needs, kept for the way back


@dataclass(frozen=True)
class Record:
    """What a checkpoint folder of ours says besides its model."""

    task: TaskConfig | None = None
    kind: str | None = None  # the family it came from
    rest: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """What a model of ours becomes."""

    family: Family
    form: Form
    config: dict[str, Any]  # config.json
    model: Model  # ours as it is written


def read(folder: Path, dropout: float = 0.0) -> tuple[Family, Fitted, list[Path]]:
    """The model in a folder, with that much dropout on attention, and the files it was read from."""
    config = read_json(folder / "config.json")
    family = family_of(config, str(folder / "config.json"))
    files = weight_files(folder)
    config[family.sizes["mixer.dropout"]] = dropout
    return family, fitted(family, config, read_weights(files), str(folder)), [folder / "config.json", *files]


def write(folder: Path, model: Model, tokenizer: Tokenizer, record: Record, limit: int = SHARD) -> Target:
    """Our model as a folder transformers loads with nothing missing and nothing left over."""
    target = target_of(model, tokenizer, record)
    encoder = target.model.config.encoder
    write_json(folder / "config.json", target.config)
    vocabulary.written(folder, tokenizer, encoder.positions, encoder.segments, encoder.causal)
    skip = skipped(target.family, target.config, str(folder))
    weights = unfitted(target.family, target.form, target.model, skip, record.rest)
    save_weights(folder, weights, limit)
    if (folder / INDEX).exists():  # transformers will not read one without
        size = {"total_size": sum(weight.nbytes for weight in weights.values())}
        write_json(folder / INDEX, {"metadata": size, **read_json(folder / INDEX)})
    return target


def target_of(model: Model, tokenizer: Tokenizer, record: Record) -> Target:
    """The class of the family it came from, of the nearest to it, or of the first that can say all of it; if none can, what
    the first lacks is told."""
    faults = list[BadInput]()
    for family in dict.fromkeys([record.kind or _nearest(model), *FAMILIES]):
        try:
            return _target(chosen(family), model, tokenizer, record)
        except BadInput as fault:
            faults.append(fault)
    raise faults[0]


def _nearest(model: Model) -> str:
    encoder = model.config.encoder
    if encoder.causal:
        return "gpt2" if encoder.norm == "before" else "openai-gpt"
    return "longformer" if isinstance(encoder.mixer, Window) else "electra" if "replaced" in model.config.heads else "bert"


def class_of(family: Family, model: Model, task: TaskConfig | None) -> Form:
    """The family's class with the heads of the model."""
    heads = tuple(sorted(model.config.heads))
    if model.decoder is not None or isinstance(task, Generate):
        raise BadInput(f"this model answers texts by texts, which Hugging Face's {family.kind} does not; it stays in "
                       "bertsmith's own format")  # fmt: skip
    if heads == ("task",) and task is None:
        raise BadInput("this model's head `task` has no task in its folder's config.json, to say what its scores are of")
    form = family.form(heads, SHAPES.get(type(task)) if heads else None)
    if form is None:
        known = sorted({head for form in family.forms for head in form.heads})
        kind = f" for {task.__struct_config__.tag}" if task is not None else ""
        raise BadInput(f"this model has the heads {', '.join(heads)}{kind}; Hugging Face's {family.kind} has a place for "
                       f"{', '.join(known)}, and not for every set of them")  # fmt: skip
    for name, head in model.config.heads.items():
        if name == "next" and head != LabelHead(labels=2):
            raise BadInput("this model's head `next` has other than two labels, which Hugging Face's has not")
        if name == "words" and head != word_head(family):
            raise BadInput(f"this model's head over the words is not as that of Hugging Face's {family.kind}; it stays in "
                           "bertsmith's own format")  # fmt: skip
        if name == "task" and not isinstance(head, TextHead | TokenHead):
            raise BadInput(f"this model's head `task` is of the kind {head.__struct_config__.tag}, which Hugging Face has not")
    return form


def identical(folder: Path, model: Model, form: Form) -> None:
    """Reads a folder just written back: every weight it should hold is there bit for bit, or an error names one."""
    _, back, _ = read(folder)
    held, ours = back.model.state_dict(), model.state_dict()
    for name, weight in ours.items():
        left_out = name.startswith("encoder.pooler.") and not form.pooler
        if not left_out and not torch.equal(weight, held[name]):
            raise BadInput(f"{folder}: {name} came back changed; it is not written")


def recorded(folder: Path) -> Record:
    """What a checkpoint folder of ours says of its task and its source."""
    record: dict[str, Any] = read_json(folder / "config.json")
    task = parse(TaskConfig, record["task"], str(folder / "config.json")) if "task" in record else None  # type: ignore[arg-type]
    rest = tensors.load(folder / REST) if (folder / REST).exists() else {}
    return Record(task, record.get("family"), rest)


def _target(family: Family, model: Model, tokenizer: Tokenizer, record: Record) -> Target:
    form, encoder = class_of(family, model, record.task), model.config.encoder
    heard(family, encoder, form.heads, "this model")
    special = {"pad": tokenizer.pad, "cls": tokenizer.cls, "sep": tokenizer.sep}
    if family.offset and POSITIONS in record.rest:
        special["pad"] = len(record.rest[POSITIONS]) - 1  # positions begin after it, whatever the tokenizer says
    config = theirs(family, form, encoder, special) | {"vocab_size": model.config.vocabulary}
    head = model.config.heads.get("task")
    if record.task is not None and isinstance(head, TextHead | TokenHead):
        config |= told(record.task, form, head.dropout, encoder.dropout)
    return Target(family, form, config, model if "segments" in family.tables else _without_segments(model))


def _without_segments(model: Model) -> Model:
    """Its only segment, which every token has, told by the positions instead; those of an untouched import stay as they are."""
    if SEGMENTS in model.state_dict() and model.state_dict()[SEGMENTS].any():
        model = deepcopy(model)
        with torch.no_grad():
            assert model.encoder.positions is not None and model.encoder.segments is not None  # such models are not exported
            model.encoder.positions.weight += model.encoder.segments.weight[0]
            model.encoder.segments.weight.zero_()
    return model
