"""The field of a race: each member with its corpus, its share of the budget in steps, and the runs it is to do."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..artifacts import MANIFEST, fingerprint, read_json
from ..config import parse
from ..console import Screen
from ..corpus.card import bits_per_byte
from ..errors import BadInput
from ..evaluation.suite import AVERAGE
from ..finetuning.recipe import FinetuneRecipe, finetune_identity
from ..finetuning.suite import merged
from ..objectives.word2vec import Tabled
from ..pretraining.setup import PretrainRecipe, pretrain_identity
from ..train.config import Train
from .budget import afforded, spent
from .corpora import Corpora, Cut, corpus_of

if TYPE_CHECKING:
    from .run import RaceRecipe


OWN = ("of", "untrained", "corpus", "tokenizer", "frozen", "tuned")  # keys of a member that are not `pretrain`'s
SAID = ("out", "valid", "init")  # what the race says of a pre-training
LENGTHS = ("steps", "epochs", "minutes")
RUNS = ("model", "out", "seed", "seeds")  # and of a fine-tuning
USUAL: dict[str, dict[str, Any]] = {
    "frozen": {"freeze": "all", "features": {"layers": "mix"}, "train": {"rate": 1e-3}},
    "tuned": {},
}
NAME = r"[\w][\w.+-]*"


@dataclass(frozen=True)
class Runner:
    """A member; one that takes another's checkpoint (`of`) has no training of its own."""

    name: str
    folder: Path
    cut: Cut
    of: str | None
    untrained: bool
    recipe: PretrainRecipe | None
    flops: float  # of its whole training
    runs: dict[str, dict[str, list[FinetuneRecipe]]]  # by way and task, one a seed
    faults: tuple[str, ...] = ()

    @property
    def reads(self) -> float:
        """Tokens in all its training."""
        if self.recipe is None or self.untrained:
            return 0.0
        train = self.recipe.train
        return (train.steps or 0) * train.accumulate * train.batch_tokens + (train.epochs or 0) * self.cut.opened.card["tokens"]

    @property
    def identity(self) -> str:
        """A name for all that decides what it makes; how long and how fast decides nothing where nothing is learnt."""
        assert self.recipe is not None
        if not self.untrained:
            return pretrain_identity(self.recipe)
        return fingerprint(["untrained", pretrain_identity(replace(self.recipe, train=Train(steps=1)))])

    @property
    def made(self) -> bool:
        """Its folder holds what its recipe makes, not what another budget or recipe once did."""
        if self.recipe is None or not (self.folder / MANIFEST).exists():
            return False
        return bool(read_json(self.folder / "card.json").get("identity") == self.identity)

    def facts(self) -> dict[str, float]:
        """What its folder tells, when it is done; nothing before."""
        if self.recipe is None or not self.made:
            return {}
        result = read_json(self.folder / "card.json")["result"]
        flops = spent(self.recipe, self.flops, result)
        facts = {"parameters": result["parameters"], "flops": flops, "steps": result.get("step", 0)}
        facts |= {name: result[name] for name in ("seconds", "tokens") if result.get(name)}
        return facts | self._language(result)

    def _language(self, result: dict[str, Any]) -> dict[str, float]:
        hidden = result.get("pseudo_perplexity")
        nats = {"bits_per_byte": foretold(result), "pseudo_bits_per_byte": math.log(hidden) if hidden else None}
        bits = {name: bits_per_byte(each, self.cut.card) for name, each in nats.items() if each is not None}
        return {name: each for name, each in bits.items() if each is not None}


def foretold(result: dict[str, Any]) -> float | None:
    """Nats a token of a model that reads from left to right, or of that half of it."""
    if "valid_forward" in result:
        return float(result["valid_forward"])
    return math.log(result["perplexity"]) if "perplexity" in result else None


def field(recipe: "RaceRecipe", out: Path, screen: Screen) -> list[Runner]:
    """What is wrong with the recipe is said at once; what is wrong with a member's model is that member's fault alone."""
    _check(recipe)
    known: Corpora = {}
    return [_runner(recipe, name, out, known, screen) for name in recipe.members]


def read_run(recipe: FinetuneRecipe) -> dict[str, float] | None:
    """The scores of a run that is done, as it left them beside its folder; none of a run of another recipe or model."""
    path = scores_of(recipe)
    if not path.exists() or (told := read_json(path)).get("identity") != finetune_identity(recipe):
        return None
    return {name: math.nan if value is None else float(value) for name, value in told["dev"].items()}


def scores_of(recipe: FinetuneRecipe) -> Path:
    return Path(recipe.out).with_suffix(".json")


