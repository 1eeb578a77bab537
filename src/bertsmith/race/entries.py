"""The field of a race: each member with its corpus, its share of the budget in steps, and the runs it is to do."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..artifacts import MANIFEST, fingerprint, read_json
from ..config import from_dict
from ..console import Console
from ..corpus.card import bits_per_byte
from ..errors import UserError
from ..evaluation.suite import AVERAGE
from ..finetuning.recipe import FinetuneRecipe, finetune_identity
from ..finetuning.suite import merge_settings
from ..objectives.word2vec import WordVectorObjective
from ..pretraining.setup import PretrainRecipe, pretrain_identity
from ..train.config import TrainConfig
from .budget import count_spent_flops, fit_to_budget
from .corpora import CorpusCache, TokenizedText, prepare_corpus

if TYPE_CHECKING:
    from .run import RaceRecipe


MEMBER_KEYS = ("of", "untrained", "corpus", "tokenizer", "frozen", "tuned")  # keys of a member that are not `pretrain`'s
RESERVED_PRETRAIN_KEYS = ("out", "valid", "init")  # what the race says of a pre-training
DURATION_KEYS = ("steps", "epochs", "minutes")
RESERVED_FINETUNE_KEYS = ("model", "out", "seed", "seeds")  # and of a fine-tuning
DEFAULT_SETTINGS: dict[str, dict[str, Any]] = {
    "frozen": {"freeze": "all", "features": {"layers": "mix"}, "train": {"rate": 1e-3}},
    "tuned": {},
}
NAME_PATTERN = r"[\w][\w.+-]*"


@dataclass(frozen=True)
class Entry:
    """A member; one that takes another's checkpoint (`of`) has no training of its own."""

    name: str
    folder: Path
    text: TokenizedText
    checkpoint_of: str | None
    is_untrained: bool
    recipe: PretrainRecipe | None
    flops: float  # of its whole training
    runs: dict[str, dict[str, list[FinetuneRecipe]]]  # by way and task, one a seed
    errors: tuple[str, ...] = ()

    @property
    def num_train_tokens(self) -> float:
        """Tokens in all its training."""
        if self.recipe is None or self.is_untrained:
            return 0.0
        train = self.recipe.train
        return (train.steps or 0) * train.accumulate * train.batch_tokens + (train.epochs or 0) * self.text.corpus.card[
            "tokens"
        ]

    @property
    def identity(self) -> str:
        """A name for all that decides what it makes; how long and how fast decides nothing where nothing is learnt."""
        assert self.recipe is not None
        if not self.is_untrained:
            return pretrain_identity(self.recipe)
        return fingerprint(["untrained", pretrain_identity(replace(self.recipe, train=TrainConfig(steps=1)))])

    @property
    def is_finished(self) -> bool:
        """Its folder holds what its recipe makes, not what another budget or recipe once did."""
        if self.recipe is None or not (self.folder / MANIFEST).exists():
            return False
        return bool(read_json(self.folder / "card.json").get("identity") == self.identity)

    def read_facts(self) -> dict[str, float]:
        """What its folder tells, when it is done; nothing before."""
        if self.recipe is None or not self.is_finished:
            return {}
        result = read_json(self.folder / "card.json")["result"]
        flops = count_spent_flops(self.recipe, self.flops, result)
        facts = {"parameters": result["parameters"], "flops": flops, "steps": result.get("step", 0)}
        facts |= {name: result[name] for name in ("seconds", "tokens") if result.get(name)}
        return facts | self._language_metrics(result)

    def _language_metrics(self, result: dict[str, Any]) -> dict[str, float]:
        hidden = result.get("pseudo_perplexity")
        nats = {"bits_per_byte": causal_nll(result), "pseudo_bits_per_byte": math.log(hidden) if hidden else None}
        bits = {name: bits_per_byte(each, self.text.card) for name, each in nats.items() if each is not None}
        return {name: each for name, each in bits.items() if each is not None}


def causal_nll(result: dict[str, Any]) -> float | None:
    """Nats a token of a model that reads from left to right, or of that half of it."""
    if "valid_forward" in result:
        return float(result["valid_forward"])
    return math.log(result["perplexity"]) if "perplexity" in result else None


def build_entries(recipe: "RaceRecipe", out: Path, console: Console) -> list[Entry]:
    """What is wrong with the recipe is said at once; what is wrong with a member's model is that member's fault alone."""
    _check_recipe(recipe)
    known: CorpusCache = {}
    return [_build_entry(recipe, name, out, known, console) for name in recipe.members]


def read_scores(recipe: FinetuneRecipe) -> dict[str, float] | None:
    """The scores of a run that is done, as it left them beside its folder; none of a run of another recipe or model."""
    path = scores_path(recipe)
    if not path.exists() or (told := read_json(path)).get("identity") != finetune_identity(recipe):
        return None
    return {name: math.nan if value is None else float(value) for name, value in told["dev"].items()}


def scores_path(recipe: FinetuneRecipe) -> Path:
    return Path(recipe.out).with_suffix(".json")


