"""The batch maker: sentence pairs, whole-word masks and packing, from one process and from eight."""

import os
import time

import numpy as np

from bertsmith import api
from bertsmith.corpus.collate import Maker
from bertsmith.corpus.loader import Ahead, Batches
from bertsmith.corpus.masking import WholeWords
from bertsmith.corpus.sampling import NextSentence
from bertsmith.corpus.store import Corpus

from .material import Material

TOKENS = 65_536


def run(stuff: Material) -> list[tuple[str, str, str, str, str]]:
    out = stuff.folder / "batching"
    api.prepare(texts=[str(path) for path in stuff.texts[:1]], tokenizer=str(stuff.tokenizer), out=str(out), quiet=True)
    corpus = Corpus.open(out)
    documents = np.arange(len(corpus.documents) - 1)
    reading = Batches(Maker(out, WholeWords(), 0.15, 0), NextSentence(), documents, 128, TOKENS)
    start = time.perf_counter()
    batches = reading.an_epoch
    planned = time.perf_counter() - start
    one = _speed(reading, 0, 20)
    many = _speed(reading, 8, 120)
    cores = f" on {os.cpu_count()} cores"
    plan = f"{len(reading._planned(0)[0]) / planned / 1e3:.0f} thousand samples/s"
    return [
        (f"plan an epoch of pairs ({batches} batches)", plan, "", "", ""),
        ("make batches, one process", f"{one / 1e3:.0f} thousand tokens/s", "", "", "150 thousand"),
        ("make batches, eight processes" + cores, f"{many / 1e3:.0f} thousand tokens/s", "", "", "1000 thousand"),
    ]


def _speed(reading: Batches, workers: int, count: int) -> float:
    with Ahead(reading.maker, workers) as ahead:
        for k in range(2 * workers + 1):  # the processes start, and map the corpus
            ahead(k, reading.rows)
        start, tokens = time.perf_counter(), 0
        for k in range(2 * workers + 1, 2 * workers + 1 + count):
            tokens += len(ahead(k, reading.rows).tokens)
        return tokens / (time.perf_counter() - start)