def _check(recipe: "RaceRecipe") -> None:
    if not recipe.members or not recipe.seeds:
        raise BadInput("a race needs members and seeds, at least one of each")
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise BadInput(f"seeds {list(recipe.seeds)} name one twice")
    if bool(recipe.corpus) == bool(recipe.texts):
        raise BadInput("give texts=FILES or corpus=FOLDER, one of the two")
    if recipe.valid and not recipe.texts:
        raise BadInput("valid goes with texts; of a corpus, every.held_out says what is held out")
    for kind, names in (("members", recipe.members), ("tasks", recipe.tasks)):
        for name in names:
            if not re.fullmatch(NAME, name) or name in (AVERAGE, "majority"):
                raise BadInput(f"{kind}.{name}: the name is that of a folder too; take letters, digits, - and _, not `{name}`")
    for name, member in recipe.members.items():
        of = member.get("of")
        if of is not None and (of not in recipe.members or "of" in recipe.members[of]):
            raise BadInput(
                f"members.{name}.of={of} is not a member with a checkpoint of its own; known: {', '.join(recipe.members)}"
            )
        if of is not None and (odd := [key for key in member if key not in ("of", "frozen", "tuned")]):
            raise BadInput(f"members.{name}.{odd[0]}: it takes the checkpoint of {of}, which has that already; leave it out")


def _runner(recipe: "RaceRecipe", name: str, out: Path, known: Corpora, screen: Screen) -> Runner:
    member = recipe.members[name]
    of, source = member.get("of"), recipe.members[member.get("of", name)]
    folder, untrained = out / "members" / (of or name), bool(source.get("untrained"))
    ways = [way for way in ("frozen", "tuned") if recipe.tasks and member.get(way, True) is not False]
    runs = {way: _ways(recipe, name, way, folder, out) for way in ways}
    try:
        cut = corpus_of(recipe, source, out, known, screen.quiet)
    except BadInput as fault:
        if not {"corpus", "tokenizer"} & source.keys():  # it is everybody's
            raise
        return Runner(name, folder, Cut(), of, untrained, None, 0.0, runs, (str(fault),))
    if of:
        return Runner(name, folder, cut, of, untrained, None, 0.0, runs)
    trained, flops = _recipe(recipe, name, member, folder, cut), 0.0
    try:
        if not untrained:
            trained, flops = afforded(trained, cut.opened, recipe.budget.flops, recipe.budget.epochs)
    except (BadInput, RuntimeError, ValueError) as error:
        return Runner(name, folder, cut, of, untrained, None, 0.0, runs, (str(error),))
    return Runner(name, folder, cut, of, untrained, trained, flops, runs)


def _ways(recipe: "RaceRecipe", name: str, way: str, folder: Path, out: Path) -> dict[str, list[FinetuneRecipe]]:
    """What every run of this way has, then the task's own, then the member's."""
    return {task: [_run(recipe, name, way, task, folder, out, seed) for seed in recipe.seeds] for task in recipe.tasks}


def _run(recipe: "RaceRecipe", name: str, way: str, task: str, folder: Path, out: Path, seed: int) -> FinetuneRecipe:
    own = recipe.members[name].get(way, {})
    for key, table in ((way, getattr(recipe, way)), (f"tasks.{task}", recipe.tasks[task]), (f"members.{name}.{way}", own)):
        if not isinstance(table, dict):
            raise BadInput(f"{key} = {table!r} is not a table of settings of `finetune`; or write false, to leave it out")
        if wrong := [word for word in RUNS if word in table]:
            raise BadInput(f"{key}.{wrong[0]} is for the race to say; leave it out")
    settings = merged(merged(merged(USUAL[way], getattr(recipe, way)), recipe.tasks[task]), own)
    settings.pop("metrics", None)
    place = out / "runs" / name / way / task / f"seed-{seed}"
    settings |= {"model": str(folder), "seed": seed, "out": str(place)}
    return parse(FinetuneRecipe, settings, f"members.{name}, tasks.{task}, {way}")


def _recipe(recipe: "RaceRecipe", name: str, member: dict[str, Any], folder: Path, cut: Cut) -> PretrainRecipe:
    settings = merged(recipe.every, {key: value for key, value in member.items() if key not in OWN})
    for word in SAID:
        if word in settings:
            raise BadInput(f"members.{name}.{word} (or every.{word}) is for the race to say; leave it out")
    train = settings.get("train", {})
    if wrong := [word for word in LENGTHS if isinstance(train, dict) and word in train]:
        raise BadInput(f"members.{name}.train.{wrong[0]} (or every.train): the budget says how long; leave it out")
    settings["train"] = {**train, "steps": 1}
    settings |= {"corpus": str(cut.corpus), "out": str(folder), "valid": str(cut.valid) if cut.valid else None}
    trained = parse(PretrainRecipe, settings, f"members.{name}")
    return _tabled(trained, name, member) if isinstance(trained.objective, Tabled) else trained


def _tabled(trained: PretrainRecipe, name: str, member: dict[str, Any]) -> PretrainRecipe:
    """Without what `every` says of networks, which tables of words have no use for."""
    if wrong := [key for key in ("model", "train", "length") if key in member]:
        raise BadInput(f"members.{name}.{wrong[0]}: a table of words is described by objective.* alone; leave it out")
    train = Train(epochs=1.0, device=trained.train.device, keep=trained.train.keep)
    return replace(trained, model=None, valid=None, train=train)
