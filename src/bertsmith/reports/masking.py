"""What a model is shown of a corpus: samples with their hidden tokens in colour, and how often each fate came."""

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

MAX_COUNTED_SAMPLES = 4000  # samples the table is counted over, at most
CORRUPTIONS = ("masked", "swapped", "kept")
CAPTION = "Samples as the model reads them. Pieces of one word are joined and underlined; ## marks a piece that goes on."
LEGEND = {
    "masked": "hidden: the model sees [MASK], the word stood there",
    "swapped": "swapped for a random piece, the word stood there",
    "kept": "left as it is, but asked for all the same",
}


@dataclass(frozen=True)
class MaskingCounts:
    """Sums over samples; shares are taken when they are shown."""

    num_samples: int
    num_maskable: int  # tokens that might have been chosen: all but special ones
    corruptions: dict[str, int]
    labels: dict[int, int]

    @property
    def num_selected(self) -> int:
        return sum(self.corruptions.values())


def render_masks(corpus: Corpus, batches: BatchLoader, num_samples: int, epoch: int) -> Html:
    """`samples` of an epoch, the first that training meets in it."""
    counts = count_corruptions(corpus, batches, epoch)
    if not counts.num_samples:
        raise UserError(f"{corpus.path}: its {len(batches.document_ids):,} documents to learn from make no sample to show")
    key = [element("span", element("mark", name, class_=name), " ", LEGEND[name]) for name in CORRUPTIONS]
    realised = table(corruption_rows(counts, batches), ("", "count", "share", "wanted"))
    names = pair_label_names(batches)
    cards = [
        _render_sample(corpus, batches.collator, plan, at, names) for plan, at in take_samples(batches, num_samples, epoch)
    ]
    return section(
        "Masks", note(CAPTION), element("div", *key, class_="key"), element("div", realised, class_="narrow"),
        element("h3", f"{len(cards)} samples of epoch {epoch}"), *cards,
    )  # fmt: skip


def take_samples(batches: BatchLoader, num_samples: int, epoch: int) -> list[tuple[SampleIndex, int]]:
    """One plan a sample, in the order of training, with the epoch its masks are drawn for."""
    found: list[tuple[SampleIndex, int]] = []
    for k in range(epoch * batches.batches_per_epoch, (epoch + 1) * batches.batches_per_epoch):
        plan, drawn_for = batches.select_samples(k)
        found += [(plan.select(np.array([i])), drawn_for) for i in range(min(len(plan), num_samples - len(found)))]
        if len(found) >= num_samples:
            break
    return found


def count_corruptions(corpus: Corpus, batches: BatchLoader, epoch: int) -> MaskingCounts:
    """Over the first batches of an epoch, until some thousand samples are seen."""
    samples, free, fates = 0, 0, dict.fromkeys(CORRUPTIONS, 0)
    labels: dict[int, int] = {}
    special = corpus.tokenizer.is_special
    for k in range(epoch * batches.batches_per_epoch, (epoch + 1) * batches.batches_per_epoch):
        arrays = batches(k)
        samples, free = samples + len(arrays.lengths), free + int((~special[restore_tokens(arrays)]).sum())
        for fate, name in enumerate(CORRUPTIONS):
            fates[name] += int((classify_corruption(arrays, corpus.tokenizer.mask_token_id) == fate).sum())
        for label, count in (
            zip(*np.unique(arrays.labels, return_counts=True), strict=True) if arrays.labels is not None else ()
        ):
            labels[int(label)] = labels.get(int(label), 0) + int(count)
        if samples >= MAX_COUNTED_SAMPLES:
            break
    return MaskingCounts(samples, free, fates, labels)


def restore_tokens(batch: NumpyBatch) -> Ints:
    """The tokens before anything was hidden."""
    tokens = batch.input_ids.copy()
    tokens[batch.output_indices] = batch.target_ids
    return tokens


def classify_corruption(batch: NumpyBatch, mask_id: int) -> Ints:
    """For each target, the number of its fate in FATES: what the model sees there decides."""
    seen = batch.input_ids[batch.output_indices]
    return np.where(seen == mask_id, 0, np.where(seen != batch.target_ids, 1, 2))


def corruption_rows(counts: MaskingCounts, batches: BatchLoader) -> list[tuple[Any, ...]]:
    """Rows of what was counted beside what the recipe wants."""
    chosen = max(counts.num_selected, 1)
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
    for name, wanted in zip(CORRUPTIONS, ("80%", "10%", "10%"), strict=True):
        rows.append((f"of them {name}", counts.corruptions[name], _format_fraction(counts.corruptions[name], chosen), wanted))
    for label, count in sorted(counts.labels.items()):
        rows.append(
            (f"pairs where {pair_label_names(batches)[label]}", count, _format_fraction(count, counts.num_samples), "50%")
        )
    return rows


def pair_label_names(batches: BatchLoader) -> tuple[str, str]:
    if isinstance(batches.sampler, NextSentence):
        return "B follows A", "B is from elsewhere"
    return "A and B are in order", "A and B are swapped"


def _render_sample(corpus: Corpus, collator: Collator, sample: SampleIndex, epoch: int, pair_names: tuple[str, str]) -> Html:
    """One sample: its facts above, each of its spans below, the second marked B."""
    arrays = collator(sample, epoch)
    facts = [
        f"sample {int(sample.sample_ids[0]):,}",
        f"{int(arrays.lengths[0])} tokens",
        f"{len(arrays.output_indices)} asked for",
    ]
    head = [element("span", fact) for fact in facts]
    if arrays.labels is not None:
        head.append(element("span", pair_names[int(arrays.labels[0])], class_="pill"))
    fates = np.full(len(arrays.input_ids), -1)
    fates[arrays.output_indices] = classify_corruption(arrays, corpus.tokenizer.mask_token_id)
    texts, at = [], 1  # behind [CLS]
    for number, (start, end) in enumerate(zip(sample.span_starts, sample.span_ends, strict=True)):
        part = slice(at, at + int(end - start))
        begins = corpus.is_word_start(np.arange(start, end))
        words = _render_words(corpus, arrays.input_ids[part], restore_tokens(arrays)[part], fates[part], begins)
        at = part.stop + 1
        lead = [element("span", "[CLS] ", class_="special")] if number == 0 else []
        body = element("div", *lead, *words, element("span", " [SEP]", class_="special"))
        badge = [element("b", "AB"[number])] if sample.has_segments else []
        texts.append(element("div", *badge, body, class_="text"))
    return element("div", element("header", *head), *texts, class_="sample")


def _render_words(
    corpus: Corpus, input_ids: Ints, original_ids: Ints, corruptions: Ints, word_starts: NDArray[np.bool_]
) -> list[Html]:
    """Pieces of one word in one element, a space between words unless the script has none."""
    pieces, made = corpus.tokenizer.id_to_token, []
    starts = np.flatnonzero(word_starts | (np.arange(len(input_ids)) == 0))
    for a, b in zip(starts, np.append(starts[1:], len(input_ids)), strict=True):
        parts = [_render_token(pieces[input_ids[i]], pieces[original_ids[i]], int(corruptions[i])) for i in range(a, b)]
        made.append(join_html(element("span", *parts, class_="word") if b - a > 1 else parts[0], " "))
    return made


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
