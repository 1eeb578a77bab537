"""A corpus to vectors of its words: the loop of objectives that fill a table, killed and taken up again like any run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import fields

from .. import runs
from ..console import Screen
from ..corpus.store import Corpus
from ..device import place
from ..errors import BadInput, Stopped
from ..model.config import EncoderConfig
from ..objectives.word2vec import Filling, Tabled
from ..train import checkpoint
from ..train.config import Train
from ..train.distributed import world
from ..train.logging import Display, Metrics
from ..train.progress import Clock
from ..train.signals import watched
from ..word_vectors.word2vec import Learning

if TYPE_CHECKING:
    from .setup import PretrainRecipe


SAVE = 60.0  # seconds from one checkpoint to the next
AT_CHANCE = 0.99  # of the loss of chance


def filled(recipe: "PretrainRecipe", out: Path, corpus: Corpus, identity: str, screen: Screen) -> dict[str, Any]:
    """Fills the table, or goes on with one, and publishes it as a model whose token table it is."""
    epochs, objective = check(recipe), settled(recipe)
    began, device = time.monotonic(), place(recipe.train.device, "train.device")
    with screen.bar("counting", "") as bar:
        work = objective.filling(corpus, out / "state", epochs, recipe.seed, device, bar)
    if isinstance(work, Learning) and _set(recipe.train, Train(), "batch_tokens"):
        work.step_by(recipe.train.batch_tokens)
    tokens = int(len(corpus.tokens) * epochs)
    told = _fitted(work, out, identity, screen, recipe.train, tokens // max(1, work.turns))
    if isinstance(work, Learning) and work.chance and told.get("loss", 0) > AT_CHANCE * work.chance:
        screen.warn(
            f"a loss of {told['loss']:.3f} is that of chance: nothing was learnt; where there is little text, many small "
            "steps help (train.batch_tokens=64), more of it (train.epochs=50), all of its words (objective.sample=0)"
        )
    model, facts = work.finished()
    facts |= {"parameters": sum(weight.numel() for weight in model.parameters())}
    result = {**told, **facts, "seconds": round(time.monotonic() - began, 1), "tokens": tokens}
    card = {"identity": identity, "result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
    runs.publish(out, model, corpus.tokenizer, card, {"stage": "pretrain", "family": "vectors"}, recipe)
    screen.table(
        str(out), [(name, f"{value:,.5g}" if isinstance(value, float) else f"{value:,}") for name, value in result.items()]
    )
    return {"out": str(out), "made": True, **result}


def settled(recipe: "PretrainRecipe") -> Tabled:
    """The objective, with what `model.width` and `train.rate` say of it."""
    objective, train = recipe.objective, recipe.train
    assert isinstance(objective, Tabled)
    said: dict[str, float] = {"width": recipe.model.width} if recipe.model else {}
    said |= {"rate": train.rate} if train.rate != Train().rate else {}
    return msgspec.structs.replace(objective, **said)


def agreed(objective: Tabled, said: dict[str, Any]) -> None:
    """Refuses, of a recipe as it was typed, what only networks need, two widths or two rates, and a rate that cannot be told
    from none."""
    kind, tables = objective.__struct_config__.tag, {name: part for name, part in said.items() if isinstance(part, dict)}
    own, model, train = (tables.get(name, {}) for name in ("objective", "model", "train"))
    if unread := [name for name in ("length", "shares", "held_out", "eval_tokens") if name in said]:
        raise BadInput(f"objective={kind} learns from the whole corpus, word by word; leave out {unread[0]}")
    for name, part, others in (("width", "model", model if len(model) == 1 else {}), ("rate", "train", train)):
        if None not in (mine := own.get(name), other := others.get(name)) and mine != other:
            raise BadInput(f"objective.{name}={mine} and {part}.{name}={other} say two things of one; leave out one of them")
    if train.get("rate") == Train().rate and own.get("rate") is None:
        raise BadInput(f"train.rate={train['rate']:g} is what networks have if nothing is said, and would not be heard here; "
                       f"if objective={kind} is to have it, say objective.rate={train['rate']:g}")  # fmt: skip


def check(recipe: "PretrainRecipe") -> float:
    """The epochs; settings of networks, which would do nothing here, are refused by name."""
    objective, train, usual = recipe.objective, recipe.train, Train()
    assert isinstance(objective, Tabled)
    kind = objective.__struct_config__.tag
    for name in ("init", "vectors", "valid"):
        if getattr(recipe, name) is not None:
            raise BadInput(f"objective={kind} makes a table of words from the corpus alone; leave out {name}")
    if recipe.model and recipe.model != EncoderConfig(width=recipe.model.width):
        raise BadInput(f"objective={kind} makes a table of words, and no network: of `model` it takes model.width alone")
    if wrong := [f.name for f in fields(train) if f.name not in objective.own and _set(train, usual, f.name)]:
        takes = ", ".join(f"train.{name}" for name in objective.own)
        raise BadInput(f"train.{wrong[0]} is for networks: objective={kind} takes {takes}; see objective.* for the rest")
    if world() > 1:
        raise BadInput(f"objective={kind} is learnt by one process; start it without torchrun")
    return _epochs(objective, train.epochs)


def _set(train: Train, usual: Train, name: str) -> bool:
    return bool(getattr(train, name) != getattr(usual, name))


def _epochs(objective: Tabled, given: float | None) -> float:
    epochs = objective.usual if given is None else given
    if epochs is None or (epochs != int(epochs) and not objective.cuts):
        raise BadInput(f"objective={objective.__struct_config__.tag} goes through its data whole times: give "
                       "train.epochs=10, say")  # fmt: skip
    return epochs if objective.cuts else int(epochs)


def _fitted(work: Filling, out: Path, identity: str, screen: Screen, train: Train, tokens: int) -> dict[str, Any]:
    """Turn after turn to the end; `tokens` of the corpus go into each."""
    metrics, where = Metrics(out), out / "state"
    done, row = _taken_up(work, where, identity, metrics, screen)

    def save(turn: int) -> float:
        facts = {"fingerprint": identity, "turn": turn, "metrics": metrics.settled(), "row": row}
        checkpoint.save(where / f"step-{turn}", {"tables": work.state()}, facts)
        checkpoint.prune(where, train.keep, turn)
        return time.monotonic()

    with watched() as asked, Display(quiet=screen.quiet) as display:
        saved, clock = save(0) if not done else time.monotonic(), Clock()  # the folder is ours, and a full disk is met now
        for k in range(done, work.turns):
            with clock.step():
                row = work.turn(k)
            metrics.row(k + 1, **row)
            pace = {"speed": tokens / (clock.pace or 1), "left": (work.turns - k - 1) * clock.pace}
            display.show((k + 1) / work.turns, f"turn {k + 1}/{work.turns}", {**row, **pace})
            if asked or time.monotonic() - saved > SAVE or k + 1 == work.turns:
                saved = save(k + 1)
            if asked:
                raise Stopped(
                    f"stopped after {k + 1} of {work.turns} turns, which are saved; run the same command again to go on"
                )
    return {"turns": work.turns, **({"loss": row["loss"]} if row else {})}


def _taken_up(work: Filling, where: Path, identity: str, metrics: Metrics, screen: Screen) -> tuple[int, dict[str, float]]:
    """Turns that are done already, and what the last of them told."""
    found = checkpoint.newest(where, screen.warn)
    if found is None:
        metrics.cut(0, 0)
        return 0, {}
    if found.facts["fingerprint"] != identity:
        raise BadInput(f"{where.parent} was started by another recipe; choose another out, or remove it")
    work.load(found.tensors["tables"])
    metrics.cut(found.facts["metrics"], found.facts["turn"])
    screen.say(f"{where.parent}: going on after {found.facts['turn']} of {work.turns} turns")
    return int(found.facts["turn"]), found.facts["row"]
