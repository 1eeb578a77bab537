"""Calibration: sequences of the data, and the ranges of a graph's activations on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...convert.onnx.outputs import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS
from ...cores import count_threads
from ...corpus.store import Corpus
from ...errors import UserError
from ...tasks.base import EncodedExamples
from ...tokenization.tokenizer import Tokenizer
from .graph import Linear, stored_name
from .weights import ActivationRange, Arrays, ChannelRange, Floats

if TYPE_CHECKING:
    import onnx

DRAWN_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
DRAWN_MARGIN = 1.2  # ranges in units of those measured on drawn ids, for texts beyond them
MAX_VALUES = 1 << 14  # of one batch and layer, of which percentiles are taken
Feeds = dict[str, NDArray[Any]]
Session = Callable[[Mapping[str, NDArray[Any]]], Feeds]  # inputs by name -> outputs by name


def batch_examples(encoded: EncodedExamples, indices: Sequence[int], reads_pairs: bool = False) -> list[Feeds]:
    """Inputs of a graph: one sequence each, so that no padding is measured; of a graph that reads pairs, the sequence twice."""
    return [
        to_feeds(
            np.stack([encoded.input_ids[i]] * (1 + reads_pairs)), np.stack([encoded.token_type_ids[i]] * (1 + reads_pairs))
        )
        for i in indices
    ]


def batch_corpus(corpus: Corpus, tokenizer: Tokenizer, max_length: int, count: int, seed: int) -> list[Feeds]:
    """Runs of whole sentences between [CLS] and [SEP], as long as fit, from places all over the corpus."""
    num_sentences = len(corpus.sentence_offsets) - 1
    if num_sentences < 1:
        raise UserError(f"{corpus.path} has no sentences to calibrate on")
    firsts = np.random.default_rng(seed).integers(0, num_sentences, count)
    batches = list[Feeds]()
    for first in firsts:
        start = int(corpus.sentence_offsets[first])
        document_end = corpus.sentence_offsets[
            corpus.document_offsets[np.searchsorted(corpus.document_offsets, first, side="right")]
        ]
        tokens = np.asarray(corpus.tokens[start : min(start + max(1, max_length - 2), int(document_end))], np.int64)
        batches.append(to_feeds(np.array([[tokenizer.cls_token_id, *tokens, tokenizer.sep_token_id]])[:, :max_length]))
    return batches


def draw_batches(tokenizer: Tokenizer, max_length: int, seed: int = 0) -> list[Feeds]:
    """Without texts: random ids between [CLS] and [SEP], two sequences of each of several lengths.

    The probability of an id falls with its place in the vocabulary (log-uniform), as frequencies do where a vocabulary is
    sorted by them.
    """
    rng, ids = np.random.default_rng(seed), tokenizer.non_special_ids
    batches = list[Feeds]()
    for length in [length for length in DRAWN_LENGTHS if length <= max_length] or [max(2, max_length)]:
        input_ids = ids[np.exp(rng.uniform(0, np.log(len(ids)), (2, length))).astype(np.int64) - 1]
        input_ids[:, 0], input_ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
        batches.append(to_feeds(input_ids))
    return batches


def to_feeds(input_ids: NDArray[np.int64], token_type_ids: NDArray[np.int64] | None = None) -> Feeds:
    """Inputs of a graph for (sequences, length) ids without padding."""
    segments = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    return {INPUT_IDS: input_ids, ATTENTION_MASK: np.ones_like(input_ids), TOKEN_TYPE_IDS: segments}


def open_session(proto: "onnx.ModelProto", stored: Arrays, outputs: Sequence[str] | None = None) -> Session:
    """A graph without weights in onnxruntime, with these tensors; `outputs`: values to compute instead of its outputs."""
    import onnx
    import onnxruntime

    if outputs is not None:
        watched = onnx.ModelProto()
        watched.CopyFrom(proto)
        del watched.graph.output[:]
        float_type = onnx.TensorProto.FLOAT
        watched.graph.output.extend(onnx.helper.make_tensor_value_info(name, float_type, None) for name in outputs)
        proto = watched
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count_threads()
    options.log_severity_level = 3  # errors
    external = [tensor.name for tensor in proto.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(stored[stored_name(name)]) for name in external}
    options.add_external_initializers(list(values), list(values.values()))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names, inputs = [value.name for value in session.get_outputs()], {value.name for value in session.get_inputs()}

    def run(feeds: Mapping[str, NDArray[Any]], keep: Any = values) -> Feeds:  # the session does not copy the values
        own = {name: value for name, value in feeds.items() if name in inputs}
        return dict(zip(names, session.run(names, own), strict=True))

    return run


def measure_channels(
    proto: "onnx.ModelProto", weights: Arrays, linears: Iterable[Linear], batches: Iterable[Feeds]
) -> dict[str, ChannelRange]:
    """By the name of the weight, the range of each input channel; the widest where several layers share it."""
    layers = list(linears)
    names = list(dict.fromkeys(layer.input for layer in layers))
    session = open_session(proto, weights, names)
    ranges = dict[str, ChannelRange]()
    for batch in batches:
        values = session(batch)
        for layer in layers:
            rows = values[layer.input].reshape(-1, values[layer.input].shape[-1])
            lowest, highest = ranges.get(layer.weight, (np.float32(0), np.float32(0)))
            ranges[layer.weight] = ChannelRange(np.minimum(lowest, rows.min(0)), np.maximum(highest, rows.max(0)))
    return ranges


def measure_percentiles(
    proto: "onnx.ModelProto", weights: Arrays, linears: Iterable[Linear], batches: Iterable[Feeds],
    input_scales: Mapping[str, Floats], percentile: float,
) -> dict[str, ActivationRange]:  # fmt: skip
    """Ranges that hold `percentile` % of the smoothed inputs of each layer, and 0; the rest is clipped."""
    layers = list(linears)
    session = open_session(proto, weights, list(dict.fromkeys(layer.input for layer in layers)))
    samples: dict[str, list[Floats]] = {layer.weight: [] for layer in layers}
    for batch in batches:
        values = session(batch)
        for layer in layers:
            smoothed = values[layer.input].reshape(-1, values[layer.input].shape[-1]) * input_scales[layer.weight]
            samples[layer.weight].append(smoothed.ravel()[:: -(-smoothed.size // MAX_VALUES)])
    tail = (100 - percentile) / 2
    bounds = {name: np.percentile(np.concatenate(parts), (tail, 100 - tail)) for name, parts in samples.items()}
    return {name: ActivationRange(min(0.0, float(low)), max(0.0, float(high))) for name, (low, high) in bounds.items()}


def smoothed_range(channels: ChannelRange, input_scale: Floats, margin: float = 1.0) -> ActivationRange:
    """From the least to the greatest value of the smoothed inputs, times `margin`."""
    low, high = (channels.lowest * input_scale).min(), (channels.highest * input_scale).max()
    return ActivationRange(margin * float(low), margin * float(high))


def open_corpus(path: Path, tokenizer: Tokenizer) -> Corpus:
    """The corpus, which must have the model's tokenizer."""
    corpus = Corpus.open(path)
    if corpus.tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(f"corpus={path} was prepared with another tokenizer than the model's; run `bertsmith prepare` with it")
    return corpus
