"""Defaults of fine-tuning that depend on the model and the data: lengths, learning rate, batch size, duration, early stopping.

Measured on eleven sets of 300 to 67,000 examples (docs/results.md, "Fine-tuning with the defaults"): what decides is the number
of updates, not of tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..model.config import EncoderConfig
from ..model.model import ModelConfig
from ..rng import Stream, permutation
from ..tasks import TaskConfig
from ..tasks.base import JointPair
from ..tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ..objectives.supervised import ExampleBatches
    from .recipe import FinetuneRecipe, FinetuneTrain

LEARNING_RATE = 5e-5  # of an encoder as wide as BERT-base; narrower ones take more, in inverse proportion
BASE_HIDDEN_SIZE = 768
NEW_MODEL_LEARNING_RATE = 5e-4  # of random weights
FROZEN_LEARNING_RATE = 1e-3  # of a head on a frozen encoder
LORA_FACTOR = 5.0  # learning rate of low-rank adapters, as a multiple of that of all weights

MAX_MICRO_BATCH_TOKENS = 4096  # a larger batch is split and its gradients are accumulated
BATCHES_PER_EPOCH = 100  # at least, as far as the batch size goes down for it
MIN_BATCH_FRACTION = 0.5  # of the task's batch size
UPDATES = 3000  # of a run, within 3 to 10 epochs
EPOCHS = (3, 10)
MIN_UPDATES, MAX_EPOCHS = 300, 20  # of very small sets
MAX_EVALUATIONS = 10  # of a run that may stop early: one an epoch, or every second one
LONG_TEXT_FRACTION = 0.1  # of the training texts, from which long texts are read whole
LONG_TEXT_SAMPLE = 1000  # training examples looked at


def resolve_max_length(recipe: "FinetuneRecipe", model: ModelConfig) -> int:
    """`max_length`, or all positions of the model: packed batches have no padding, so only long texts cost more.

    A prefix LM (task=generate without a decoder) has source and target in one sequence.
    """
    if recipe.max_length is not None:
        return recipe.max_length
    has_decoder = bool(recipe.decoder or model.decoder)
    return model.encoder.max_position_embeddings - (0 if has_decoder else getattr(recipe.task, "max_target_length", 0))


def default_learning_rate(recipe: "FinetuneRecipe", encoder: EncoderConfig, card: dict[str, Any]) -> float:
    """The learning rate on the model's card (`finetuning.learning_rate`), or 5e-5 scaled by 768 / hidden_size."""
    if recipe.random_init or not isinstance(recipe.model, str):
        return NEW_MODEL_LEARNING_RATE
    if recipe.freeze == "all":
        return FROZEN_LEARNING_RATE
    recorded = card.get("finetuning", {}).get("learning_rate")
    learning_rate = recorded or LEARNING_RATE * max(1.0, BASE_HIDDEN_SIZE / encoder.hidden_size)
    return float(learning_rate) * (LORA_FACTOR if recipe.lora else 1.0)


def default_dropout(recipe: "FinetuneRecipe", card: dict[str, Any]) -> float | None:
    """`hidden_dropout_prob`, or that on the model's card (`finetuning.hidden_dropout_prob`); None: as in pre-training."""
    recorded = card.get("finetuning", {}).get("hidden_dropout_prob")
    return recorded if recipe.hidden_dropout_prob is None else recipe.hidden_dropout_prob


def choose_long_text(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int, reads_all: bool
) -> TaskConfig:
    """The task with `long_text` set, if it is not: hierarchical if over a tenth of the texts are longer than `max_length`.

    Texts are truncated otherwise, where the difference is small and one window per text is cheaper, and (`reads_all=False`)
    where the user has set a length.
    """
    if getattr(task, "long_text", "truncate") is not None:
        return task
    if not reads_all or not isinstance(task.pair, JointPair):
        return msgspec.structs.replace(task, long_text="truncate")
    sample = [examples[i] for i in permutation(len(examples), 0, Stream.EXAMPLE_ORDER)[:LONG_TEXT_SAMPLE]]
    encoded = msgspec.structs.replace(task, long_text="truncate").encode(sample, tokenizer, max_length)
    num_long = sum(len(ids) >= max_length for ids in encoded.input_ids)
    is_long = num_long > LONG_TEXT_FRACTION * len(encoded.input_ids)
    return msgspec.structs.replace(task, long_text="hierarchical" if is_long else "truncate")


