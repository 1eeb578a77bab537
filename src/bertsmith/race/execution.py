"""The work of a race, a job each: a member learns from text, or is taught tasks with several seeds."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from .. import runs
from ..artifacts import named, read_json, write_json
from ..console import Screen
from ..corpus.store import Corpus
from ..errors import BadInput, Stopped
from ..finetuning.recipe import FinetuneRecipe, finetune_identity
from ..finetuning.run import finetune
from ..model.model import built
from ..pretraining.run import pretrain
from ..pretraining.setup import build_model_config
from ..processes import told_of
from .entries import Runner, scores_of


def pretrained(one: Runner, quiet: bool) -> None:
    """Its checkpoint folder; of a control that learns nothing from text, the weights it was born with."""
    assert one.recipe is not None
    if not one.untrained:
        pretrain(one.recipe, quiet)
        return
    corpus, identity = Corpus.open(named(one.recipe.corpus, "corpus")), one.identity
    with runs.opened(one.folder, identity, Screen(True)) as told:
        if told:
            return
        model = built(build_model_config(one.recipe, corpus), one.recipe.seed)
        model.meet(corpus.tokenizer)
        one.folder.mkdir(parents=True, exist_ok=True)
        (one.folder / "metrics.jsonl").touch()
        result = {"step": 0, "parameters": sum(weight.numel() for weight in model.parameters())}
        card = {"identity": identity, "result": result}
        runs.publish(one.folder, model, corpus.tokenizer, card, {"stage": "pretrain"}, one.recipe)


def taught(recipes: Sequence[FinetuneRecipe], keep: bool) -> None:
    """Every run, or as many as can be; what failed is told when all the others are done."""
    faults = dict[str, None]()
    for recipe in recipes:
        try:
            _one(recipe, keep)
        except (Stopped, KeyboardInterrupt):
            raise
        except Exception as error:
            faults[told_of(error)] = None
    if faults:
        raise BadInput("; ".join(faults))


def _one(recipe: FinetuneRecipe, keep: bool) -> None:
    """Scores stay beside the folder, which goes, unless it is to be kept."""
    path, identity, place = scores_of(recipe), finetune_identity(recipe), Path(recipe.out)
    if path.exists() and read_json(path).get("identity") == identity and (place.exists() or not keep):
        return
    found = finetune(recipe, quiet=True)
    write_json(path, {"identity": identity, "dev": found["dev"], "seconds": found["seconds"], "step": found["step"]})
    if not keep:
        shutil.rmtree(place)
