"""The work of a race, a job each: a member learns from text, or is taught tasks with several seeds."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from .. import runs
from ..artifacts import read_json, resolve_path, write_json
from ..console import Console
from ..corpus.store import Corpus
from ..errors import Interrupted, UserError
from ..finetuning.recipe import FinetuneRecipe, finetune_identity
from ..finetuning.run import finetune
from ..model.model import build_model
from ..pretraining.run import pretrain
from ..pretraining.setup import build_model_config
from ..processes import format_error
from .entries import Entry, scores_path


def pretrain_entry(entry: Entry, quiet: bool) -> None:
    """Its checkpoint folder; of a control that learns nothing from text, the weights it was born with."""
    assert entry.recipe is not None
    if not entry.is_untrained:
        pretrain(entry.recipe, quiet)
        return
    corpus, identity = Corpus.open(resolve_path(entry.recipe.corpus, "corpus")), entry.identity
    with runs.open_run(entry.folder, identity, Console(True)) as told:
        if told:
            return
        model = build_model(build_model_config(entry.recipe, corpus), entry.recipe.seed)
        model.attach_tokenizer(corpus.tokenizer)
        entry.folder.mkdir(parents=True, exist_ok=True)
        (entry.folder / "metrics.jsonl").touch()
        result = {"step": 0, "parameters": sum(weight.numel() for weight in model.parameters())}
        card = {"identity": identity, "result": result}
        runs.publish(entry.folder, model, corpus.tokenizer, card, {"stage": "pretrain"}, entry.recipe)


def finetune_all(recipes: Sequence[FinetuneRecipe], keep: bool) -> None:
    """Every run, or as many as can be; what failed is told when all the others are done."""
    faults = dict[str, None]()
    for recipe in recipes:
        try:
            _finetune_one(recipe, keep)
        except (Interrupted, KeyboardInterrupt):
            raise
        except Exception as error:
            faults[format_error(error)] = None
    if faults:
        raise UserError("; ".join(faults))


def _finetune_one(recipe: FinetuneRecipe, keep: bool) -> None:
    """Scores stay beside the folder, which goes, unless it is to be kept."""
    path, identity, place = scores_path(recipe), finetune_identity(recipe), Path(recipe.out)
    if path.exists() and read_json(path).get("identity") == identity and (place.exists() or not keep):
        return
    found = finetune(recipe, quiet=True)
    write_json(path, {"identity": identity, "dev": found["dev"], "seconds": found["seconds"], "step": found["step"]})
    if not keep:
        shutil.rmtree(place)
