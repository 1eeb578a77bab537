"""The stages as functions: the words of the command line, as keyword arguments.

bertsmith.pretrain(corpus="corpus", model="bert-mini", train={"steps": 1000}, out="out/bert")
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .commands import load_stage
from .config import from_user

if TYPE_CHECKING:
    from .inference.predictor import Predictor
    from .inference.runtime import Precision


def train_tokenizer(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Text files to a tokenizer folder; what `bertsmith tokenizer --json` prints."""
    return _run("tokenizer", recipe, quiet)


def prepare(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Text files to a corpus folder; what `bertsmith prepare --json` prints."""
    return _run("prepare", recipe, quiet)


def pretrain(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """A corpus to a checkpoint folder; what `bertsmith pretrain --json` prints."""
    return _run("pretrain", recipe, quiet)


def plan(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """What a pre-training will take, before it runs; what `bertsmith plan --json` prints."""
    return _run("plan", recipe, quiet)


def finetune(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """A checkpoint and a task's files to a fine-tuned checkpoint; what `bertsmith finetune --json` prints."""
    return _run("finetune", recipe, quiet)


def evaluate(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """The scores of a fine-tuned model on a file; what `bertsmith evaluate --json` prints."""
    return _run("evaluate", recipe, quiet)


def suite(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Models on many tasks with several seeds, in one table; what `bertsmith suite --json` prints."""
    return _run("suite", recipe, quiet)


def race(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Members of the family on one corpus with one budget, in one table; what `bertsmith race --json` prints."""
    return _run("race", recipe, quiet)


def predict(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Answers to a text or a file, one JSON a line; what `bertsmith predict` does."""
    return _run("predict", recipe, quiet)


def embed(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Vectors of texts, or the nearest documents; what `bertsmith embed --json` prints."""
    return _run("embed", recipe, quiet)


def import_model(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Somebody else's checkpoint to a checkpoint folder; what `bertsmith import --json` prints."""
    return _run("import", recipe, quiet)


def convert_long(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """A checkpoint of short texts to one of long ones, by windows; what `bertsmith convert-long --json` prints."""
    return _run("convert-long", recipe, quiet)


def export(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """A checkpoint folder for other libraries, or packed small; what `bertsmith export --json` prints."""
    return _run("export", recipe, quiet)


def show(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """A corpus, its masks or a run as an offline page; what `bertsmith show --json` prints."""
    return _run("show", recipe, quiet)


def doctor(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """What is wrong with a corpus or a run, and what to try; what `bertsmith doctor --json` prints."""
    return _run("doctor", recipe, quiet)


def load(folder: str | Path, device: str = "auto", precision: "Precision" = "auto") -> "Predictor":
    """A checkpoint folder, or a shipped model by name, as something that answers: `load("mini-en").fill("A [MASK] day.")`.

    A folder of that name in the working directory is meant first. On a GPU if there is one; precision `auto` is bf16 there.
    """
    from .inference.predictor import load

    return load(folder, device, precision)


def models() -> dict[str, str]:
    """The models that come with the package: each name, for `load` and wherever a stage takes a model, and what it is."""
    from .pretrained.shipped import list_models

    return list_models()


def _run(name: str, recipe: dict[str, Any], quiet: bool) -> dict[str, Any]:
    module = load_stage(name)
    return module.run(from_user(module.Recipe, recipe, name), quiet)
