"""What a model is shown of a corpus: samples with their hidden tokens in colour, and how often each fate came."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus.collate import Arrays, Maker
from ..corpus.loader import Batches
from ..corpus.sampling import NextSentence, Plan
from ..corpus.store import Corpus
from ..errors import BadInput
from .html import Html, element, joined, note, section, shown, table

Ints = NDArray[np.int64]

COUNTED = 4000  # samples the table is counted over, at most
FATES = ("masked", "swapped", "kept")
READ = "Samples as the model reads them. Pieces of one word are joined and underlined; ## marks a piece that goes on."
LEGEND = {
    "masked": "hidden: the model sees [MASK], the word stood there",
    "swapped": "swapped for a random piece, the word stood there",
    "kept": "left as it is, but asked for all the same",
}


@dataclass(frozen=True)
class Counts:
    """Sums over samples; shares are taken when they are shown."""

    samples: int
    free: int  # tokens that might have been chosen: all but special ones
    fates: dict[str, int]
    labels: dict[int, int]

    @property
    def chosen(self) -> int:
        return sum(self.fates.values())


def masks(corpus: Corpus, reading: Batches, samples: int, epoch: int) -> Html:
    """`samples` of an epoch, the first that training meets in it."""
    counts = counted(corpus, reading, epoch)
    if not counts.samples:
        raise BadInput(f"{corpus.path}: its {len(reading.documents):,} documents to learn from make no sample to show")
    key = [element("span", element("mark", name, class_=name), " ", LEGEND[name]) for name in FATES]
    realised = table(proportions(counts, reading), ("", "count", "share", "wanted"))
    names = label_names(reading)
    cards = [_card(corpus, reading.maker, plan, at, names) for plan, at in drawn(reading, samples, epoch)]
    return section(
        "Masks", note(READ), element("div", *key, class_="key"), element("div", realised, class_="narrow"),
        element("h3", f"{len(cards)} samples of epoch {epoch}"), *cards,
    )  # fmt: skip


def drawn(reading: Batches, samples: int, epoch: int) -> list[tuple[Plan, int]]:
    """One plan a sample, in the order of training, with the epoch its masks are drawn for."""
    found: list[tuple[Plan, int]] = []
    for k in range(epoch * reading.an_epoch, (epoch + 1) * reading.an_epoch):
        plan, drawn_for = reading.rows(k)
        found += [(plan.chosen(np.array([i])), drawn_for) for i in range(min(len(plan), samples - len(found)))]
        if len(found) >= samples:
            break
    return found


def counted(corpus: Corpus, reading: Batches, epoch: int) -> Counts:
    """Over the first batches of an epoch, until some thousand samples are seen."""
    samples, free, fates = 0, 0, dict.fromkeys(FATES, 0)
    labels: dict[int, int] = {}
    special = corpus.tokenizer.special
    for k in range(epoch * reading.an_epoch, (epoch + 1) * reading.an_epoch):
        arrays = reading(k)
        samples, free = samples + len(arrays.lengths), free + int((~special[original(arrays)]).sum())
        for fate, name in enumerate(FATES):
            fates[name] += int((fate_of(arrays, corpus.tokenizer.mask) == fate).sum())
        for label, count in (
            zip(*np.unique(arrays.labels, return_counts=True), strict=True) if arrays.labels is not None else ()
        ):
            labels[int(label)] = labels.get(int(label), 0) + int(count)
        if samples >= COUNTED:
            break
    return Counts(samples, free, fates, labels)


def original(arrays: Arrays) -> Ints:
    """The tokens before anything was hidden."""
    tokens = arrays.tokens.copy()
    tokens[arrays.where] = arrays.words
    return tokens


def fate_of(arrays: Arrays, mask: int) -> Ints:
    """For each target, the number of its fate in FATES: what the model sees there decides."""
    seen = arrays.tokens[arrays.where]
    return np.where(seen == mask, 0, np.where(seen != arrays.words, 1, 2))


def proportions(counts: Counts, reading: Batches) -> list[tuple[Any, ...]]:
    """Rows of what was counted beside what the recipe wants."""
    chosen = max(counts.chosen, 1)
    rows: list[tuple[Any, ...]] = [
        ("samples counted", counts.samples, "", ""),
        ("tokens that may be hidden", counts.free, "", ""),
    ]
    rows.append(("tokens chosen", counts.chosen, _share(counts.chosen, counts.free), f"{reading.maker.rate:.0%}"))
    for name, wanted in zip(FATES, ("80%", "10%", "10%"), strict=True):
        rows.append((f"of them {name}", counts.fates[name], _share(counts.fates[name], chosen), wanted))
    for label, count in sorted(counts.labels.items()):
        rows.append((f"pairs where {label_names(reading)[label]}", count, _share(count, counts.samples), "50%"))
    return rows


def label_names(reading: Batches) -> tuple[str, str]:
    if isinstance(reading.view, NextSentence):
        return "B follows A", "B is from elsewhere"
    return "A and B are in order", "A and B are swapped"


def _card(corpus: Corpus, maker: Maker, plan: Plan, epoch: int, names: tuple[str, str]) -> Html:
    """One sample: its facts above, each of its spans below, the second marked B."""
    arrays = maker(plan, epoch)
    facts = [f"sample {int(plan.names[0]):,}", f"{int(arrays.lengths[0])} tokens", f"{len(arrays.where)} asked for"]
    head = [element("span", fact) for fact in facts]
    if arrays.labels is not None:
        head.append(element("span", names[int(arrays.labels[0])], class_="pill"))
    fates = np.full(len(arrays.tokens), -1)
    fates[arrays.where] = fate_of(arrays, corpus.tokenizer.mask)
    texts, at = [], 1  # behind [CLS]
    for number, (start, end) in enumerate(zip(plan.starts, plan.ends, strict=True)):
        part = slice(at, at + int(end - start))
        begins = corpus.starts_word(np.arange(start, end))
        words = _words(corpus, arrays.tokens[part], original(arrays)[part], fates[part], begins)
        at = part.stop + 1
        lead = [element("span", "[CLS] ", class_="special")] if number == 0 else []
        body = element("div", *lead, *words, element("span", " [SEP]", class_="special"))
        badge = [element("b", "AB"[number])] if plan.segmented else []
        texts.append(element("div", *badge, body, class_="text"))
    return element("div", element("header", *head), *texts, class_="sample")


def _words(corpus: Corpus, seen: Ints, stood: Ints, fates: Ints, begins: NDArray[np.bool_]) -> list[Html]:
    """Pieces of one word in one element, a space between words unless the script has none."""
    pieces, made = corpus.tokenizer.pieces, []
    starts = np.flatnonzero(begins | (np.arange(len(seen)) == 0))
    for a, b in zip(starts, np.append(starts[1:], len(seen)), strict=True):
        parts = [_piece(pieces[seen[i]], pieces[stood[i]], int(fates[i])) for i in range(a, b)]
        made.append(joined(element("span", *parts, class_="word") if b - a > 1 else parts[0], " "))
    return made


def _piece(seen: str, stood: str, fate: int) -> Html:
    if fate < 0:
        return _text(seen)
    mark = element("mark", _text(seen), class_=FATES[fate])
    return mark if FATES[fate] == "kept" else element("ruby", mark, element("rt", stood))


def _text(piece: str) -> Html:
    if piece.startswith("##") and len(piece) > 2:
        return joined(element("span", "##", class_="inside"), piece[2:])
    return joined(piece)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else shown(None)
