"""The entries of a race: each member with its corpus, its pre-training recipe within the budget, and its fine-tuning runs."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..artifacts import MANIFEST, fingerprint, read_object, read_result
from ..config import from_dict
from ..console import Console
from ..corpus.card import bits_per_byte
from ..errors import UserError
from ..evaluation.suite import AVERAGE
from ..finetuning.recipe import FinetuneRecipe, finetune_identity
from ..finetuning.suite import merge_settings
from ..pretraining.setup import PretrainRecipe, PretrainTrain, pretrain_identity
from .budget import count_spent_flops, fit_to_budget
from .corpora import CorpusCache, TokenizedText, prepare_corpus

if TYPE_CHECKING:
    from .run import RaceRecipe


MEMBER_KEYS = ("of", "untrained", "corpus", "tokenizer", "frozen", "tuned")  # keys of a member that are not `pretrain`'s
RESERVED_PRETRAIN_KEYS = ("out", "valid", "init")  # set by the race
DURATION_KEYS = ("steps", "epochs", "minutes")
RESERVED_FINETUNE_KEYS = ("model", "out", "seed", "seeds")  # set by the race
DEFAULT_SETTINGS: dict[str, dict[str, Any]] = {
    "frozen": {"freeze": "all", "features": {"layers": "mix"}, "train": {"learning_rate": 1e-3}},
    "tuned": {},
}
NAME_PATTERN = r"[\w][\w.+-]*"


@dataclass(frozen=True)
class Entry:
    """A member of the race; with `checkpoint_of` it uses another member's checkpoint and is not pre-trained itself."""

    name: str
    folder: Path
    text: TokenizedText
    checkpoint_of: str | None
    is_untrained: bool
    recipe: PretrainRecipe | None
    flops: float  # of its pre-training
    runs: dict[str, dict[str, list[FinetuneRecipe]]]  # by mode (frozen, tuned) and task, one per seed
    errors: tuple[str, ...] = ()

    @property
    def num_train_tokens(self) -> float:
        """Tokens of its pre-training, all epochs together."""
        if self.recipe is None or self.is_untrained:
            return 0.0
        train = self.recipe.train
        return (train.steps or 0) * train.gradient_accumulation_steps * train.batch_tokens + (
            train.epochs or 0
        ) * self.text.corpus.card["tokens"]

    @property
    def identity(self) -> str:
        """Hash of what decides its weights; without training, `train` settings do not count."""
        assert self.recipe is not None
        if not self.is_untrained:
            return pretrain_identity(self.recipe)
        return fingerprint(["untrained", pretrain_identity(replace(self.recipe, train=PretrainTrain(steps=1)))])

    @property
    def is_finished(self) -> bool:
        """Whether its folder holds the checkpoint of this recipe, not of another budget or recipe."""
        if self.recipe is None or not (self.folder / MANIFEST).exists():
            return False
        return bool(read_object(self.folder / "card.json").get("identity") == self.identity)

    def read_facts(self) -> dict[str, float]:
        """Parameters, FLOPs, time and language metrics of the finished member; empty before."""
        if self.recipe is None or not self.is_finished:
            return {}
        result = read_result(self.folder)
        flops = count_spent_flops(self.recipe, self.flops, result)
        facts = {"parameters": result["parameters"], "flops": flops, "steps": result.get("step", 0)}
        facts |= {name: result[name] for name in ("seconds", "tokens") if result.get(name)}
        return facts | self._language_metrics(result)

    def _language_metrics(self, result: dict[str, Any]) -> dict[str, float]:
        pseudo_perplexity = result.get("pseudo_perplexity")
        pseudo_nll = math.log(pseudo_perplexity) if pseudo_perplexity else None
        nll = {"bits_per_byte": causal_nll(result), "pseudo_bits_per_byte": pseudo_nll}
        bits = {name: bits_per_byte(value, self.text.card) for name, value in nll.items() if value is not None}
        return {name: value for name, value in bits.items() if value is not None}


