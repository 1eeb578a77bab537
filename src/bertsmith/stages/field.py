"""The field of a race: each member with its corpus, its share of the budget in steps, and the runs it is to do."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..artifacts import MANIFEST, fingerprint, named, read_json
from ..config import parse
from ..corpus.store import Corpus
from ..errors import BadInput
from ..evaluate.suite import AVERAGE
from ..objectives.tabled import Tabled
from ..race.bits import bits_per_byte, unknown_bytes
from ..screen import Screen
from ..train.recipe import Train
from . import finetune, prepare, pretrain, tokenizer
from .costs import afforded, spent
from .suite import merged

if TYPE_CHECKING:
    from .race import Recipe

OWN = ("of", "untrained", "corpus", "tokenizer", "frozen", "tuned")  # keys of a member that are not `pretrain`'s
SAID = ("out", "valid", "init")  # what the race says of a pre-training
LENGTHS = ("steps", "epochs", "minutes")
RUNS = ("model", "out", "seed", "seeds")  # and of a fine-tuning
USUAL: dict[str, dict[str, Any]] = {
    "frozen": {"freeze": "all", "features": {"layers": "mix"}, "train": {"rate": 1e-3}},
    "tuned": {},
}
PIECES = {"kind": "wordpiece", "size": 8000}
NAME = r"[\w][\w.+-]*"


@dataclass(frozen=True)
class Cut:
    """The text as one tokenizer cuts it: to learn from, and to be judged on."""

    corpus: Path | None = None
    valid: Path | None = None
    unknown: int = 0  # bytes of held-out words that the tokenizer does not know

    @property
    def opened(self) -> Corpus:
        return Corpus.open(self.corpus or Path(), check=False)

    @cached_property
    def measure(self) -> tuple[int, int]:
        """Tokens and bytes of the text that is judged on, or, where some is held out, of all."""
        place = self.valid or self.corpus
        card = read_json(place / "card.json") if place else {}
        return int(card.get("tokens", 0)), int(card.get("bytes", 0))


Corpora = dict[str, Cut]


@dataclass(frozen=True)
class Runner:
    """A member; one that takes another's checkpoint (`of`) has no training of its own."""

    name: str
    folder: Path
    cut: Cut
    of: str | None
    untrained: bool
    recipe: pretrain.Recipe | None
    flops: float  # of its whole training
    runs: dict[str, dict[str, list[finetune.Recipe]]]  # by way and task, one a seed
    faults: tuple[str, ...] = ()

    def facts(self) -> dict[str, float]:
        """What its folder tells, when it is done; nothing before."""
        if not (self.folder / MANIFEST).exists():
            return {}
        result = read_json(self.folder / "card.json")["result"]
        flops = spent(self.recipe, self.flops, result) if self.recipe else self.flops
        facts = {"parameters": result["parameters"], "flops": flops, "steps": result.get("step", 0)}
        facts |= {name: result[name] for name in ("seconds", "tokens") if result.get(name)}
        return facts | self._language(result)

    def _language(self, result: dict[str, Any]) -> dict[str, float]:
        nats, hidden = foretold(result), result.get("pseudo_perplexity")
        tokens, size = self.cut.measure
        if not size or self.untrained:
            return {}
        told = {} if nats is None else {"bits_per_byte": bits_per_byte(nats, tokens, size, self.cut.unknown)}
        return told | ({"pseudo_bits_per_byte": bits_per_byte(math.log(hidden), tokens, size)} if hidden else {})


def foretold(result: dict[str, Any]) -> float | None:
    """Nats a token of a model that reads from left to right, or of that half of it."""
    if "valid_forward" in result:
        return float(result["valid_forward"])
    return math.log(result["perplexity"]) if "perplexity" in result else None


def field(recipe: "Recipe", out: Path, screen: Screen) -> list[Runner]:
    """What is wrong with the recipe is said at once; what is wrong with a member's model is that member's fault alone."""
    _check(recipe)
    known: Corpora = {}
    return [_runner(recipe, name, out, known, screen) for name in recipe.members]


def read_run(recipe: finetune.Recipe) -> dict[str, float] | None:
    """The scores of a run that is done, as it left them beside its folder."""
    path = scores_of(recipe)
    if not path.exists():
        return None
    return {name: math.nan if value is None else float(value) for name, value in read_json(path)["dev"].items()}


def scores_of(recipe: finetune.Recipe) -> Path:
    return Path(recipe.out).with_suffix(".json")


def _check(recipe: "Recipe") -> None:
    if not recipe.members or not recipe.tasks or not recipe.seeds:
        raise BadInput("a race needs members, tasks and seeds, at least one of each")
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


