"""A pre-training run: batches of each phase, training with evaluation, and the published checkpoint.

The run can be killed and resumed; the same recipe and corpus give the same weights.
"""

import json
from functools import cache
from typing import Any

from .. import runs
from ..artifacts import resolve_path
from ..config import to_dict
from ..console import Console
from ..corpus.loader import Prefetcher
from ..corpus.store import Corpus
from ..diagnostics.monitor import RunMonitor
from ..diagnostics.run_log import RunSettings
from ..model import checkpoint
from ..model.batch import Inputs
from ..model.mixers import MixerConfig
from ..model.model import Model
from ..objectives.base import VALID
from ..runs import Run
from ..train import oom
from ..train.config import TrainConfig
from ..train.objective import Batch
from ..train.setup import prepare
from ..train.status import RunStatus
from ..train.trainer import StepCallback, Trainer, Validation
from ..writing import resolve_output
from .setup import PretrainRecipe, PretrainSetup, pretrain_identity
from .word_vectors import train_word_vectors


def pretrain(recipe: PretrainRecipe, quiet: bool = False, on_step: StepCallback = lambda step, row: None) -> dict[str, Any]:
    """Train, resume an interrupted run, or return the result of a finished one."""
    console, out = Console(quiet), resolve_output(recipe.out)
    corpus = Corpus.open(resolve_path(recipe.corpus, "corpus"))
    with runs.open_run(out, pretrain_identity(recipe), console) as run:
        if run.finished_result:
            return run.finished_result
        if word_vectors := recipe.word_vector_objective:
            return train_word_vectors(recipe, word_vectors, corpus, run)
        return train_on_corpus(PretrainSetup.from_recipe(recipe, corpus), run, on_step)


def train_on_corpus(setup: PretrainSetup, run: Run, on_step: StepCallback = lambda step, row: None) -> dict[str, Any]:
    """Train the model of `setup` on its corpus, evaluate it and publish it."""
    recipe, objective, corpus, out, console = setup.recipe, setup.objective, setup.corpus, run.folder, run.console
    warn_once = cache(lambda: setup.warn(console))  # when all checks have passed; not again after an out-of-memory retry
    if recipe.init and recipe.model:
        console.info(f"init: model continues with {_describe_mixer(setup.config.encoder.mixer)}")
    loaders = setup.build_loaders()
    settings = RunSettings("pretrain", to_dict(recipe), setup.config.encoder.init_std)
    monitor = RunMonitor(out, settings, corpus.card["unigram_entropy"])
    record = {**setup.record, "recipe": to_dict(recipe), "unigram_entropy": corpus.card["unigram_entropy"]}

    def train_once(train: TrainConfig) -> tuple[Trainer, Model, dict[str, Any]]:
        model = setup.build_model(console)
        model.set_gradient_checkpointing(train.gradient_checkpointing)
        training_objective = setup.build_training_objective(model)
        micro_batches = [loader.with_batch_tokens(train.batch_tokens) for loader in loaders]
        with Prefetcher(loaders[0].collator, train.workers, runs.world_size()) as prefetcher:

            def get_batch(index: int, fraction_done: float) -> Batch[Inputs]:
                loader = setup.select_loader(micro_batches, fraction_done)
                return setup.add_targets(objective.to_batch(prefetcher(index, loader.select_samples)))

            trainer = Trainer(
                prepare(model, train),
                training_objective,
                run,
                recipe.seed,
                validation=_build_validation(setup, train.batch_tokens),
                on_step=on_step,
                check_log=monitor.check,
                status=RunStatus(out, record, runs.is_main_process()),
            )
            warn_once()
            return trainer, model, trainer.fit(get_batch)

    # with the batch_tokens of the recipe: an out-of-memory retry does not change the updates per epoch
    train = recipe.train.resolve_epochs(loaders[0].batches_per_epoch)
    trainer, model, summary = oom.retry_on_oom(train, max(recipe.max_length), out, train_once, console)
    setup.finish_model(model)
    result = _build_result(setup, summary, model) | oom.read_batch_split(out)
    if trainer.is_main_process:
        oom.remove_batch_split(out)
        for warning in monitor.finish():
            console.warn(warning)
        card = {"result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
        run.publish(checkpoint.model_writer(model, corpus.tokenizer), setup.card | card, setup.record, setup.published_recipe)
        console.print_table(str(out), [(name, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
                                for name, value in result.items() if isinstance(value, int | float)])  # fmt: skip
    return {"out": str(out), "created": True, **result}


def _describe_mixer(mixer: MixerConfig) -> str:
    """The mixer's kind and its settings that differ from the defaults."""
    defaults, (kind, *settings) = to_dict(type(mixer)()), to_dict(mixer).items()
    changed = (f"{name}={json.dumps(value)}" for name, value in settings if value != defaults[name])
    return ", ".join([f"mixer={kind[1]}", *changed])


def _build_validation(setup: PretrainSetup, batch_tokens: int) -> Validation:
    """The evaluations of the objective, compared with a model that knows only the frequency of words."""
    eval_sets = setup.build_eval_sets(batch_tokens)
    if VALID in eval_sets:
        next(eval_sets[VALID].batches())  # an error in the held-out data is raised before training, not after it
    return Validation(
        {split: eval_set.batches for split, eval_set in eval_sets.items()},
        baseline=(setup.objective.token_loss, setup.corpus.card["unigram_entropy"]),
    )


def _build_result(setup: PretrainSetup, summary: dict[str, Any], model: Model) -> dict[str, Any]:
    result = {
        name: summary[name] for name in ("step", "loss", "tokens", "seconds", "tokens_per_second", "skipped_steps", "rollbacks")
    }
    result["unigram_entropy"] = setup.corpus.card["unigram_entropy"]
    result["parameters"] = sum(p.numel() for p in model.parameters())
    result |= {f"{VALID}_{name}": value for name, value in summary["evaluations"].get(VALID, {}).items()}
    return result | setup.objective.summarize(summary["evaluations"], setup.valid_corpus.card)