def causal_nll(result: dict[str, Any]) -> float | None:
    """Negative log-likelihood per token (nats) of a causal LM, or of the forward half of a bidirectional LM."""
    if "valid_forward_nll" in result:
        return float(result["valid_forward_nll"])
    return math.log(result["perplexity"]) if "perplexity" in result else None


def build_entries(recipe: "RaceRecipe", out: Path, console: Console) -> list[Entry]:
    """One entry per member; an error of the recipe is raised, an error of one member is recorded in its entry."""
    _check_recipe(recipe)
    cache: CorpusCache = {}
    return [_build_entry(recipe, name, out, cache, console) for name in recipe.members]


def read_scores(recipe: FinetuneRecipe) -> tuple[dict[str, float], tuple[str, ...]] | None:
    """Dev scores of a finished run and the names of those that are errors, from the JSON file next to its folder.

    None if it belongs to another recipe or model.
    """
    path = scores_path(recipe)
    if not path.exists() or (record := read_object(path)).get("identity") != finetune_identity(recipe):
        return None
    scores = {name: math.nan if value is None else float(value) for name, value in record["dev"].items()}
    return scores, tuple(record.get("lower_is_better", ()))


def scores_path(recipe: FinetuneRecipe) -> Path:
    return Path(recipe.out).with_suffix(".json")


def _check_recipe(recipe: "RaceRecipe") -> None:
    if not recipe.members or not recipe.seeds:
        raise UserError("a race needs at least one of members and one of seeds")
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"seeds = {list(recipe.seeds)} contains duplicates")
    if bool(recipe.corpus) == bool(recipe.texts):
        raise UserError("give either texts=FILES or corpus=FOLDER")
    if recipe.valid and not recipe.texts:
        raise UserError("valid needs texts; with corpus=FOLDER, set every.validation_split instead")
    for kind, names in (("members", recipe.members), ("tasks", recipe.tasks)):
        for name in names:
            if not re.fullmatch(NAME_PATTERN, name) or name in (AVERAGE, "majority"):
                raise UserError(
                    f"{kind}.{name}: the name is also that of a folder; use letters, digits, - and _ "
                    f"(`{AVERAGE}` and `majority` are reserved)"
                )
    for name, member in recipe.members.items():
        source = member.get("of")
        if source is not None and (source not in recipe.members or "of" in recipe.members[source]):
            raise UserError(
                f"members.{name}.of={source} is not a member that is pre-trained itself; members: {', '.join(recipe.members)}"
            )
        if source is not None and (unused := [key for key in member if key not in ("of", "frozen", "tuned")]):
            raise UserError(
                f"members.{name}.{unused[0]} has no effect, since the member uses the checkpoint of {source}; remove it"
            )


def _build_entry(recipe: "RaceRecipe", name: str, out: Path, cache: CorpusCache, console: Console) -> Entry:
    member = recipe.members[name]
    checkpoint_of, source_member = member.get("of"), recipe.members[member.get("of", name)]
    folder, is_untrained = out / "members" / (checkpoint_of or name), bool(source_member.get("untrained"))
    modes = [mode for mode in ("frozen", "tuned") if recipe.tasks and member.get(mode, True) is not False]
    runs = {mode: _finetune_recipes(recipe, name, mode, folder, out) for mode in modes}
    try:
        text = prepare_corpus(recipe, source_member, out, cache, console.quiet)
    except UserError as error:
        if not {"corpus", "tokenizer"} & source_member.keys():  # the corpus is shared by all members
            raise
        return Entry(name, folder, TokenizedText(), checkpoint_of, is_untrained, None, 0.0, runs, (str(error),))
    if checkpoint_of:
        return Entry(name, folder, text, checkpoint_of, is_untrained, None, 0.0, runs)
    pretrain_recipe, flops = _pretrain_recipe(recipe, name, member, folder, text), 0.0
    try:
        if not is_untrained:
            pretrain_recipe, flops = fit_to_budget(pretrain_recipe, text.corpus, recipe.budget.flops, recipe.budget.epochs)
    except (UserError, RuntimeError, ValueError) as error:
        return Entry(name, folder, text, checkpoint_of, is_untrained, None, 0.0, runs, (str(error),))
    return Entry(name, folder, text, checkpoint_of, is_untrained, pretrain_recipe, flops, runs)


