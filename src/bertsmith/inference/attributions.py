"""Attribution of an answer to the tokens of its text: integrated gradients (Sundararajan, Taly and Yan 2017)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError
from ..model.batch import Inputs
from ..model.packing import Layout
from ..objectives.contrastive import Contrastive
from ..objectives.seq2seq import Seq2SeqObjective
from ..objectives.supervised import build_batch
from ..objectives.task_objective import build_task_objective
from ..tasks import Task
from ..tasks.base import EncodedExamples, JointPair
from ..tokenization.tokenizer import Tokenizer
from ..train.objective import Batch
from .engines.base import LM_HEAD, Ints
from .engines.torch import TorchEngine

MIN_STEPS, MAX_STEPS = 32, 512  # points of the path; doubled until the sum is complete
TOLERANCE = 0.01  # of the completeness error, relative to the sum of absolute attributions

Output = Callable[[Batch[Inputs]], Tensor]  # a batch to (sequences, columns)


class TokenAttributions(NamedTuple):
    """What each token of a text adds to an answer: the values sum to `output - baseline_output`.

    `output` is the probability of `target`, or the number of a regression; `baseline_output` is the same for the text whose
    token embeddings are all zero (positions, segments and special tokens stay).
    """

    tokens: list[str]
    offsets: NDArray[np.int64]  # (tokens, 2): characters [start, end) of each token in its text; 0, 0 for special tokens
    values: NDArray[np.float32]  # (tokens,): 0 for special tokens
    target: str  # the label, or the token of a mask; "score" for a regression
    output: float
    baseline_output: float
    completeness_error: float  # |sum of values - (output - baseline_output)|, from the approximation of the integral
    steps: int  # points at which gradients were computed

    def _repr_html_(self) -> str:
        """The text with its tokens colored, for notebooks."""
        from ..reports.attribution import render_attribution
        from ..reports.html import render_frame

        section = render_attribution("Attribution", self.tokens, self.values, *self[3:])
        return render_frame("Integrated gradients", "", [section])


class Attributed(NamedTuple):
    """A sequence, and the output that is attributed to its tokens."""

    input_ids: Ints
    texts: list[tuple[str, int]]  # what it encodes, in order, and at which character each begins
    target: str
    column: int  # of `compute_scores`, whose value is attributed
    compute_scores: Output


def attribute_task(
    engine: TorchEngine, tokenizer: Tokenizer, task: Task, max_length: int, examples: Sequence[Any], target: str | None
) -> list[TokenAttributions]:
    """Attributions of each example's probability of `target`, by default the predicted label; of its number in a regression."""
    if task.head_type != "text" or task.loss not in ("cross_entropy", "binary_cross_entropy", "mse"):
        raise UserError("attributions are for models of task=classify and task=regress, and for masks of a masked LM")
    if target is not None and target not in task.labels:
        way_out = f"choose one of {', '.join(task.labels)}" if task.labels else "a regression has none: leave it out"
        raise UserError(f"target={target!r} is no label of this model; {way_out}")
    objective, encoded = build_task_objective(task), task.encode(examples, tokenizer, max_length)
    assert not isinstance(objective, Seq2SeqObjective | Contrastive)
    if not isinstance(task.pair, JointPair) or len(encoded.input_ids) != len(examples):
        raise UserError("attributions are for texts of one sequence: give a text that fits into max_length "
                        f"({max_length} tokens), and a model with task.pair=joint")  # fmt: skip

    def compute_scores(batch: Batch[Inputs]) -> Tensor:
        """(sequences, labels): probabilities, as the model answers them; (sequences, 1) of a regression."""
        logits = objective.compute_outputs(engine.model, batch).float() / task.logit_temperature
        if task.loss == "mse":
            return logits
        return logits.softmax(-1) if task.loss == "cross_entropy" else logits.sigmoid()

    results = []
    for index, example in enumerate(examples):
        build = partial(_repeat_example, task, encoded.select_examples(index, index + 1), engine)
        column = task.labels.index(target) if target is not None else _find_largest(compute_scores, build)
        name = task.labels[column] if task.labels else "score"
        ids, texts = encoded.input_ids[index], [(text, 0) for text in example.texts]
        results.append(_integrate(engine, tokenizer, Attributed(ids, texts, name, column, compute_scores), build))
    return results


def attribute_masks(
    engine: TorchEngine, tokenizer: Tokenizer, max_length: int, texts: Sequence[str], target: str | None
) -> list[TokenAttributions]:
    """Attributions of the probability of `target` at the only mask of each text, by default the most probable token."""
    mask_token = tokenizer.id_to_token[tokenizer.mask_token_id]
    results = []
    for text in texts:
        ids = np.array([tokenizer.cls_token_id, *tokenizer.encode_with_mask(text), tokenizer.sep_token_id], np.int64)
        masks = np.flatnonzero(ids == tokenizer.mask_token_id)
        if len(masks) != 1:
            raise UserError(f"{text[:80]!r} has {len(masks)} masks; give a text with one {mask_token}")
        if len(ids) > max_length:
            raise UserError(
                f"{text[:80]!r} has {len(ids)} tokens, more than the {max_length} of the model; give a shorter text"
            )
        if target is not None and target not in tokenizer.id_to_token:
            raise UserError(f"target={target!r} is no token of the vocabulary; give one as `fill` shows them in token_str")
        compute_scores = partial(_compute_mask_probs, engine, int(masks[0]))
        build = partial(_repeat_ids, ids, engine)
        column = tokenizer.id_to_token.index(target) if target is not None else _find_largest(compute_scores, build)
        before, after = text.split(mask_token)
        parts = [(before, 0), (after, len(before) + len(mask_token))]
        sequence = Attributed(ids, parts, tokenizer.id_to_token[column], column, compute_scores)
        results.append(_integrate(engine, tokenizer, sequence, build))
    return results


