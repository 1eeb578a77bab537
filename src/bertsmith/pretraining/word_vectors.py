"""A corpus to vectors of its words: the loop of objectives that fill a table, killed and taken up again like any run."""

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


SAVE_SECONDS = 60.0  # seconds from one checkpoint to the next
CHANCE_LOSS_FRACTION = 0.99  # of the loss of chance


def train_word_vectors(recipe: "PretrainRecipe", out: Path, corpus: Corpus, identity: str, console: Console) -> dict[str, Any]:
    """Fills the table, or goes on with one, and publishes it as a model whose token table it is."""
    epochs, objective = check_recipe(recipe), resolve_objective(recipe)
    began, device = time.monotonic(), resolve_device(recipe.train.device, "train.device")
    with console.progress_bar("counting", "") as bar:
        work = objective.build_trainer(corpus, out / "state", epochs, recipe.seed, device, bar)
    if isinstance(work, Word2VecTrainer) and _is_set(recipe.train, TrainConfig(), "batch_tokens"):
        work.set_batch_words(recipe.train.batch_tokens)
    tokens = int(len(corpus.tokens) * epochs)
    told = _fit(work, out, identity, console, recipe.train, tokens // max(1, work.num_rounds))
    if isinstance(work, Word2VecTrainer) and work.chance_loss and told.get("loss", 0) > CHANCE_LOSS_FRACTION * work.chance_loss:
        console.warn(
            f"a loss of {told['loss']:.3f} is that of chance: nothing was learnt; where there is little text, many small "
            "steps help (train.batch_tokens=64), more of it (train.epochs=50), all of its words (objective.sample=0)"
        )
    model, facts = work.build_model()
    facts |= {"parameters": sum(weight.numel() for weight in model.parameters())}
    result = {**told, **facts, "seconds": round(time.monotonic() - began, 1), "tokens": tokens}
    card = {"identity": identity, "result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
    runs.publish(out, model, corpus.tokenizer, card, {"stage": "pretrain", "family": "vectors"}, recipe)
    console.print_table(
        str(out), [(name, f"{value:,.5g}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()]
    )
    return {"out": str(out), "made": True, **result}


def resolve_objective(recipe: "PretrainRecipe") -> WordVectorObjective:
    """The objective, with what `model.width` and `train.rate` say of it."""
    objective, train = recipe.objective, recipe.train
    assert isinstance(objective, WordVectorObjective)
    said: dict[str, float] = {"width": recipe.model.width} if recipe.model else {}
    said |= {"rate": train.rate} if train.rate != TrainConfig().rate else {}
    return msgspec.structs.replace(objective, **said)


def check_given_keys(objective: WordVectorObjective, user_values: dict[str, Any]) -> None:
    """Refuses, of a recipe as it was typed, what only networks need, two widths or two rates, and a rate that cannot be told
    from none."""
    kind, tables = objective.__struct_config__.tag, {name: part for name, part in user_values.items() if isinstance(part, dict)}
    own, model, train = (tables.get(name, {}) for name in ("objective", "model", "train"))
    if unread := [name for name in ("length", "shares", "held_out", "eval_tokens") if name in user_values]:
        raise UserError(f"objective={kind} learns from the whole corpus, word by word; leave out {unread[0]}")
    for name, part, others in (("width", "model", model if len(model) == 1 else {}), ("rate", "train", train)):
        if None not in (mine := own.get(name), other := others.get(name)) and mine != other:
            raise UserError(f"objective.{name}={mine} and {part}.{name}={other} say two things of one; leave out one of them")
    if train.get("rate") == TrainConfig().rate and own.get("rate") is None:
        raise UserError(f"train.rate={train['rate']:g} is what networks have if nothing is said, and would not be heard here; "
                       f"if objective={kind} is to have it, say objective.rate={train['rate']:g}")  # fmt: skip


def check_recipe(recipe: "PretrainRecipe") -> float:
    """The epochs; settings of networks, which would do nothing here, are refused by name."""
    objective, train, usual = recipe.objective, recipe.train, TrainConfig()
    assert isinstance(objective, WordVectorObjective)
    kind = objective.__struct_config__.tag
    for name in ("init", "vectors", "valid"):
        if getattr(recipe, name) is not None:
            raise UserError(f"objective={kind} makes a table of words from the corpus alone; leave out {name}")
    if recipe.model and recipe.model != EncoderConfig(width=recipe.model.width):
        raise UserError(f"objective={kind} makes a table of words, and no network: of `model` it takes model.width alone")
    if wrong := [f.name for f in fields(train) if f.name not in objective.train_keys and _is_set(train, usual, f.name)]:
        takes = ", ".join(f"train.{name}" for name in objective.train_keys)
        raise UserError(f"train.{wrong[0]} is for networks: objective={kind} takes {takes}; see objective.* for the rest")
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
    """Turn after turn to the end; `tokens` of the corpus go into each."""
    metrics, where = MetricsLogger(out), out / "state"
    done, row = _resume(trainer, where, identity, metrics, console)

    def save(rounds_done: int) -> float:
        facts = {"fingerprint": identity, "turn": rounds_done, "metrics": metrics.flush(), "row": row}
        checkpoint.save_checkpoint(where / f"step-{rounds_done}", {"tables": trainer.state_dict()}, facts)
        checkpoint.prune_checkpoints(where, train.keep, rounds_done)
        return time.monotonic()

    with catch_stop_signals() as asked, ProgressDisplay(quiet=console.quiet) as display:
        saved, clock = save(0) if not done else time.monotonic(), Clock()  # the folder is ours, and a full disk is met now
        for k in range(done, trainer.num_rounds):
            with clock.time_step():
                row = trainer.train_round(k)
            metrics.log(k + 1, **row)
            pace = {
                "speed": tokens_per_round / (clock.step_seconds or 1),
                "left": (trainer.num_rounds - k - 1) * clock.step_seconds,
            }
            display.update((k + 1) / trainer.num_rounds, f"turn {k + 1}/{trainer.num_rounds}", {**row, **pace})
            if asked or time.monotonic() - saved > SAVE_SECONDS or k + 1 == trainer.num_rounds:
                saved = save(k + 1)
            if asked:
                raise Interrupted(
                    f"stopped after {k + 1} of {trainer.num_rounds} turns, which are saved; run the same command again to go on"
                )
    return {"turns": trainer.num_rounds, **({"loss": row["loss"]} if row else {})}


def _resume(
    trainer: WordVectorTrainer, folder: Path, identity: str, metrics: MetricsLogger, console: Console
) -> tuple[int, dict[str, float]]:
    """Turns that are done already, and what the last of them told."""
    found = checkpoint.load_latest_checkpoint(folder, console.warn)
    if found is None:
        metrics.truncate(0, 0)
        return 0, {}
    if found.metadata["fingerprint"] != identity:
        raise UserError(f"{folder.parent} was started by another recipe; choose another out, or remove it")
    trainer.load_state_dict(found.tensors["tables"])
    metrics.truncate(found.metadata["metrics"], found.metadata["turn"])
    console.info(f"{folder.parent}: going on after {found.metadata['turn']} of {trainer.num_rounds} turns")
    return int(found.metadata["turn"]), found.metadata["row"]