def _runner(recipe: "Recipe", name: str, out: Path, known: Corpora, screen: Screen) -> Runner:
    member = recipe.members[name]
    of, source = member.get("of"), recipe.members[member.get("of", name)]
    folder, untrained = out / "members" / (of or name), bool(source.get("untrained"))
    runs = {way: _ways(recipe, name, way, folder, out) for way in ("frozen", "tuned") if member.get(way, True) is not False}
    try:
        cut = _corpus(recipe, source, out, known, screen)
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


def _ways(recipe: "Recipe", name: str, way: str, folder: Path, out: Path) -> dict[str, list[finetune.Recipe]]:
    """What every run of this way has, then the task's own, then the member's."""
    return {task: [_run(recipe, name, way, task, folder, out, seed) for seed in recipe.seeds] for task in recipe.tasks}


def _run(recipe: "Recipe", name: str, way: str, task: str, folder: Path, out: Path, seed: int) -> finetune.Recipe:
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
    return parse(finetune.Recipe, settings, f"members.{name}, tasks.{task}, {way}")


def _recipe(recipe: "Recipe", name: str, member: dict[str, Any], folder: Path, cut: Cut) -> pretrain.Recipe:
    settings = merged(recipe.every, {key: value for key, value in member.items() if key not in OWN})
    for word in SAID:
        if word in settings:
            raise BadInput(f"members.{name}.{word} (or every.{word}) is for the race to say; leave it out")
    train = settings.get("train", {})
    if wrong := [word for word in LENGTHS if isinstance(train, dict) and word in train]:
        raise BadInput(f"members.{name}.train.{wrong[0]} (or every.train): the budget says how long; leave it out")
    settings["train"] = {**train, "steps": 1}
    settings |= {"corpus": str(cut.corpus), "out": str(folder), "valid": str(cut.valid) if cut.valid else None}
    trained = parse(pretrain.Recipe, settings, f"members.{name}")
    return _tabled(trained, name, member) if isinstance(trained.objective, Tabled) else trained


def _tabled(trained: pretrain.Recipe, name: str, member: dict[str, Any]) -> pretrain.Recipe:
    """Without what `every` says of networks, which tables of words have no use for."""
    if wrong := [key for key in ("model", "train", "length") if key in member]:
        raise BadInput(f"members.{name}.{wrong[0]}: a table of words is described by objective.* alone; leave it out")
    train = Train(epochs=1.0, device=trained.train.device, keep=trained.train.keep)
    return replace(trained, model=None, valid=None, train=train)


def _corpus(recipe: "Recipe", source: dict[str, Any], out: Path, known: Corpora, screen: Screen) -> Cut:
    """The corpus of a member, made if need be, once for all that share its tokenizer."""
    if place := source.get("corpus", None if "tokenizer" in source else recipe.corpus):
        return Cut(Corpus.open(named(place, "corpus")).path)
    if not recipe.texts:
        raise BadInput("a tokenizer of its own needs texts=FILES to cut; give texts, or a corpus made with it")
    given = source.get("tokenizer", recipe.tokenizer) or PIECES
    name = f"{given.get('kind', 'wordpiece')}-{fingerprint(given)[:6]}" if isinstance(given, dict) else fingerprint(given)[:8]
    if name not in known:
        known[name] = _made(recipe, given, out, name, screen)
    return known[name]


def _made(recipe: "Recipe", given: str | dict[str, Any], out: Path, name: str, screen: Screen) -> Cut:
    words = _tokenizer(recipe, given, out / "tokenizers" / name, screen)

    def prepared(texts: tuple[str, ...], place: Path) -> Path:
        settings = {**recipe.prepare, "texts": list(texts), "tokenizer": str(words), "out": str(place)}
        prepare.run(parse(prepare.Recipe, settings, "prepare"), screen.quiet or (place / MANIFEST).exists())
        return place

    corpus = prepared(recipe.texts, out / "corpora" / name)
    if not recipe.valid:
        return Cut(corpus)
    valid = Corpus.open(prepared(recipe.valid, out / "corpora" / f"{name}-valid"), check=False)
    return Cut(corpus, valid.path, unknown_bytes(valid.tokenizer, recipe.valid) if valid.card["unknown rate"] else 0)


def _tokenizer(recipe: "Recipe", given: str | dict[str, Any], place: Path, screen: Screen) -> Path:
    if isinstance(given, str):
        return named(given, "tokenizer")
    settings = {**given, "texts": list(recipe.texts), "out": str(place)}
    tokenizer.run(parse(tokenizer.Recipe, settings, "tokenizer"), screen.quiet or (place / MANIFEST).exists())
    return place