def integrated_gradients(
    embeddings: Tensor, is_fixed: Tensor, steps: int, output: Callable[[Tensor], Tensor], max_copies: int
) -> Tensor:
    """(tokens,): sum over dimensions of (x - x') * the integral over alpha of the gradient at x' + alpha (x - x').

    x (tokens, dim): embeddings of the tokens; x': zeros, and x itself at fixed tokens. The integral is a Gauss-Legendre sum of
    `steps` points. `output` is given alpha-scaled differences to x, (copies * tokens, dim), and returns a value for each copy.
    """
    difference = embeddings.masked_fill(is_fixed[:, None], 0.0)
    nodes = torch.from_numpy(np.stack(np.polynomial.legendre.leggauss(steps))).to(embeddings)  # of [-1, 1]
    alphas, weights = (nodes[0] + 1) / 2, nodes[1] / 2
    total = torch.zeros_like(difference)
    for begin in range(0, steps, max_copies):
        part = alphas[begin : begin + max_copies]
        delta = ((part - 1)[:, None, None] * difference).flatten(0, 1).requires_grad_()
        (gradient,) = torch.autograd.grad(output(delta).sum(), delta)
        total += (weights[begin : begin + max_copies, None, None] * gradient.unflatten(0, (len(part), -1))).sum(0)
    return (total * difference).sum(-1)


def _integrate(
    engine: TorchEngine, tokenizer: Tokenizer, sequence: Attributed, build: Callable[[int], Batch[Inputs]]
) -> TokenAttributions:
    """With as many steps as the completeness axiom needs: the values sum to the difference of the outputs."""
    special = tokenizer.is_special[sequence.input_ids] & (sequence.input_ids != tokenizer.unk_token_id)
    is_fixed = torch.from_numpy(special).to(engine.device)
    with torch.no_grad():
        embeddings = engine.model.encoder.embed_tokens(build(1).inputs).float()

    def evaluate(delta: Tensor) -> Tensor:
        batch = build(len(delta) // len(embeddings))
        batch = replace(batch, inputs=replace(batch.inputs, embedding_delta=delta))
        return sequence.compute_scores(batch)[:, sequence.column]

    with torch.no_grad():
        ends = torch.cat([torch.zeros_like(embeddings), -embeddings.masked_fill(is_fixed[:, None], 0.0)])
        output, baseline_output = evaluate(ends).tolist()
    steps, max_copies = MIN_STEPS, max(1, engine.batch_tokens // len(embeddings))
    while True:
        values = integrated_gradients(embeddings, is_fixed, steps, evaluate, max_copies)
        error = abs(float(values.sum()) - (output - baseline_output))
        if error <= TOLERANCE * float(values.abs().sum()) or steps >= MAX_STEPS:
            break
        steps *= 2
    tokens = [tokenizer.id_to_token[token_id] for token_id in sequence.input_ids.tolist()]
    offsets = _find_offsets(tokenizer, sequence, special)
    return TokenAttributions(tokens, offsets, values.cpu().numpy(), sequence.target, output, baseline_output, error, steps)


def _find_largest(compute_scores: Output, build: Callable[[int], Batch[Inputs]]) -> int:
    """The column that the model answers with."""
    with torch.no_grad():
        return int(compute_scores(build(1))[0].argmax())


def _compute_mask_probs(engine: TorchEngine, position: int, batch: Batch[Inputs]) -> Tensor:
    """(sequences, vocab_size): probabilities of the tokens at `position` of each sequence."""
    inputs = batch.inputs
    hidden = engine.model(replace(inputs, output_indices=inputs.layout.first_token + position))
    return engine.model.compute_logits(LM_HEAD, hidden).float().softmax(-1)


def _repeat_ids(ids: Ints, engine: TorchEngine, copies: int) -> Batch[Inputs]:
    inputs = Inputs(torch.from_numpy(np.tile(ids, copies)), Layout.from_lengths([len(ids)] * copies))
    return Batch(inputs, {}, {}).to(engine.device)


def _repeat_example(task: Task, encoded: EncodedExamples, engine: TorchEngine, copies: int) -> Batch[Inputs]:
    """`copies` of the only sequence of `encoded`."""
    ids, segments, metadata = encoded.input_ids * copies, encoded.token_type_ids * copies, encoded.metadata * copies
    repeated = EncodedExamples(ids, segments, np.arange(copies), {}, metadata)
    return build_batch(task, repeated, list(np.arange(copies)[:, None])).to(engine.device)


def _find_offsets(tokenizer: Tokenizer, sequence: Attributed, special: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(tokens, 2): where each token lies in its text; 0, 0 for special tokens. Each text may be truncated at its end."""
    ids, position = sequence.input_ids.tolist(), 1  # after [CLS]
    offsets = np.zeros((len(ids), 2), np.int64)
    for text, start in sequence.texts:
        encoding = tokenizer.encode(text)
        while position < len(ids) and special[position] and encoding.ids[:1] != ids[position : position + 1]:
            position += 1
        for token_id, place in zip(encoding.ids, encoding.offsets, strict=True):
            if position == len(ids) or ids[position] != token_id:
                break
            offsets[position] = np.add(place, start)
            position += 1
    return offsets
