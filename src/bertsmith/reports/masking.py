"""The HTML section of MLM masking: training samples with their corrupted tokens highlighted, and corruption statistics."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..corpus.collate import Collator, NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.sampling import NextSentence, SampleIndex
from ..corpus.store import Corpus
from ..errors import UserError
from .charts import Chart, FlowToken, TokenFlow
from .html import Section, format_value, render

Ints = NDArray[np.int64]

MAX_COUNTED_SAMPLES = 4000  # the statistics are over about this many samples
CORRUPTIONS = ("masked", "random", "unchanged")
CAPTION = "Training samples as the model receives them. Subwords of the same word share an underline; ## marks a continuation."
LEGEND = {
    "masked": "replaced by [MASK]; the original token is below",
    "random": "replaced by a random token; the original token is below",
    "unchanged": "not replaced, but predicted like the others",
}


class SampleToken(NamedTuple):
    """A token of a displayed sample; `corruption` is empty for tokens that are not predicted."""

    text: str
    original: str
    corruption: str


@dataclass(frozen=True)
class MaskingCounts:
    """Counts over samples: maskable tokens, selected tokens by corruption, and sentence-pair labels."""

    num_samples: int
    num_maskable: int  # tokens that can be selected: all but special tokens
    corruptions: dict[str, int]
    labels: dict[int, int]

    @property
    def num_selected(self) -> int:
        """Tokens that are selected for prediction."""
        return sum(self.corruptions.values())


def render_masks(corpus: Corpus, batches: BatchLoader, num_samples: int, epoch: int) -> Section:
    """Statistics, and the first `num_samples` training samples of an epoch."""
    counts = count_corruptions(corpus, batches, epoch)
    if not counts.num_samples:
        raise UserError(f"{corpus.path}: its {len(batches.document_ids):,} training documents give no training sample")
    pair_names = pair_label_names(batches)
    samples = [
        _describe_sample(corpus, batches.collator, sample, sample_epoch, pair_names)
        for sample, sample_epoch in take_samples(batches, num_samples, epoch)
    ]
    body = render("masks", "masks", caption=CAPTION, legend=LEGEND.items(), statistics=corruption_rows(counts, batches),
                  heading=f"{len(samples)} samples of epoch {epoch}", samples=samples)  # fmt: skip
    return Section("Masks", body, tuple(_draw_sample(number, sample) for number, sample in enumerate(samples, 1)))


def take_samples(batches: BatchLoader, num_samples: int, epoch: int) -> list[tuple[SampleIndex, int]]:
    """(index of one sample, epoch that seeds its masks) of the first samples of an epoch, in training order."""
    samples: list[tuple[SampleIndex, int]] = []
    for batch_number in range(epoch * batches.batches_per_epoch, (epoch + 1) * batches.batches_per_epoch):
        index, mask_epoch = batches.select_samples(batch_number)
        samples += [(index.select(np.array([i])), mask_epoch) for i in range(min(len(index), num_samples - len(samples)))]
        if len(samples) >= num_samples:
            break
    return samples


def count_corruptions(corpus: Corpus, batches: BatchLoader, epoch: int) -> MaskingCounts:
    """Counts over the first batches of an epoch, until MAX_COUNTED_SAMPLES samples are seen."""
    num_samples, num_maskable, corruptions = 0, 0, dict.fromkeys(CORRUPTIONS, 0)
    labels: dict[int, int] = {}
    is_special = corpus.tokenizer.is_special
    for batch_number in range(epoch * batches.batches_per_epoch, (epoch + 1) * batches.batches_per_epoch):
        batch = batches(batch_number)
        num_samples += len(batch.lengths)
        num_maskable += int((~is_special[restore_tokens(batch)]).sum())
        for index, name in enumerate(CORRUPTIONS):
            corruptions[name] += int((classify_corruption(batch, corpus.tokenizer.mask_token_id) == index).sum())
        for label, count in zip(*np.unique(batch.labels, return_counts=True), strict=True) if batch.labels is not None else ():
            labels[int(label)] = labels.get(int(label), 0) + int(count)
        if num_samples >= MAX_COUNTED_SAMPLES:
            break
    return MaskingCounts(num_samples, num_maskable, corruptions, labels)


def restore_tokens(batch: NumpyBatch) -> Ints:
    """(tokens,): input ids before corruption."""
    tokens = batch.input_ids.copy()
    tokens[batch.output_indices] = batch.target_ids
    return tokens


def classify_corruption(batch: NumpyBatch, mask_id: int) -> Ints:
    """(targets,): index into CORRUPTIONS, by comparing the input id with the mask token and the target id."""
    input_ids = batch.input_ids[batch.output_indices]
    return np.where(input_ids == mask_id, 0, np.where(input_ids != batch.target_ids, 1, 2))


def corruption_rows(counts: MaskingCounts, batches: BatchLoader) -> list[tuple[Any, ...]]:
    """Table rows (name, count, fraction, expected fraction)."""
    selected, target_fraction = counts.num_selected, batches.collator.targets.target_fraction
    share_selected = _format_fraction(selected, counts.num_maskable)
    rows: list[tuple[Any, ...]] = [
        ("samples", counts.num_samples, "", ""),
        ("maskable tokens", counts.num_maskable, "", ""),
        ("tokens selected for prediction", selected, share_selected, f"{target_fraction:.0%}"),
    ]
    for name, expected in zip(CORRUPTIONS, ("80%", "10%", "10%"), strict=True):
        count = counts.corruptions[name]
        rows.append((f"of these: {name}", count, _format_fraction(count, max(selected, 1)), expected))
    for label, count in sorted(counts.labels.items()):
        name = f"pairs where {pair_label_names(batches)[label]}"
        rows.append((name, count, _format_fraction(count, counts.num_samples), "50%"))
    return rows


def pair_label_names(batches: BatchLoader) -> tuple[str, str]:
    """Descriptions of labels 0 and 1 of the sentence-pair objective (NSP or SOP)."""
    if isinstance(batches.sampler, NextSentence):
        return "B follows A", "B is random"
    return "A and B are in order", "A and B are swapped"


def _describe_sample(
    corpus: Corpus, collator: Collator, sample: SampleIndex, epoch: int, pair_names: tuple[str, str]
) -> dict[str, Any]:
    """One sample for the template: its sizes and pair label, then its segments, named A and B for sentence pairs."""
    batch = collator(sample, epoch)
    original_ids, id_to_token = restore_tokens(batch), corpus.tokenizer.id_to_token
    corruptions = [""] * len(batch.input_ids)
    corruption_ids = classify_corruption(batch, corpus.tokenizer.mask_token_id)
    for position, corruption in zip(batch.output_indices, corruption_ids, strict=True):
        corruptions[position] = CORRUPTIONS[corruption]
    tokens = [
        SampleToken(id_to_token[input_id], id_to_token[original_id], corruption)
        for input_id, original_id, corruption in zip(batch.input_ids, original_ids, corruptions, strict=True)
    ]
    segments, position = [], 1  # after [CLS]
    for index, (start, end) in enumerate(zip(sample.span_starts, sample.span_ends, strict=True)):
        length = int(end - start)
        words = _group_words(tokens[position : position + length], corpus.is_word_start(np.arange(start, end)))
        segments.append({"name": "AB"[index] if sample.has_segments else "", "words": words})
        position += length + 1  # [SEP]
    return {
        "facts": [
            f"sample {int(sample.sample_ids[0]):,}",
            f"{int(batch.lengths[0])} tokens",
            f"{len(batch.output_indices)} to predict",
        ],
        "pair_label": pair_names[int(batch.labels[0])] if batch.labels is not None else "",
        "segments": segments,
    }


def _draw_sample(number: int, sample: dict[str, Any]) -> Chart:
    """The tokens of a sample for a picture file."""
    tokens = [FlowToken("[CLS]")]
    for segment in sample["segments"]:
        for word in segment["words"]:
            tokens += [
                FlowToken(token.text, token.original if token.corruption in ("masked", "random") else "",
                          style=token.corruption, joins=index > 0)
                for index, token in enumerate(word)
            ]  # fmt: skip
        tokens.append(FlowToken("[SEP]"))
    label = f" · {sample['pair_label']}" if sample["pair_label"] else ""
    return TokenFlow(f"{' · '.join(sample['facts'])}{label}", tokens).draw()


def _group_words(tokens: list[SampleToken], word_starts: NDArray[np.bool_]) -> list[list[SampleToken]]:
    """The subwords of each word."""
    starts = np.flatnonzero(word_starts | (np.arange(len(tokens)) == 0))
    return [tokens[start:end] for start, end in zip(starts, np.append(starts[1:], len(tokens)), strict=True)]


def _format_fraction(count: int, total: int) -> str:
    return f"{count / total:.2%}" if total else format_value(None)
