"""The work of a race, a job each: a member learns from text, or is taught tasks with several seeds."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from ..artifacts import named, read_json, write_json
from ..corpus.store import Corpus
from ..errors import BadInput, Stopped
from ..jobs import told_of
from ..model.model import built
from ..screen import Screen
from . import finetune, folder, pretrain
from .field import Runner, scores_of


def pretrained(one: Runner, quiet: bool) -> None:
    """Its checkpoint folder; of a control that learns nothing from text, the weights it was born with."""
    assert one.recipe is not None
    if not one.untrained:
        pretrain.run(one.recipe, quiet)
        return
    corpus, identity = Corpus.open(named(one.recipe.corpus, "corpus")), one.identity
    with folder.opened(one.folder, identity, Screen(True)) as told:
        if told:
            return
        model = built(pretrain.model_config(one.recipe, corpus), one.recipe.seed)
        model.meet(corpus.tokenizer)
        one.folder.mkdir(parents=True, exist_ok=True)
        (one.folder / "metrics.jsonl").touch()
        result = {"step": 0, "parameters": sum(weight.numel() for weight in model.parameters())}
        card = {"identity": identity, "result": result}
        folder.publish(one.folder, model, corpus.tokenizer, card, {"stage": "pretrain"}, one.recipe)


def taught(recipes: Sequence[finetune.Recipe], keep: bool) -> None:
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


def _one(recipe: finetune.Recipe, keep: bool) -> None:
    """Scores stay beside the folder, which goes, unless it is to be kept."""
    path, identity, place = scores_of(recipe), finetune.identity_of(recipe), Path(recipe.out)
    if path.exists() and read_json(path).get("identity") == identity and (place.exists() or not keep):
        return
    found = finetune.run(recipe, quiet=True)
    write_json(path, {"identity": identity, "dev": found["dev"], "seconds": found["seconds"], "step": found["step"]})
    if not keep:
        shutil.rmtree(place)
