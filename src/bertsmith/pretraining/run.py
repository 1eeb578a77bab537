"""A pre-training run: batches of each phase, training with validation and pseudo-perplexity, and the published checkpoint.

The run can be killed and resumed; the same recipe and corpus give the same weights.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from .. import runs
from ..artifacts import resolve_path
from ..config import to_dict
from ..console import Console
from ..corpus.card import bits_per_byte
from ..corpus.loader import BatchLoader, Prefetcher
from ..corpus.store import Corpus
from ..model import checkpoint
from ..model.batch import Inputs
from ..model.config import EncoderConfig
from ..model.embeddings import CharCNNConfig
from ..model.mixers import MixerConfig, TransformerXL
from ..model.model import Model
from ..objectives import BiLM, CausalLM, PretrainObjective
from ..objectives.pseudo_perplexity import pseudo_perplexity_batches
from ..objectives.word2vec import WordVectorObjective
from ..runs import Run
from ..train import oom
from ..train.config import TrainConfig
from ..train.objective import Batch
from ..train.setup import prepare
from ..train.trainer import StepCallback, Trainer, Validation
from .setup import PretrainRecipe, build_batches, build_model_config, init_model, pretrain_identity, split_corpus, uses_streams
from .word_vectors import train_word_vectors

MAX_UNKNOWN_FRACTION = 0.01  # of the tokens; above it, a character-level model warns
PSEUDO_PERPLEXITY = "pseudo_perplexity"  # split of the evaluation with one masked token at a time


def pretrain(recipe: PretrainRecipe, quiet: bool = False, on_step: StepCallback = lambda step, row: None) -> dict[str, Any]:
    """Train, resume an interrupted run, or return the result of a finished one."""
    console, out = Console(quiet), resolve_path(recipe.out, "out")
    corpus = Corpus.open(resolve_path(recipe.corpus, "corpus"))
    identity = pretrain_identity(recipe)
    with runs.open_run(out, identity, console) as run:
        if run.finished_result:
            return run.finished_result
        if isinstance(recipe.objective, WordVectorObjective):
            return train_word_vectors(recipe, recipe.objective, corpus, run)
        return _train(recipe, recipe.network_objective, corpus, run, on_step)


def _train(
    recipe: PretrainRecipe, objective: PretrainObjective, corpus: Corpus, run: Run, on_step: StepCallback
) -> dict[str, Any]:
    out, console = run.folder, run.console
    train_documents, valid_corpus, valid_documents = split_corpus(recipe, corpus)
    _warn_unread_text(recipe, corpus, console)
    config = build_model_config(recipe, corpus)
    if config.encoder.lacks_position_information:
        rope_hint = "model.mixer.rope_theta=10000, or " if "rope_theta" in config.encoder.mixer.__struct_fields__ else ""
        console.warn(
            "this model has no position information: it cannot tell the order of tokens; set "
            f"{rope_hint}model.position_embedding_type=absolute"
        )
    if recipe.init and recipe.model:
        console.info(f"init: model continues with {_describe_mixer(config.encoder.mixer)}")
    if _has_memory(config.encoder) and not uses_streams(recipe):
        console.warn("model.mixer.mem_len has no effect, since batches do not continue the text of the batch before; "
                     "set objective.packing=streams, or model.mixer.mem_len=0")  # fmt: skip
    if isinstance(config.encoder.embeddings, CharCNNConfig) and (unknown := corpus.card["unknown_rate"]) > MAX_UNKNOWN_FRACTION:
        console.warn(f"{unknown:.1%} of the tokens of {corpus.path} are [UNK], and the character CNN cannot use the "
                     "characters of these words; train a tokenizer with a larger vocab_size")  # fmt: skip
    loaders = [build_batches(recipe, corpus, train_documents, length, config) for length, _ in recipe.phases()]

    def train_once(train: TrainConfig) -> tuple[Trainer, Model, dict[str, Any]]:
        model = init_model(recipe, config, corpus, console)
        model.set_gradient_checkpointing(train.gradient_checkpointing)
        with Prefetcher(loaders[0].collator, train.workers, runs.world_size()) as prefetcher:
            validation = Validation(
                _build_eval_sets(recipe, objective, valid_corpus, valid_documents, train.batch_tokens, console),
                baseline=(objective.token_loss, corpus.card["unigram_entropy"]),
            )
            trainer = Trainer(prepare(model, train), objective, run, recipe.seed, validation=validation, on_step=on_step)
            batches = partial(_get_batch, recipe, objective, _set_batch_tokens(loaders, train.batch_tokens), prefetcher)
            return trainer, model, trainer.fit(batches)

    # with the batch_tokens of the recipe: an out-of-memory retry does not change the updates per epoch
    train = recipe.train.resolve_epochs(loaders[0].batches_per_epoch)
    trainer, model, summary = oom.retry_on_oom(train, max(recipe.max_length), out, train_once, console)
    model.drop_training_heads()
    result = (
        _build_result(summary, corpus, model)
        | _compute_perplexity(recipe, summary, valid_corpus.card)
        | oom.read_batch_split(out)
    )
    if trainer.is_main_process:
        oom.remove_batch_split(out)
        card = {"result": result, "corpus": {k: v for k, v in corpus.card.items() if k != "settings"}}
        record = {"stage": "pretrain"} | (runs.read_family(resolve_path(recipe.init, "init")) if recipe.init else {})
        run.publish(checkpoint.model_writer(model, corpus.tokenizer), card, record, recipe)
        console.print_table(str(out), [(name, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
                                for name, value in result.items() if isinstance(value, int | float)])  # fmt: skip
    return {"out": str(out), "created": True, **result}


def _describe_mixer(mixer: MixerConfig) -> str:
    """The mixer's kind and its settings that differ from the defaults."""
    defaults, (kind, *settings) = to_dict(type(mixer)()), to_dict(mixer).items()
    changed = (f"{name}={json.dumps(value)}" for name, value in settings if value != defaults[name])
    return ", ".join([f"mixer={kind[1]}", *changed])