@dataclass(frozen=True)
class BatchSize:
    """Tokens of a micro-batch, and micro-batches of an update."""

    batch_tokens: int
    gradient_accumulation_steps: int


def default_batch_size(batches: "ExampleBatches", accumulation: int) -> BatchSize:
    """The task's number of examples (32) of mean length; down to half as many where an epoch would have under 100 updates.

    A batch of more than 4,096 tokens is accumulated from several, unless the loss compares the examples of a batch.
    """
    lengths = batches.group_lengths
    examples = batches.task.examples_per_batch
    num_examples = min(max(len(lengths) // BATCHES_PER_EPOCH, math.ceil(MIN_BATCH_FRACTION * examples)), examples)
    tokens = max(math.ceil(num_examples * float(lengths.mean())), 1)
    if accumulation == 1 and batches.task.head_type != "embedding":
        accumulation = math.ceil(tokens / max(MAX_MICRO_BATCH_TOKENS, int(lengths.max())))
    return BatchSize(math.ceil(tokens / accumulation), accumulation)


def default_epochs(updates_per_epoch: float) -> float:
    """3 to 10 epochs, for about 3,000 updates; up to 20 where even 10 have under 300."""
    lowest, highest = EPOCHS
    epochs = min(max(math.ceil(UPDATES / updates_per_epoch), lowest), highest)
    return float(max(epochs, min(math.ceil(MIN_UPDATES / updates_per_epoch), MAX_EPOCHS)))


def resolve_train(
    recipe: "FinetuneRecipe", encoder: EncoderConfig, card: dict[str, Any], batches: "ExampleBatches", has_dev: bool
) -> "FinetuneTrain":
    """`train.*` with learning rate, batch size, duration and early stopping set, for these training batches (of any size)."""
    train = recipe.train
    if train.learning_rate is None:
        train = msgspec.structs.replace(train, learning_rate=default_learning_rate(recipe, encoder, card))
    if train.batch_tokens is None:
        size = default_batch_size(batches, train.gradient_accumulation_steps)
        train = msgspec.structs.replace(
            train, batch_tokens=size.batch_tokens, gradient_accumulation_steps=size.gradient_accumulation_steps
        )
    patience, eval_every = train.early_stopping_patience, train.eval_every
    if not train.has_duration:
        sized = replace(batches, batch_tokens=cast(int, train.batch_tokens), cache={})
        updates = sized.batches_per_epoch / train.gradient_accumulation_steps
        epochs = default_epochs(updates)
        train = msgspec.structs.replace(train, epochs=epochs)
        if patience is None and has_dev and batches.task.head_type != "lm" and not train.average_checkpoints:
            eval_every = eval_every or math.ceil(updates * math.ceil(epochs / MAX_EVALUATIONS))
            patience = max(2, math.ceil(epochs * updates / eval_every / 2))
    return msgspec.structs.replace(train, early_stopping_patience=patience or 0, eval_every=eval_every)


def list_settings(train: "FinetuneTrain", task: TaskConfig, max_length: int) -> dict[str, Any]:
    """The settings that have such defaults, by key."""
    names = (
        "learning_rate",
        "batch_tokens",
        "gradient_accumulation_steps",
        "steps",
        "epochs",
        "minutes",
        "early_stopping_patience",
    )
    values = {"max_length": max_length, "long_text": getattr(task, "long_text", None)}
    values |= {f"train.{name}": getattr(train, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def describe_settings(values: dict[str, Any]) -> str:
    """One line: `settings: max_length=512, train.learning_rate=0.0002, ...`."""
    return "settings: " + ", ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                                    for name, value in values.items())  # fmt: skip
