"""Training of static word vectors (word2vec, fastText, GloVe): recipe checks and the resumable training loop."""

import time
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import fields

from .. import runs
from ..corpus.store import Corpus
from ..device import resolve_device
from ..errors import UserError
from ..model import checkpoint
from ..model.config import EncoderConfig
from ..objectives.word2vec import WordVectorObjective, WordVectorTrainer
from ..runs import Run
from ..signals import catch_stop_signals
from ..train.config import TrainConfig
from ..train.logging import MetricsLogger, ProgressDisplay
from ..train.progress import Clock

if TYPE_CHECKING:
    from .setup import PretrainRecipe


SAVE_SECONDS = 60.0  # between checkpoints
CHANCE_LOSS_FRACTION = 0.99  # a final loss above this share of the loss at chance warns


def train_word_vectors(recipe: "PretrainRecipe", objective: WordVectorObjective, corpus: Corpus, run: Run) -> dict[str, Any]:
    """Train word vectors, or resume, and publish a model with them as its token embeddings."""
    epochs, objective, console = check_recipe(recipe, objective), resolve_vector_size(recipe, objective), run.console
    start_time, device = time.monotonic(), resolve_device(recipe.train.device, "train.device")
    with console.progress_bar("counting co-occurrences") as bar:
        batch_words = recipe.train.batch_tokens if _is_set(recipe.train, TrainConfig(), "batch_tokens") else None
        trainer = objective.build_trainer(
            corpus, run.state, epochs, recipe.seed, device, bar, recipe.train.learning_rate, batch_words
        )
    tokens = int(len(corpus.tokens) * epochs)
    fit_result = _fit(trainer, run, recipe.train.save_total_limit, tokens // max(1, trainer.num_rounds))
    if trainer.chance_loss and fit_result.get("loss", 0) > CHANCE_LOSS_FRACTION * trainer.chance_loss:
        console.warn(
            f"the loss of {fit_result['loss']:.3f} is no better than chance, so the vectors have learned nothing; for a small "
            "corpus set train.batch_tokens=64, train.epochs=50 or objective.sample=0"
        )
    model, model_facts = trainer.build_model()
    model_facts |= {"parameters": sum(weight.numel() for weight in model.parameters())}
    result = {**fit_result, **model_facts, "seconds": round(time.monotonic() - start_time, 1), "tokens": tokens}
    card = {"result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
    record = {"stage": "pretrain", "family": "vectors"}
    run.publish(checkpoint.model_writer(model, corpus.tokenizer), card, record, recipe)
    console.print_table(
        str(run.folder),
        [(name, f"{value:,.5g}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()],
    )
    return {"out": str(run.folder), "created": True, **result}


def resolve_vector_size(recipe: "PretrainRecipe", objective: WordVectorObjective) -> WordVectorObjective:
    """The objective, with `model.hidden_size` as its vector size where given."""
    return msgspec.structs.replace(objective, vector_size=recipe.model.hidden_size) if recipe.model else objective


def check_user_keys(objective: WordVectorObjective, user_values: dict[str, Any]) -> None:
    """Raise a UserError for keys that only networks use, and for a vector size that is set twice."""
    kind = objective.__struct_config__.tag
    if unused := [name for name in ("max_length", "phase_fractions", "validation_split", "eval_tokens") if name in user_values]:
        raise UserError(f"objective={kind} has no sequences and no validation set; leave out {unused[0]}")
    sections = {name: part for name, part in user_values.items() if isinstance(part, dict)}
    vector_size, model_keys = sections.get("objective", {}).get("vector_size"), sections.get("model", {})
    hidden_size = model_keys.get("hidden_size") if len(model_keys) == 1 else None  # check_recipe refuses other keys
    if None not in (vector_size, hidden_size) and vector_size != hidden_size:
        raise UserError(
            f"objective.vector_size={vector_size} contradicts model.hidden_size={hidden_size}; leave out one of them"
        )


def check_recipe(recipe: "PretrainRecipe", objective: WordVectorObjective) -> float:
    """Number of epochs; raises UserError for a setting that only neural networks use."""
    train, defaults = recipe.train, TrainConfig()
    kind = objective.__struct_config__.tag
    for name in ("init", "vectors", "valid"):
        if getattr(recipe, name) is not None:
            raise UserError(f"objective={kind} trains word vectors on the corpus only; leave out {name}")
    if recipe.model and recipe.model != EncoderConfig(hidden_size=recipe.model.hidden_size):
        raise UserError(f"objective={kind} trains word vectors, not a network; of `model` set only model.hidden_size")
    if wrong := [f.name for f in fields(train) if f.name not in objective.train_keys and _is_set(train, defaults, f.name)]:
        allowed = ", ".join(f"train.{name}" for name in objective.train_keys)
        raise UserError(
            f"train.{wrong[0]} has no effect on objective={kind}, which uses {allowed} and objective.*; leave it out"
        )
    if runs.world_size() > 1:
        raise UserError(f"objective={kind} does not work with several processes; start it without torchrun")
    return _resolve_epochs(objective, train.epochs)


def _is_set(train: TrainConfig, defaults: TrainConfig, name: str) -> bool:
    return bool(getattr(train, name) != getattr(defaults, name))


def _resolve_epochs(objective: WordVectorObjective, requested: float | None) -> float:
    epochs = objective.default_epochs if requested is None else requested
    if epochs is None or (epochs != int(epochs) and not objective.allows_partial_epochs):
        raise UserError(f"objective={objective.__struct_config__.tag} needs a whole number of epochs, not {epochs}; set "
                       "train.epochs=10, for example")  # fmt: skip
    return epochs if objective.allows_partial_epochs else int(epochs)


def _fit(trainer: WordVectorTrainer, run: Run, save_total_limit: int, tokens_per_round: int) -> dict[str, Any]:
    """All remaining rounds with logging and checkpoints; `tokens_per_round` is for the displayed speed."""
    metrics, num_rounds = MetricsLogger(run.folder), trainer.num_rounds
    rounds_done, row = _resume(trainer, run, metrics)

    def save(rounds_done: int) -> float:
        progress = {"round": rounds_done, "metrics_bytes": metrics.flush(), "metrics": row}
        run.save_checkpoint(rounds_done, {"tables": trainer.state_dict()}, progress, save_total_limit)
        return time.monotonic()

    with catch_stop_signals() as stop_requested, ProgressDisplay(quiet=run.console.quiet) as display:
        # the first save marks the folder as a run, and fails early on a full disk
        last_save, clock = save(0) if not rounds_done else time.monotonic(), Clock()
        for k in range(rounds_done, num_rounds):
            with clock.time_step():
                row = trainer.train_round(k)
            metrics.log(k + 1, **row)
            speed = {
                "tokens_per_second": tokens_per_round / (clock.step_seconds or 1),
                "seconds_left": (num_rounds - k - 1) * clock.step_seconds,
            }
            progress_text = f"round {k + 1:>{len(str(num_rounds))}}/{num_rounds}"
            display.update((k + 1) / num_rounds, progress_text, {**row, **speed})
            if stop_requested or time.monotonic() - last_save > SAVE_SECONDS or k + 1 == num_rounds:
                last_save = save(k + 1)
            if stop_requested:
                raise run.interrupted(f"round {k + 1} of {num_rounds}")
    return {"rounds": num_rounds, **({"loss": row["loss"]} if row else {})}


def _resume(trainer: WordVectorTrainer, run: Run, metrics: MetricsLogger) -> tuple[int, dict[str, float]]:
    """Number of rounds done already, and the metrics row of the last one."""
    saved = run.load_latest_checkpoint(run.console.warn)
    if saved is None:
        metrics.truncate(0, 0)
        return 0, {}
    trainer.load_state_dict(saved.tensors["tables"])
    rounds_done = int(saved.progress["round"])
    metrics.truncate(saved.progress["metrics_bytes"], rounds_done)
    run.console.info(f"resuming from round {rounds_done} of {trainer.num_rounds} ({run.state})")
    return rounds_done, saved.progress["metrics"]