def _has_memory(encoder: EncoderConfig) -> bool:
    """Whether the model is Transformer-XL with memory; adaptive span is useful without memory, so it does not count."""
    return isinstance(encoder.mixer, TransformerXL) and encoder.mixer.mem_len > 0 and bool(encoder.num_hidden_layers)


def _set_batch_tokens(loaders: list[BatchLoader], batch_tokens: int) -> list[BatchLoader]:
    """The loaders with `batch_tokens` per micro-batch: the same samples in the same order."""
    return [
        loader if loader.batch_tokens == batch_tokens else replace(loader, batch_tokens=batch_tokens, index_cache={})
        for loader in loaders
    ]


def _get_batch(
    recipe: PretrainRecipe,
    objective: PretrainObjective,
    loaders: list[BatchLoader],
    prefetcher: Prefetcher,
    index: int,
    fraction_done: float,
) -> Batch[Inputs]:
    """Micro-batch `index` of the phase (sequence length) that the run is in after `fraction_done`."""
    phase = next((i for i, (_, end) in enumerate(recipe.phases()) if fraction_done < end), len(loaders) - 1)
    return objective.to_batch(prefetcher(index, loaders[phase].select_samples))


def _build_eval_sets(
    recipe: PretrainRecipe,
    objective: PretrainObjective,
    corpus: Corpus,
    documents: np.ndarray,
    batch_tokens: int,
    console: Console,
) -> dict[str, Callable[[], Iterator[Batch[Inputs]]]]:
    """Validation batches by split: `valid`, as in training, and for masked language models `pseudo_perplexity`."""
    if not len(documents):
        if recipe.validation_split:
            console.warn(f"{corpus.path} has too few documents for validation_split={recipe.validation_split:g}, so nothing is "
                         "evaluated; set valid=FOLDER to another corpus")  # fmt: skip
        return {}
    length = recipe.max_length[-1]
    valid_loader = objective.build_batches(corpus, documents, length, batch_tokens, recipe.seed)
    valid_loader(0)  # an error in the held-out data is raised before training, not after it

    def valid_batches() -> Iterator[Batch[Inputs]]:
        return map(objective.to_batch, islice(valid_loader, max(1, recipe.eval_tokens // batch_tokens)))

    eval_sets: dict[str, Callable[[], Iterator[Batch[Inputs]]]] = {"valid": valid_batches}
    if objective.can_fill_mask:
        eval_sets[PSEUDO_PERPLEXITY] = lambda: pseudo_perplexity_batches(
            corpus, documents, length, batch_tokens, recipe.seed, recipe.eval_tokens // 2
        )
    return eval_sets


def _build_result(summary: dict[str, Any], corpus: Corpus, model: Model) -> dict[str, Any]:
    result = {
        name: summary[name] for name in ("step", "loss", "tokens", "seconds", "tokens_per_second", "skipped_steps", "rollbacks")
    }
    result |= {"unigram_entropy": corpus.card["unigram_entropy"], "parameters": sum(p.numel() for p in model.parameters())}
    result |= {f"valid_{name}": value for name, value in summary["evaluations"].get("valid", {}).items()}
    pseudo_nll = summary["evaluations"].get(PSEUDO_PERPLEXITY, {}).get("loss")
    if pseudo_nll is not None:  # absent if the validation text has only unknown words
        result["pseudo_perplexity"] = math.exp(min(pseudo_nll, 700))
    return result


def _compute_perplexity(recipe: PretrainRecipe, summary: dict[str, Any], card: dict[str, Any]) -> dict[str, float]:
    """Perplexity exp(nll) of a causal or bidirectional LM on held-out text, and bits per byte where bytes were counted."""
    nll = summary["evaluations"].get("valid", {}).get("loss")
    if nll is None or not isinstance(recipe.objective, CausalLM | BiLM):
        return {}
    bits = bits_per_byte(nll, card)
    return {"perplexity": math.exp(min(nll, 700))} | ({} if bits is None else {"bits_per_byte": bits})


def _warn_unread_text(recipe: PretrainRecipe, corpus: Corpus, console: Console) -> None:
    """Warn of documents with one sentence, which sentence-pair objectives read only as a random second segment."""
    is_single = np.diff(corpus.document_offsets) < 2
    fraction = float(np.diff(corpus.document_token_offsets)[is_single].sum() / max(1, corpus.document_token_offsets[-1]))
    if recipe.objective.min_sentences > 1 and fraction > 0.05:
        console.warn(f"{fraction:.0%} of the tokens are in documents of one sentence, which sentence pairs use only as a "
                     "random second segment; objective=mlm uses all text")  # fmt: skip
