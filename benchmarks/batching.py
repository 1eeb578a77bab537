"""Throughput of batch construction (sentence pairs, whole-word masking, packing), with one process and with eight."""

import os
import time

import numpy as np

from bertsmith import api
from bertsmith.corpus.collate import ClsSepPacking, Collator, MlmTargets
from bertsmith.corpus.loader import BatchLoader, Prefetcher
from bertsmith.corpus.masking import WholeWordMasking
from bertsmith.corpus.sampling import NextSentence
from bertsmith.corpus.store import Corpus

from .inputs import BenchmarkInputs

BATCH_TOKENS = 65_536


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    out = bench.folder / "batching"
    api.prepare(texts=[str(path) for path in bench.texts[:1]], tokenizer=str(bench.tokenizer), out=str(out), quiet=True)
    corpus = Corpus.open(out)
    documents = np.arange(len(corpus.document_offsets) - 1)
    collator = Collator(out, ClsSepPacking(), MlmTargets(WholeWordMasking(), 0.15), 0)
    loader = BatchLoader(collator, NextSentence(), documents, 128, BATCH_TOKENS)
    start = time.perf_counter()
    num_batches = loader.batches_per_epoch
    index_seconds = time.perf_counter() - start
    single_speed = _measure_speed(loader, 0, 20)
    parallel_speed = _measure_speed(loader, 8, 120)
    cores = f" on {os.cpu_count()} cores"
    index_speed = f"{len(loader._epoch_index(0)[0]) / index_seconds / 1e3:.0f} thousand samples/s"
    return [
        (f"sample the sentence pairs of an epoch ({num_batches} batches)", index_speed, "", "", ""),
        ("build batches, one process", f"{single_speed / 1e3:.0f} thousand tokens/s", "", "", "150 thousand"),
        ("build batches, eight processes" + cores, f"{parallel_speed / 1e3:.0f} thousand tokens/s", "", "", "1000 thousand"),
    ]


def _measure_speed(loader: BatchLoader, workers: int, num_batches: int) -> float:
    with Prefetcher(loader.collator, workers) as prefetcher:
        for k in range(2 * workers + 1):  # warm-up: processes start and map the corpus
            prefetcher(k, loader.select_samples)
        start, tokens = time.perf_counter(), 0
        for k in range(2 * workers + 1, 2 * workers + 1 + num_batches):
            tokens += len(prefetcher(k, loader.select_samples).input_ids)
        return tokens / (time.perf_counter() - start)
