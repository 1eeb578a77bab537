"""Five minutes with BERT: fine-tune a shipped model on a task, and pre-train a small one from raw text.

python -m bertsmith.quickstart [folder=out/quickstart] [minutes=1]
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .. import api
from ..config import Config, from_dict
from ..console import Console, log_to_stderr, print_line
from ..errors import Interrupted, UserError, explain_missing_torch
from ..recipes import read_recipe
from ..reports.finetuning import FinetuningComparison, render_comparison, render_filled_masks
from ..reports.html import note, render_document, section, write_page
from ..signals import EXIT_STATUS, RESUME_HINT, raise_on_stop
from ..writing import write_atomic
from . import docstrings
from .comparison import FINETUNE_TRAIN, FINETUNE_TRAIN_SMALL, compare_with_scratch
from .docstrings import collect_documents, to_corpus_text

if TYPE_CHECKING:
    from ..inference.predictor import Predictor
    from ..stage_types import FinetuneTrain, PretrainTrain
    from .learned import Learned


SHIPPED_MODEL = "mini-en"
VOCAB_SIZE = 4000
MODEL_SETTINGS = {"num_hidden_layers": 2, "hidden_size": 128,
         "mixer": {"kind": "attention", "num_attention_heads": 4, "rope_theta": 10_000.0, "bias": False},
         "feedforward": {"intermediate_size": 256, "bias": False}, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
         "norm": "pre", "norm_bias": False, "position_embedding_type": "none", "initializer_range": 0.08}  # fmt: skip
# Chosen by measuring: in a minute on two cores, a model learns to use context only if its steps are very cheap (small
# vocabulary, small intermediate size, short sequences), each predicts many words, and Muon takes them (docs/history.md).
PRETRAIN_SETTINGS: dict[str, Any] = {
    "model": MODEL_SETTINGS,
    "max_length": [32],
    "objective": {"kind": "mlm", "mlm_probability": 0.3},
    "validation_split": 0.02,
    "eval_tokens": 16_384,
}
PRETRAIN_TRAIN: "PretrainTrain" = {
    "batch_tokens": 1024,
    "learning_rate": 5e-3,
    "optimizer": {"kind": "muon"},
    "lr_scheduler_type": "warmup_stable_decay",
    "decay_fraction": 0.7,
    "warmup_steps": 0.02,
    "eval_every": 250,
}
ENGLISH_TEXTS = (
    "The capital of France is [MASK].",
    "He opened the [MASK] and walked in.",
    "Most birds build their [MASK] in trees.",
    "The old man sat by the [MASK] and read a book.",
)
DOCSTRING_TEXTS = (
    "Return a new [MASK] with the given name.",
    "The value is converted to a [MASK].",
    "If the file does not [MASK], an error is raised.",
    "The default value is [MASK].",
    "This function [MASK] a list of all the names.",
    "Returns True if the object is an [MASK] of the class.",
)


class QuickstartRecipe(Config, frozen=True):
    """The output folder and the time of pre-training."""

    folder: Annotated[str, "output folder"] = "out/quickstart"
    minutes: Annotated[float, "minutes of pre-training for the small model; the rest takes about three more"] = 1.0
    roots: Annotated[tuple[str, ...], "folders of Python files to read docstrings from; default: this environment's"] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit code."""
    # Set before torch is imported: threads that spin while waiting are slow where the cores have other work too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        with log_to_stderr(), raise_on_stop():
            run(read_recipe(QuickstartRecipe, overrides=sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print_line(f"error: {error}", keep_lines=False)
        return 2
    except (Interrupted, KeyboardInterrupt):
        print_line(f"interrupted: {RESUME_HINT}")
        return EXIT_STATUS
    return 0


def run(recipe: QuickstartRecipe, console: Console | None = None) -> dict[str, Any]:
    """Run all steps through `bertsmith.api`, as a user would; a step whose output exists is skipped."""
    console, folder, start_time = console or Console(), Path(recipe.folder), time.monotonic()
    if recipe.minutes <= 0:
        raise UserError(f"minutes = {recipe.minutes:g} must be above 0")
    with explain_missing_torch("the quickstart"):  # before anything is done: its first step needs none
        import torch  # noqa: F401
    folder.mkdir(parents=True, exist_ok=True)
    base = SHIPPED_MODEL if SHIPPED_MODEL in api.models() else None
    print_step = StepPrinter(console, 7 if base else 6)
    if base:
        print_step(f"Fill in masks with {base}, a pre-trained model that comes with bertsmith (a few seconds)")
        _print_predictions(api.load(base), ENGLISH_TEXTS, console)
    else:
        console.info(f"this checkout does not include the weights of {SHIPPED_MODEL}; the small model is fine-tuned instead\n")
    print_step("Collect English text: docstrings of Python and the installed packages (about 25 seconds)")
    _write_text(folder, [Path(root) for root in recipe.roots], console)
    comparison = _finetune(folder, base, FINETUNE_TRAIN, print_step) if base else None
    result, learned = _pretrain_small_model(folder, recipe.minutes, print_step)
    comparison = comparison if base else _finetune(folder, str(folder / "model"), FINETUNE_TRAIN_SMALL, print_step)
    report = _write_report(folder, base, comparison, learned)
    total_time = f"\ntotal time: {time.monotonic() - start_time:.0f} seconds"
    console.info("\n".join([total_time, "", *list_next_steps(folder, base, bool(comparison))]))
    return {
        "folder": str(folder),
        "report": report,
        **result,
        "base_model": base,
        "comparison": comparison and comparison._asdict(),
    }


class StepPrinter:
    """Prints a numbered heading for each step."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.number = console, total, 0

    def __call__(self, text: str) -> None:
        self.number += 1
        self.console.info(("\n" if self.number > 1 else "") + f"{self.number}/{self.total}  {text}")


def format_result(result: dict[str, Any]) -> list[str]:
    """Lines with the losses and accuracies of the small model, compared with the unigram baseline."""
    if "valid_mlm_loss" not in result:
        return ["no validation results: there is too little text to hold some out"]
    pseudo_nll, unigram_entropy = math.log(result["pseudo_perplexity"]), result["unigram_entropy"]
    verdict = (
        "the model uses context"
        if pseudo_nll < unigram_entropy
        else "not better yet; train longer (minutes=5 folder=out/longer)"
    )
    return [
        "validation results of the small model:",
        f"  pseudo-perplexity loss  {pseudo_nll:.3f} nats per token (unigram baseline: {unigram_entropy:.3f}); {verdict}",
        f"  masked-token loss       {result['valid_mlm_loss']:.3f} nats per token; one in ten of these tokens is not masked",
        f"  masked-token accuracy   {result['valid_mlm_accuracy']:.1%}",
    ]


def list_next_steps(folder: Path, base: str | None, is_finetuned: bool) -> list[str]:
    """Lines with the files that were written and commands to try next."""
    model, text = (base, ENGLISH_TEXTS[0]) if base else (str(folder / "model"), "The default is [MASK].")
    lines = [f"Report (open it in a browser):  {folder / 'report.html'}"]
    if is_finetuned:
        lines.append(f"Evaluation of the classifier:   {folder / 'evaluation' / 'report.html'}")
    lines += [f"Small model, corpus and text:   {folder / 'model'}, {folder / 'corpus'}, {folder / 'text.txt'}",
              "Next steps:",
              f"  python -c \"import bertsmith; print(bertsmith.load('{model}').fill('{text}'))\""]  # fmt: skip
    if is_finetuned:
        lines.append(f"  bertsmith predict model={folder / 'finetuned'} text='Returns the shortest path between two nodes.'")
    return [
        *lines,
        f"  bertsmith finetune model={model} task=classify data.train=YOUR.tsv out=out/mine",
        f"  bertsmith pretrain corpus={folder / 'corpus'} model=bert-mini train.minutes=30 "
        "train.learning_rate=1e-3 out=out/mini",
        "  bertsmith tokenizer texts=YOUR.txt out=out/tokenizer    # then prepare, then pretrain",
    ]


def _write_text(folder: Path, roots: Sequence[Path], console: Console) -> None:
    """Write the pre-training text, without the held-out files of the task, and the task's training and test file."""
    text = folder / "text.txt"
    if text.exists():
        console.info(f"{text} already exists ({text.stat().st_size:,} bytes)")
        return
    with console.progress_bar("reading source files") as bar:
        documents = collect_documents(roots, on_read=bar)
    task = docstrings.build_task(documents)
    if task:
        write_atomic(folder / "train.jsonl", docstrings.to_json_lines(task.train))
        write_atomic(folder / "test.jsonl", docstrings.to_json_lines(task.test))
    train_documents = [
        document for document in documents if task is None or (document.package, document.path) not in task.held_out_files
    ]
    data = to_corpus_text(train_documents)
    write_atomic(text, data)  # last: its existence marks all three as complete
    paragraphs = sum(len(document.paragraphs) for document in train_documents)
    console.info(f"{text}: {len(train_documents):,} documents, {paragraphs:,} paragraphs, {len(data):,} bytes")


def _pretrain_small_model(folder: Path, minutes: float, print_step: StepPrinter) -> tuple[dict[str, Any], "Learned"]:
    """Tokenizer, corpus and pre-training of a small BERT; returns the result of `pretrain` and what the model learned."""
    from ..corpus.store import Corpus
    from .learned import examine, print_learned, read_held_out_texts

    text, tokenizer, corpus, model = (str(folder / name) for name in ("text.txt", "tokenizer", "corpus", "model"))
    quiet = print_step.console.quiet
    print_step(f"Train a WordPiece tokenizer with a vocabulary of {VOCAB_SIZE:,} (about 5 seconds)")
    api.train_tokenizer(texts=[text], kind="wordpiece", vocab_size=VOCAB_SIZE, lowercase=True, out=tokenizer, quiet=quiet)
    print_step("Tokenize the text into a corpus (about 5 seconds)")
    api.prepare(texts=[text], tokenizer=tokenizer, out=corpus, quiet=quiet)
    print_step(f"Pre-train a small BERT from scratch for {minutes:g} minute{'s' if minutes != 1 else ''} (MLM)")
    result = api.pretrain(
        corpus=corpus, out=model, quiet=quiet, train={**PRETRAIN_TRAIN, "minutes": minutes}, **PRETRAIN_SETTINGS
    )
    print_step("What the small BERT has learned (a few seconds)")
    predictor = api.load(model)
    learned = examine(Path(model), Corpus.open(Path(corpus)), predictor, read_held_out_texts(folder))
    print_step.console.info("\n".join(format_result(result)))
    print_learned(learned, print_step.console)
    _print_predictions(predictor, DOCSTRING_TEXTS, print_step.console)
    return result, learned


def _finetune(folder: Path, base: str, train_settings: "FinetuneTrain", print_step: StepPrinter) -> FinetuningComparison | None:
    print_step("Fine-tune a classifier (which package is a docstring from?), pre-trained and from scratch (about two minutes)")
    return compare_with_scratch(folder, base, train_settings, print_step.console)


def _print_predictions(predictor: "Predictor", texts: Sequence[str], console: Console) -> None:
    from ..inference.fill_mask import group_by_mask

    rows = []
    for text in texts:
        predictions = group_by_mask(predictor.fill(text, top_k=4))[0]
        rows.append((text, ", ".join(f"{row['token_str']} {row['score']:.0%}" for row in predictions)))
    console.print_table("", rows)


def _write_report(folder: Path, base: str | None, comparison: FinetuningComparison | None, learned: "Learned") -> str:
    """One HTML page: masks filled by the shipped model, the fine-tuning comparison, and the run of the small model."""
    from ..commands import show_pages
    from .learned import render_learned

    out = folder / "report.html"
    recipe = {
        "kind": "run",
        "model": str(folder / "model"),
        "corpus": str(folder / "corpus"),
        "texts": DOCSTRING_TEXTS,
        "out": str(out),
    }
    title, run_sections, _ = show_pages.run_page(from_dict(show_pages.Recipe, recipe), Console(quiet=True))
    learned_sections = render_learned(learned)
    comparison_sections = [render_comparison("Fine-tuning: package of a docstring", comparison)] if comparison else []
    if not base:
        write_page(out, render_document(title, str(folder), [*learned_sections, *run_sections, *comparison_sections]))
        return str(out)
    predictor = api.load(base)
    filled = render_filled_masks([(text, predictor.fill(text)) for text in ENGLISH_TEXTS], f"Filled masks: {base}")
    description = ("The sections below are about a small BERT that was pre-trained from scratch for a minute or so, on "
                   f"docstrings of the installed packages: what it has learned by then, next to a baseline without context. "
                   f"Do not expect the quality of {base}.")  # fmt: skip
    small_model_section = section("A small BERT from scratch", note(description))
    write_page(
        out,
        render_document(
            "Quickstart",
            str(folder),
            [filled, *comparison_sections, small_model_section, *learned_sections, *run_sections],
        ),
    )
    return str(out)


if __name__ == "__main__":
    sys.exit(main())
