"""The HTML section of MLM masking: training samples with their corrupted tokens highlighted, and corruption statistics."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus.collate import Collator, NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.sampling import NextSentence, SampleIndex
from ..corpus.store import Corpus
from ..errors import UserError
from .html import Html, element, format_value, join_html, note, section, table

Ints = NDArray[np.int64]

MAX_COUNTED_SAMPLES = 4000  # the statistics are over about this many samples
CORRUPTIONS = ("masked", "swapped", "kept")
CAPTION = "Samples as the model reads them. Pieces of one word are joined and underlined; ## marks a piece that goes on."
LEGEND = {
    "masked": "hidden: the model sees [MASK], the word stood there",
    "swapped": "swapped for a random piece, the word stood there",
    "kept": "left as it is, but asked for all the same",
}


@dataclass(frozen=True)
class MaskingCounts:
    """Counts over samples: maskable tokens, selected tokens by corruption, and sentence-pair labels."""

    num_samples: int
    num_maskable: int  # tokens that can be selected: all but special tokens
    corruptions: dict[str, int]
    labels: dict[int, int]

    @property
    def num_selected(self) -> int:
        """Tokens selected for prediction."""
        return sum(self.corruptions.values())


def render_masks(corpus: Corpus, batches: BatchLoader, num_samples: int, epoch: int) -> Html:
    """Statistics, and the first `num_samples` training samples of an epoch."""
    counts = count_corruptions(corpus, batches, epoch)
    if not counts.num_samples:
        raise UserError(f"{corpus.path}: its {len(batches.document_ids):,} documents to learn from make no sample to show")
    legend = [element("span", element("mark", name, class_=name), " ", LEGEND[name]) for name in CORRUPTIONS]
    statistics = table(corruption_rows(counts, batches), ("", "count", "share", "wanted"))
    pair_names = pair_label_names(batches)
    samples = [
        _render_sample(corpus, batches.collator, sample, sample_epoch, pair_names)
        for sample, sample_epoch in take_samples(batches, num_samples, epoch)
    ]
    return section(
        "Masks", note(CAPTION), element("div", *legend, class_="key"), element("div", statistics, class_="narrow"),
        element("h3", f"{len(samples)} samples of epoch {epoch}"), *samples,
    )  # fmt: skip


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
    """Table rows (name, count, fraction, fraction set by the recipe)."""
    num_selected = max(counts.num_selected, 1)
    rows: list[tuple[Any, ...]] = [
        ("samples counted", counts.num_samples, "", ""),
        ("tokens that may be hidden", counts.num_maskable, "", ""),
    ]
    rows.append(
        (
            "tokens chosen",
            counts.num_selected,
            _format_fraction(counts.num_selected, counts.num_maskable),
            f"{batches.collator.mlm_probability:.0%}",
        )
    )
    for name, expected in zip(CORRUPTIONS, ("80%", "10%", "10%"), strict=True):
        rows.append(
            (f"of them {name}", counts.corruptions[name], _format_fraction(counts.corruptions[name], num_selected), expected)
        )
    for label, count in sorted(counts.labels.items()):
        rows.append(
            (f"pairs where {pair_label_names(batches)[label]}", count, _format_fraction(count, counts.num_samples), "50%")
        )
    return rows


def pair_label_names(batches: BatchLoader) -> tuple[str, str]:
    """Descriptions of labels 0 and 1 of the sentence-pair objective (NSP or SOP)."""
    if isinstance(batches.sampler, NextSentence):
        return "B follows A", "B is from elsewhere"
    return "A and B are in order", "A and B are swapped"


def _render_sample(corpus: Corpus, collator: Collator, sample: SampleIndex, epoch: int, pair_names: tuple[str, str]) -> Html:
    """One sample: its sizes and pair label, then its spans, labeled A and B for sentence pairs."""
    batch = collator(sample, epoch)
    facts = [
        f"sample {int(sample.sample_ids[0]):,}",
        f"{int(batch.lengths[0])} tokens",
        f"{len(batch.output_indices)} asked for",
    ]
    header = [element("span", fact) for fact in facts]
    if batch.labels is not None:
        header.append(element("span", pair_names[int(batch.labels[0])], class_="pill"))
    corruptions = np.full(len(batch.input_ids), -1)
    corruptions[batch.output_indices] = classify_corruption(batch, corpus.tokenizer.mask_token_id)
    texts, position = [], 1  # after [CLS]
    for index, (start, end) in enumerate(zip(sample.span_starts, sample.span_ends, strict=True)):
        tokens = slice(position, position + int(end - start))
        word_starts = corpus.is_word_start(np.arange(start, end))
        words = _render_words(corpus, batch.input_ids[tokens], restore_tokens(batch)[tokens], corruptions[tokens], word_starts)
        position = tokens.stop + 1
        cls_token = [element("span", "[CLS] ", class_="special")] if index == 0 else []
        body = element("div", *cls_token, *words, element("span", " [SEP]", class_="special"))
        segment = [element("b", "AB"[index])] if sample.has_segments else []
        texts.append(element("div", *segment, body, class_="text"))
    return element("div", element("header", *header), *texts, class_="sample")


def _render_words(
    corpus: Corpus, input_ids: Ints, original_ids: Ints, corruptions: Ints, word_starts: NDArray[np.bool_]
) -> list[Html]:
    """One element per word; the subwords of a word are joined."""
    id_to_token, words = corpus.tokenizer.id_to_token, []
    starts = np.flatnonzero(word_starts | (np.arange(len(input_ids)) == 0))
    for start, end in zip(starts, np.append(starts[1:], len(input_ids)), strict=True):
        subwords = [
            _render_token(id_to_token[input_ids[i]], id_to_token[original_ids[i]], int(corruptions[i]))
            for i in range(start, end)
        ]
        words.append(join_html(element("span", *subwords, class_="word") if end - start > 1 else subwords[0], " "))
    return words


def _render_token(token: str, original_token: str, corruption: int) -> Html:
    if corruption < 0:
        return _render_subword(token)
    mark = element("mark", _render_subword(token), class_=CORRUPTIONS[corruption])
    return mark if CORRUPTIONS[corruption] == "kept" else element("ruby", mark, element("rt", original_token))


def _render_subword(subword: str) -> Html:
    if subword.startswith("##") and len(subword) > 2:
        return join_html(element("span", "##", class_="inside"), subword[2:])
    return join_html(subword)


def _format_fraction(count: int, total: int) -> str:
    return f"{count / total:.2%}" if total else format_value(None)
