"""Build a static student, train it on the teacher's sentence vectors if there is a corpus, and publish it."""

from typing import Any

import msgspec
import numpy as np
import torch

from ....artifacts import resolve_path
from ....config import from_dict, to_dict
from ....corpus.store import Corpus
from ....device import resolve_device
from ....errors import UserError
from ....inference.engines.base import Precision
from ....inference.engines.torch import TorchEngine
from ....model import checkpoint
from ....model.model import Model
from ....runs import Run
from ....tasks.similarity import Pooling
from ....train.config import TrainConfig
from ....train.setup import prepare
from ....train.trainer import Trainer, Validation
from ....word_vectors.models import bag_of_vectors
from ..recipe import DistillRecipe
from ..teacher import Teacher
from .recipe import Static
from .sentences import SentenceBatches, SentenceVectorObjective, sample_sentences, sentence_vectors
from .table import Matrix, Projection, corpus_probabilities, sif_weights, token_vectors, zipf_probabilities

DEFAULTS = {"batch_tokens": 4096, "learning_rate": 1e-3, "early_stopping_patience": 0}
EPOCHS = 10.0
MAX_LENGTH = 128
VALIDATION = 0.02  # of the sentences


def distill_static(recipe: DistillRecipe, student: Static, teacher: Teacher, run: Run) -> dict[str, Any]:
    """The result of the run; its folder is a model of word vectors with the teacher's tokenizer."""
    if teacher.model.config.encoder.num_hidden_layers == 0:
        raise UserError(f"teacher={teacher.name} is a table of token vectors already; give an encoder")
    corpus = None if recipe.corpus is None else _open_corpus(recipe.corpus, teacher)
    device = resolve_device(recipe.train.device, "train.device")
    precision: Precision = "auto" if device.type == "cuda" and recipe.train.precision != "fp32" else "fp32"
    engine = TorchEngine(teacher.model.to(device), precision, fixed_threads=True)
    pooling: Pooling = getattr(teacher.task, "pooling", "mean")
    run.console.info(f"static: vectors of {len(teacher.tokenizer):,} tokens, {pooling} pooling")
    vectors = token_vectors(engine, teacher.tokenizer, pooling)
    ids = teacher.tokenizer.non_special_ids
    size = min(student.vector_size, vectors.shape[1])
    probabilities = (
        zipf_probabilities(teacher.tokenizer) if corpus is None else corpus_probabilities(teacher.tokenizer, corpus.tokens)
    )
    weights = sif_weights(probabilities, student.sif)[ids, None]
    if corpus is None:
        table = _fill(vectors.shape[0], size, ids, Projection.fit(vectors[ids], size)(vectors[ids]) * weights)
        result: dict[str, Any] = {}
        run.folder.mkdir(parents=True, exist_ok=True)
        model = _build_model(table)
    else:
        sentences = sample_sentences(corpus, student.sentences, (recipe.max_length or MAX_LENGTH) - 2, recipe.seed)
        if len(sentences) < 2:
            raise UserError(f"{corpus.path} has no sentences to learn from; prepare it from more text")
        run.console.info(f"static: the teacher's vectors of {len(sentences):,} sentences")
        targets = sentence_vectors(engine, teacher.tokenizer, sentences, pooling)
        projection = Projection.fit(targets, size)
        table = _fill(vectors.shape[0], size, ids, projection(vectors[ids]) * weights)
        unknown = teacher.tokenizer.unk_token_id
        known = [sentence[sentence != unknown] for sentence in sentences]
        model, result = _train(recipe, _build_model(table), known, projection(targets), run)
    result |= {"vocab_size": len(table), "vector_size": size, "parameters": table.size, "pooling": pooling}
    record = {"stage": "distill", "family": "vectors"}
    run.publish(checkpoint.model_writer(model, teacher.tokenizer), {"result": result}, record, recipe)
    run.console.info(f"{run.folder}: {len(table):,} tokens, {size} dimensions")
    return {"out": str(run.folder), "created": True, **result}


def _open_corpus(path: str, teacher: Teacher) -> Corpus:
    corpus = Corpus.open(resolve_path(path, "corpus"))
    if corpus.tokenizer.fingerprint != teacher.tokenizer.fingerprint:
        raise UserError(f"{corpus.path} was prepared with another tokenizer than the teacher's; prepare it again with "
                       f"tokenizer={teacher.name}")  # fmt: skip
    return corpus


def _fill(vocab_size: int, size: int, ids: Any, rows: Any) -> Matrix:
    """(vocab_size, size): these rows, and zeros for special tokens."""
    table = np.zeros((vocab_size, size), np.float32)
    table[ids] = rows
    return table


def _build_model(table: Matrix) -> Model:
    model = Model(bag_of_vectors(*table.shape), init_weights=False)
    model.encoder.word_embeddings.weight.data = torch.from_numpy(table)
    return model.eval()


def _train(
    recipe: DistillRecipe, model: Model, sentences: list[Any], targets: Matrix, run: Run
) -> tuple[Model, dict[str, Any]]:
    values = to_dict(recipe.train)
    values |= {key: default for key, default in DEFAULTS.items() if values[key] is None}
    config = from_dict(TrainConfig, values, "distill")
    if (config.steps, config.epochs, config.minutes) == (None, None, None):
        config = msgspec.structs.replace(config, epochs=EPOCHS)
    num_valid = max(1, round(VALIDATION * len(sentences)))
    train = SentenceBatches(sentences[num_valid:], targets[num_valid:], config.batch_tokens, recipe.seed)
    valid = SentenceBatches(sentences[:num_valid], targets[:num_valid], config.batch_tokens, recipe.seed)
    setup = prepare(model, config.resolve_epochs(train.batches_per_epoch))
    validation = Validation({"valid": lambda: map(valid, range(valid.batches_per_epoch))})
    summary = Trainer(setup, SentenceVectorObjective(), run, recipe.seed, validation=validation).fit(train)
    result = {name: summary[name] for name in ("step", "loss", "seconds", "tokens")} | {"sentences": len(sentences)}
    return model, result | {"valid_cosine_loss": summary["evaluations"]["valid"]["cosine_loss"]}
