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
    epochs, objective = check_recipe(recipe), resolve_objective(recipe)
    start_time, device = time.monotonic(), resolve_device(recipe.train.device, "train.device")
    with console.progress_bar("counting", "") as bar:
        trainer = objective.build_trainer(corpus, out / "state", epochs, recipe.seed, device, bar)
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
            f"a loss of {fit_result['loss']:.3f} is that of chance: nothing was learnt; where there is little text, many small "
            "steps help (train.batch_tokens=64), more of it (train.epochs=50), all of its words (objective.sample=0)"
        )
    model, model_facts = trainer.build_model()
    model_facts |= {"parameters": sum(weight.numel() for weight in model.parameters())}
    result = {**fit_result, **model_facts, "seconds": round(time.monotonic() - start_time, 1), "tokens": tokens}
    card = {"identity": identity, "result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
    runs.publish(out, model, corpus.tokenizer, card, {"stage": "pretrain", "family": "vectors"}, recipe)
    console.print_table(
        str(out), [(name, f"{value:,.5g}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()]
    )
    return {"out": str(out), "made": True, **result}


def resolve_objective(recipe: "PretrainRecipe") -> WordVectorObjective:
    """The objective with the vector size and learning rate of `model.hidden_size` and `train.learning_rate`, where given."""
    objective, train = recipe.objective, recipe.train
    assert isinstance(objective, WordVectorObjective)
    settings: dict[str, float] = {"vector_size": recipe.model.hidden_size} if recipe.model else {}
    settings |= {"learning_rate": train.learning_rate} if train.learning_rate != TrainConfig().learning_rate else {}
    return msgspec.structs.replace(objective, **settings)


def check_given_keys(objective: WordVectorObjective, user_values: dict[str, Any]) -> None:
    """Check the keys the user typed: no network-only keys, no contradicting vector size or learning rate.

    A `train.learning_rate` equal to the default cannot be told from an unset one after parsing, so it is an error here.
    """
    kind, sections = (
        objective.__struct_config__.tag,
        {name: part for name, part in user_values.items() if isinstance(part, dict)},
    )
    objective_keys, model_keys, train_keys = (sections.get(name, {}) for name in ("objective", "model", "train"))
    if unused := [name for name in ("max_length", "phase_fractions", "validation_split", "eval_tokens") if name in user_values]:
        raise UserError(f"objective={kind} learns from the whole corpus, word by word; leave out {unused[0]}")
    for name, other_name, other_keys in (
        ("vector_size", "model.hidden_size", model_keys if len(model_keys) == 1 else {}),
        ("learning_rate", "train.learning_rate", train_keys),
    ):
        value, other_value = objective_keys.get(name), other_keys.get(other_name.split(".")[1])
        if None not in (value, other_value) and value != other_value:
            raise UserError(
                f"objective.{name}={value} and {other_name}={other_value} say two things of one; leave out one of them"
            )
    if train_keys.get("learning_rate") == TrainConfig().learning_rate and objective_keys.get("learning_rate") is None:
        rate = f"learning_rate={train_keys['learning_rate']:g}"
        raise UserError(f"train.{rate} is what networks have if nothing is said, and would not be heard here; "
                       f"if objective={kind} is to have it, say objective.{rate}")  # fmt: skip


def check_recipe(recipe: "PretrainRecipe") -> float:
    """Number of epochs; raises UserError for a setting that only neural networks use."""
    objective, train, defaults = recipe.objective, recipe.train, TrainConfig()
    assert isinstance(objective, WordVectorObjective)
    kind = objective.__struct_config__.tag
    for name in ("init", "vectors", "valid"):
        if getattr(recipe, name) is not None:
            raise UserError(f"objective={kind} makes a table of words from the corpus alone; leave out {name}")
    if recipe.model and recipe.model != EncoderConfig(hidden_size=recipe.model.hidden_size):
        raise UserError(f"objective={kind} makes a table of words, and no network: of `model` it takes model.hidden_size alone")
    if wrong := [f.name for f in fields(train) if f.name not in objective.train_keys and _is_set(train, defaults, f.name)]:
        allowed = ", ".join(f"train.{name}" for name in objective.train_keys)
        raise UserError(f"train.{wrong[0]} is for networks: objective={kind} takes {allowed}; see objective.* for the rest")
    if world_size() > 1:
        raise UserError(f"objective={kind} is learnt by one process; start it without torchrun")
    return _resolve_epochs(objective, train.epochs)


def _is_set(train: TrainConfig, defaults: TrainConfig, name: str) -> bool:
    return bool(getattr(train, name) != getattr(defaults, name))


def _resolve_epochs(objective: WordVectorObjective, requested: float | None) -> float:
    epochs = objective.default_epochs if requested is None else requested
    if epochs is None or (epochs != int(epochs) and not objective.allows_partial_epochs):
        raise UserError(f"objective={objective.__struct_config__.tag} goes through its data whole times: give "
                       "train.epochs=10, say")  # fmt: skip
    return epochs if objective.allows_partial_epochs else int(epochs)


def _fit(
    trainer: WordVectorTrainer, out: Path, identity: str, console: Console, train: TrainConfig, tokens_per_round: int
) -> dict[str, Any]:
    """All remaining rounds with logging and checkpoints; `tokens_per_round` is for the displayed speed."""
    metrics, state_dir = MetricsLogger(out), out / "state"
    rounds_done_before, row = _resume(trainer, state_dir, identity, metrics, console)

    def save(rounds_done: int) -> float:
        facts = {"fingerprint": identity, "turn": rounds_done, "metrics": metrics.flush(), "row": row}
        checkpoint.save_checkpoint(state_dir / f"step-{rounds_done}", {"tables": trainer.state_dict()}, facts)
        checkpoint.prune_checkpoints(state_dir, train.save_total_limit, rounds_done)
        return time.monotonic()

    with catch_stop_signals() as stop_requested, ProgressDisplay(quiet=console.quiet) as display:
        # the first save claims the folder, and fails early on a full disk
        last_save, clock = save(0) if not rounds_done_before else time.monotonic(), Clock()
        for k in range(rounds_done_before, trainer.num_rounds):
            with clock.time_step():
                row = trainer.train_round(k)
            metrics.log(k + 1, **row)
            speed = {
                "speed": tokens_per_round / (clock.step_seconds or 1),
                "left": (trainer.num_rounds - k - 1) * clock.step_seconds,
            }
            display.update((k + 1) / trainer.num_rounds, f"turn {k + 1}/{trainer.num_rounds}", {**row, **speed})
            if stop_requested or time.monotonic() - last_save > SAVE_SECONDS or k + 1 == trainer.num_rounds:
                last_save = save(k + 1)
            if stop_requested:
                raise Interrupted(
                    f"stopped after {k + 1} of {trainer.num_rounds} turns, which are saved; run the same command again to go on"
                )
    return {"turns": trainer.num_rounds, **({"loss": row["loss"]} if row else {})}


def _resume(
    trainer: WordVectorTrainer, folder: Path, identity: str, metrics: MetricsLogger, console: Console
) -> tuple[int, dict[str, float]]:
    """Number of rounds done already, and the metrics row of the last one."""
    latest = checkpoint.load_latest_checkpoint(folder, console.warn)
    if latest is None:
        metrics.truncate(0, 0)
        return 0, {}
    if latest.metadata["fingerprint"] != identity:
        raise UserError(f"{folder.parent} was started by another recipe; choose another out, or remove it")
    trainer.load_state_dict(latest.tensors["tables"])
    metrics.truncate(latest.metadata["metrics"], latest.metadata["turn"])
    console.info(f"{folder.parent}: going on after {latest.metadata['turn']} of {trainer.num_rounds} turns")
    return int(latest.metadata["turn"]), latest.metadata["row"]