def _check_recipe(recipe: "RaceRecipe") -> None:
    if not recipe.members or not recipe.seeds:
        raise UserError("a race needs members and seeds, at least one of each")
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"seeds {list(recipe.seeds)} name one twice")
    if bool(recipe.corpus) == bool(recipe.texts):
        raise UserError("give texts=FILES or corpus=FOLDER, one of the two")
    if recipe.valid and not recipe.texts:
        raise UserError("valid goes with texts; of a corpus, every.held_out says what is held out")
    for kind, names in (("members", recipe.members), ("tasks", recipe.tasks)):
        for name in names:
            if not re.fullmatch(NAME_PATTERN, name) or name in (AVERAGE, "majority"):
                raise UserError(f"{kind}.{name}: the name is that of a folder too; take letters, digits, - and _, not `{name}`")
    for name, member in recipe.members.items():
        of = member.get("of")
        if of is not None and (of not in recipe.members or "of" in recipe.members[of]):
            raise UserError(
                f"members.{name}.of={of} is not a member with a checkpoint of its own; known: {', '.join(recipe.members)}"
            )
        if of is not None and (odd := [key for key in member if key not in ("of", "frozen", "tuned")]):
            raise UserError(f"members.{name}.{odd[0]}: it takes the checkpoint of {of}, which has that already; leave it out")


def _build_entry(recipe: "RaceRecipe", name: str, out: Path, cache: CorpusCache, console: Console) -> Entry:
    member = recipe.members[name]
    of, source = member.get("of"), recipe.members[member.get("of", name)]
    folder, untrained = out / "members" / (of or name), bool(source.get("untrained"))
    ways = [way for way in ("frozen", "tuned") if recipe.tasks and member.get(way, True) is not False]
    runs = {way: _finetune_recipes(recipe, name, way, folder, out) for way in ways}
    try:
        cut = prepare_corpus(recipe, source, out, cache, console.quiet)
    except UserError as fault:
        if not {"corpus", "tokenizer"} & source.keys():  # it is everybody's
            raise
        return Entry(name, folder, TokenizedText(), of, untrained, None, 0.0, runs, (str(fault),))
    if of:
        return Entry(name, folder, cut, of, untrained, None, 0.0, runs)
    trained, flops = _pretrain_recipe(recipe, name, member, folder, cut), 0.0
    try:
        if not untrained:
            trained, flops = fit_to_budget(trained, cut.corpus, recipe.budget.flops, recipe.budget.epochs)
    except (UserError, RuntimeError, ValueError) as error:
        return Entry(name, folder, cut, of, untrained, None, 0.0, runs, (str(error),))
    return Entry(name, folder, cut, of, untrained, trained, flops, runs)


def _finetune_recipes(recipe: "RaceRecipe", name: str, mode: str, folder: Path, out: Path) -> dict[str, list[FinetuneRecipe]]:
    """What every run of this way has, then the task's own, then the member's."""
    return {
        task: [_finetune_recipe(recipe, name, mode, task, folder, out, seed) for seed in recipe.seeds] for task in recipe.tasks
    }


def _finetune_recipe(
    recipe: "RaceRecipe", name: str, mode: str, task: str, folder: Path, out: Path, seed: int
) -> FinetuneRecipe:
    own = recipe.members[name].get(mode, {})
    for key, table in ((mode, getattr(recipe, mode)), (f"tasks.{task}", recipe.tasks[task]), (f"members.{name}.{mode}", own)):
        if not isinstance(table, dict):
            raise UserError(f"{key} = {table!r} is not a table of settings of `finetune`; or write false, to leave it out")
        if wrong := [word for word in RESERVED_FINETUNE_KEYS if word in table]:
            raise UserError(f"{key}.{wrong[0]} is for the race to say; leave it out")
    settings = merge_settings(
        merge_settings(merge_settings(DEFAULT_SETTINGS[mode], getattr(recipe, mode)), recipe.tasks[task]), own
    )
    settings.pop("metrics", None)
    place = out / "runs" / name / mode / task / f"seed-{seed}"
    settings |= {"model": str(folder), "seed": seed, "out": str(place)}
    return from_dict(FinetuneRecipe, settings, f"members.{name}, tasks.{task}, {mode}")


def _pretrain_recipe(
    recipe: "RaceRecipe", name: str, member: dict[str, Any], folder: Path, text: TokenizedText
) -> PretrainRecipe:
    settings = merge_settings(recipe.every, {key: value for key, value in member.items() if key not in MEMBER_KEYS})
    for word in RESERVED_PRETRAIN_KEYS:
        if word in settings:
            raise UserError(f"members.{name}.{word} (or every.{word}) is for the race to say; leave it out")
    train = settings.get("train", {})
    if wrong := [word for word in DURATION_KEYS if isinstance(train, dict) and word in train]:
        raise UserError(f"members.{name}.train.{wrong[0]} (or every.train): the budget says how long; leave it out")
    settings["train"] = {**train, "steps": 1}
    settings |= {
        "corpus": str(text.corpus_path),
        "out": str(folder),
        "valid": str(text.valid_path) if text.valid_path else None,
    }
    trained = from_dict(PretrainRecipe, settings, f"members.{name}")
    return _word_vector_recipe(trained, name, member) if isinstance(trained.objective, WordVectorObjective) else trained


def _word_vector_recipe(recipe: PretrainRecipe, name: str, member: dict[str, Any]) -> PretrainRecipe:
    """Without what `every` says of networks, which tables of words have no use for."""
    if wrong := [key for key in ("model", "train", "length") if key in member]:
        raise UserError(f"members.{name}.{wrong[0]}: a table of words is described by objective.* alone; leave it out")
    train = TrainConfig(epochs=1.0, device=recipe.train.device, keep=recipe.train.keep)
    return replace(recipe, model=None, valid=None, train=train)
