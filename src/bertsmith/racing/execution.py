"""The jobs of a race: pre-train a member, or fine-tune it on a task with several seeds."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from .. import runs
from ..artifacts import read_object, resolve_path
from ..console import Console
from ..corpus.store import Corpus
from ..errors import Interrupted, UserError
from ..finetuning.recipe import FinetuneRecipe, finetune_identity
from ..finetuning.run import finetune
from ..model import checkpoint
from ..pretraining.run import pretrain
from ..pretraining.setup import PretrainSetup
from ..processes import format_error
from ..writing import write_json
from .entries import Entry, scores_path


def pretrain_entry(entry: Entry, quiet: bool) -> None:
    """Pre-train the member into its checkpoint folder; an untrained control is published with its initial weights."""
    assert entry.recipe is not None
    if not entry.is_untrained:
        pretrain(entry.recipe, quiet)
        return
    corpus = Corpus.open(resolve_path(entry.recipe.corpus, "corpus"))
    with runs.open_run(entry.folder, entry.identity, Console(True)) as run:
        if run.finished_result:
            return
        model = PretrainSetup.from_recipe(entry.recipe, corpus).build_untrained_model()
        entry.folder.mkdir(parents=True, exist_ok=True)
        (entry.folder / "metrics.jsonl").touch()
        result = {"step": 0, "parameters": sum(weight.numel() for weight in model.parameters())}
        run.publish(checkpoint.model_writer(model, corpus.tokenizer), {"result": result}, {"stage": "pretrain"}, entry.recipe)


def finetune_all(recipes: Sequence[FinetuneRecipe], keep: bool) -> None:
    """All runs; errors are collected and raised together after the last."""
    errors = dict[str, None]()
    for recipe in recipes:
        try:
            _finetune_one(recipe, keep)
        except (Interrupted, KeyboardInterrupt):
            raise
        except Exception as error:
            errors[format_error(error)] = None
    if errors:
        raise UserError("; ".join(errors))


def _finetune_one(recipe: FinetuneRecipe, keep: bool) -> None:
    """One run; its scores are written next to its folder, which is removed unless `keep`."""
    path, identity, folder = scores_path(recipe), finetune_identity(recipe), Path(recipe.out)
    if path.exists() and read_object(path).get("identity") == identity and (folder.exists() or not keep):
        return
    result = finetune(recipe, quiet=True)
    names = ("dev", "lower_is_better", "seconds", "step")
    write_json(path, {"identity": identity, **{name: result[name] for name in names if name in result}})
    if not keep:
        shutil.rmtree(folder)
