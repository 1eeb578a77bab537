"""Public Python API: each stage of the command line as a function whose keyword arguments are the recipe keys.

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
    """Train a tokenizer on text files. Returns what `bertsmith tokenizer --json` prints."""
    return _run("tokenizer", recipe, quiet)


def prepare(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Tokenize text files into a corpus folder. Returns what `bertsmith prepare --json` prints."""
    return _run("prepare", recipe, quiet)


def pretrain(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Pre-train a model on a corpus and write a checkpoint folder. Returns what `bertsmith pretrain --json` prints."""
    return _run("pretrain", recipe, quiet)


def plan(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Estimate time, memory and FLOPs of a pre-training run before it starts. Returns what `bertsmith plan --json` prints."""
    return _run("plan", recipe, quiet)


def finetune(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Fine-tune a checkpoint on the files of a task. Returns what `bertsmith finetune --json` prints."""
    return _run("finetune", recipe, quiet)


def evaluate(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Evaluate a fine-tuned model on a labelled file. Returns what `bertsmith evaluate --json` prints."""
    return _run("evaluate", recipe, quiet)


def suite(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Fine-tune and evaluate models on many tasks with several seeds. Returns what `bertsmith suite --json` prints."""
    return _run("suite", recipe, quiet)


def race(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Compare model families pre-trained on one corpus with one compute budget. Returns what `bertsmith race --json` prints."""
    return _run("race", recipe, quiet)


def predict(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Predict for a text or a file, one JSON object per line; the same as `bertsmith predict`."""
    return _run("predict", recipe, quiet)


def embed(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Compute text embeddings, or search documents by them. Returns what `bertsmith embed --json` prints."""
    return _run("embed", recipe, quiet)


def import_model(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Import a Hugging Face, TensorFlow, ELMo or word-vector model. Returns what `bertsmith import --json` prints."""
    return _run("import", recipe, quiet)


def convert_long(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Convert a full-attention model to a Longformer. Returns what `bertsmith convert-long --json` prints."""
    return _run("convert-long", recipe, quiet)


def export(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Write a checkpoint for another library, or as int8. Returns what `bertsmith export --json` prints."""
    return _run("export", recipe, quiet)


def show(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Render a corpus, its masking or a run as a self-contained HTML page. Returns what `bertsmith show --json` prints."""
    return _run("show", recipe, quiet)


def doctor(*, quiet: bool = False, **recipe: Any) -> dict[str, Any]:
    """Diagnose a corpus or a run and suggest fixes. Returns what `bertsmith doctor --json` prints."""
    return _run("doctor", recipe, quiet)


def load(folder: str | Path, device: str = "auto", precision: "Precision" = "auto") -> "Predictor":
    """Load a checkpoint folder, or a shipped model by name, as a `Predictor`: `load("mini-en").fill("A [MASK] day.")`.

    A folder of that name in the working directory takes precedence over a shipped model. `device="auto"` is a GPU if there
    is one; `precision="auto"` is bf16 on a GPU and fp32 on a CPU.
    """
    from .inference.predictor import load

    return load(folder, device, precision)


def models() -> dict[str, str]:
    """The models shipped with the package, {name: summary}; a name is accepted by `load` and wherever a stage takes a model."""
    from .pretrained.shipped import list_models

    return list_models()


def _run(name: str, recipe: dict[str, Any], quiet: bool) -> dict[str, Any]:
    module = load_stage(name)
    return module.run(from_user(module.Recipe, recipe, name), quiet)