def _finetune_recipes(recipe: "RaceRecipe", name: str, mode: str, folder: Path, out: Path) -> dict[str, list[FinetuneRecipe]]:
    """Recipes by task, one per seed: the settings of the mode, overridden by the task's, overridden by the member's."""
    return {
        task: [_finetune_recipe(recipe, name, mode, task, folder, out, seed) for seed in recipe.seeds] for task in recipe.tasks
    }


def _finetune_recipe(
    recipe: "RaceRecipe", name: str, mode: str, task: str, folder: Path, out: Path, seed: int
) -> FinetuneRecipe:
    member_settings = recipe.members[name].get(mode, {})
    for key, table in (
        (mode, getattr(recipe, mode)),
        (f"tasks.{task}", recipe.tasks[task]),
        (f"members.{name}.{mode}", member_settings),
    ):
        if not isinstance(table, dict):
            raise UserError(f"{key} = {table!r} must be a table of `finetune` keys, or false to disable this mode")
        if reserved := [reserved_key for reserved_key in RESERVED_FINETUNE_KEYS if reserved_key in table]:
            raise UserError(f"{key}.{reserved[0]} is set by the race; remove it")
    settings = merge_settings(
        merge_settings(merge_settings(DEFAULT_SETTINGS[mode], getattr(recipe, mode)), recipe.tasks[task]), member_settings
    )
    settings.pop("metrics", None)
    run_folder = out / "runs" / name / mode / task / f"seed-{seed}"
    settings |= {"model": str(folder), "seed": seed, "out": str(run_folder)}
    return from_dict(FinetuneRecipe, settings, f"members.{name}, tasks.{task}, {mode}")


def _pretrain_recipe(
    recipe: "RaceRecipe", name: str, member: dict[str, Any], folder: Path, text: TokenizedText
) -> PretrainRecipe:
    settings = merge_settings(recipe.every, {key: value for key, value in member.items() if key not in MEMBER_KEYS})
    for reserved_key in RESERVED_PRETRAIN_KEYS:
        if reserved_key in settings:
            raise UserError(f"members.{name}.{reserved_key} (or every.{reserved_key}) is set by the race; remove it")
    train = settings.get("train", {})
    if durations := [reserved_key for reserved_key in DURATION_KEYS if isinstance(train, dict) and reserved_key in train]:
        raise UserError(
            f"members.{name}.train.{durations[0]} (or every.train.{durations[0]}): budget sets the duration; remove it"
        )
    settings["train"] = {**train, "steps": 1}
    settings |= {
        "corpus": str(text.corpus_path),
        "out": str(folder),
        "valid": str(text.valid_path) if text.valid_path else None,
    }
    pretrain_recipe = from_dict(PretrainRecipe, settings, f"members.{name}")
    return _word_vector_recipe(pretrain_recipe, name, member) if pretrain_recipe.word_vector_objective else pretrain_recipe


def _word_vector_recipe(recipe: PretrainRecipe, name: str, member: dict[str, Any]) -> PretrainRecipe:
    """The recipe without the network settings of `every`, which word vectors do not take."""
    train = member.get("train", {})
    wrong = [key for key in ("model", "max_length") if key in member] + [
        f"train.{key}" for key in train if key != "learning_rate"
    ]
    if wrong:
        raise UserError(f"members.{name}.{wrong[0]} has no effect on word vectors, which use objective.* and "
                        "train.learning_rate; remove it")  # fmt: skip
    train = PretrainTrain(
        epochs=1.0,
        learning_rate=train.get("learning_rate"),
        device=recipe.train.device,
        save_total_limit=recipe.train.save_total_limit,
    )
    return replace(recipe, model=None, valid=None, train=train)
