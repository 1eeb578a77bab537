"""Training of static word vectors (word2vec, fastText, GloVe): recipe checks and the resumable training loop."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import fields

from .. import runs
from ..console import Console
from ..corpus.store import Corpus
from ..device import resolve_device
from ..errors import Interrupted, UserError
from ..model.config import EncoderConfig
from ..objectives.word2vec import WordVectorObjective, WordVectorTrainer
from ..train import checkpoint
from ..train.config import TrainConfig
from ..train.distributed import world_size
from ..train.logging import MetricsLogger, ProgressDisplay
from ..train.progress import Clock
from ..train.signals import catch_stop_signals
from ..word_vectors.word2vec import Word2VecTrainer

if TYPE_CHECKING:
    from .setup import PretrainRecipe


SAVE_SECONDS = 60.0  # between checkpoints
CHANCE_LOSS_FRACTION = 0.99  # a final loss above this share of the loss at chance warns


def train_word_vectors(recipe: "PretrainRecipe", out: Path, corpus: Corpus, identity: str, console: Console) -> dict[str, Any]:
    """Train word vectors, or resume, and publish a model with them as its token embeddings."""
    epochs, objective = check_recipe(recipe), resolve_vector_size(recipe)
    start_time, device = time.monotonic(), resolve_device(recipe.train.device, "train.device")
    with console.progress_bar("counting co-occurrences") as bar:
        trainer = objective.build_trainer(corpus, out / "state", epochs, recipe.seed, device, bar, recipe.train.learning_rate)
    if isinstance(trainer, Word2VecTrainer) and _is_set(recipe.train, TrainConfig(), "batch_tokens"):
        trainer.set_batch_words(recipe.train.batch_tokens)
    tokens = int(len(corpus.tokens) * epochs)
    fit_result = _fit(trainer, out, identity, console, recipe.train, tokens // max(1, trainer.num_rounds))
    if (
        isinstance(trainer, Word2VecTrainer)
        and trainer.chance_loss
        and fit_result.get("loss", 0) > CHANCE_LOSS_FRACTION * trainer.chance_loss
    ):
        console.warn(
            f"the loss of {fit_result['loss']:.3f} is no better than chance, so the vectors have learned nothing; for a small "
            "corpus set train.batch_tokens=64, train.epochs=50 or objective.sample=0"
        )
    model, model_facts = trainer.build_model()
    model_facts |= {"parameters": sum(weight.numel() for weight in model.parameters())}
    result = {**fit_result, **model_facts, "seconds": round(time.monotonic() - start_time, 1), "tokens": tokens}
    card = {"identity": identity, "result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
    runs.publish(out, model, corpus.tokenizer, card, {"stage": "pretrain", "family": "vectors"}, recipe)
    console.print_table(
        str(out), [(name, f"{value:,.5g}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()]
    )
    return {"out": str(out), "created": True, **result}


def resolve_vector_size(recipe: "PretrainRecipe") -> WordVectorObjective:
    """The objective, with `model.hidden_size` as its vector size where given."""
    objective = recipe.objective
    assert isinstance(objective, WordVectorObjective)
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


def check_recipe(recipe: "PretrainRecipe") -> float:
    """Number of epochs; raises UserError for a setting that only neural networks use."""
    objective, train, defaults = recipe.objective, recipe.train, TrainConfig()
    assert isinstance(objective, WordVectorObjective)
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
    if world_size() > 1:
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


def _fit(
    trainer: WordVectorTrainer, out: Path, identity: str, console: Console, train: TrainConfig, tokens_per_round: int
) -> dict[str, Any]:
    """All remaining rounds with logging and checkpoints; `tokens_per_round` is for the displayed speed."""
    metrics, state_dir = MetricsLogger(out), out / "state"
    rounds_done_before, row = _resume(trainer, state_dir, identity, metrics, console)

    def save(rounds_done: int) -> float:
        facts = {"fingerprint": identity, "round": rounds_done, "metrics_bytes": metrics.flush(), "metrics": row}
        checkpoint.save_checkpoint(state_dir / f"step-{rounds_done}", {"tables": trainer.state_dict()}, facts)
        checkpoint.prune_checkpoints(state_dir, train.save_total_limit, rounds_done)
        return time.monotonic()

    with catch_stop_signals() as stop_requested, ProgressDisplay(quiet=console.quiet) as display:
        # the first save marks the folder as a run, and fails early on a full disk
        last_save, clock = save(0) if not rounds_done_before else time.monotonic(), Clock()
        for k in range(rounds_done_before, trainer.num_rounds):
            with clock.time_step():
                row = trainer.train_round(k)
            metrics.log(k + 1, **row)
            speed = {
                "tokens_per_second": tokens_per_round / (clock.step_seconds or 1),
                "seconds_left": (trainer.num_rounds - k - 1) * clock.step_seconds,
            }
            display.update(
                (k + 1) / trainer.num_rounds,
                f"round {k + 1:>{len(str(trainer.num_rounds))}}/{trainer.num_rounds}",
                {**row, **speed},
            )
            if stop_requested or time.monotonic() - last_save > SAVE_SECONDS or k + 1 == trainer.num_rounds:
                last_save = save(k + 1)
            if stop_requested:
                raise Interrupted(
                    f"checkpoint saved at round {k + 1} of {trainer.num_rounds}; run the same command again to resume"
                )
    return {"rounds": trainer.num_rounds, **({"loss": row["loss"]} if row else {})}


def _resume(
    trainer: WordVectorTrainer, folder: Path, identity: str, metrics: MetricsLogger, console: Console
) -> tuple[int, dict[str, float]]:
    """Number of rounds done already, and the metrics row of the last one."""
    latest = checkpoint.load_latest_checkpoint(folder, console.warn)
    if latest is None:
        metrics.truncate(0, 0)
        return 0, {}
    if latest.metadata["fingerprint"] != identity:
        raise UserError(f"{folder.parent} contains checkpoints of another recipe; choose another out, or remove the folder")
    trainer.load_state_dict(latest.tensors["tables"])
    rounds_done = int(latest.metadata["round"])
    metrics.truncate(latest.metadata["metrics_bytes"], rounds_done)
    console.info(f"resuming from round {rounds_done} of {trainer.num_rounds} ({folder})")
    return rounds_done, latest.metadata["metrics"]
