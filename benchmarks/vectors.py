"""Word vectors against gensim: the same text, vocabulary, sizes, epochs and threads, with alternating epochs.

Keys: texts=FILES vocab_size=30000 epochs=3 threads=1 methods=skip-gram,cbow,cbow-hs,glove device=cpu peer=gensim pairs=FILES
analogies=FILES; `-hs` is hierarchical softmax instead of negative sampling, on both sides.
Needs gensim; peer=none measures our side alone. With device=cuda the peer runs on `threads` CPU cores. GloVe has no peer.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith import api
from bertsmith.corpus.store import Corpus
from bertsmith.objectives.glove import Glove
from bertsmith.objectives.word2vec import Cbow, SkipGram, WordVectorTrainer
from bertsmith.word_vectors import KeyedVectors, benchmarks, vectors_from_table

from .inputs import BenchmarkInputs

Row = tuple[str, str, str, str, str]
METHODS = {"skip-gram": SkipGram(), "cbow": Cbow(), "skip-gram-hs": SkipGram(hs=True), "cbow-hs": Cbow(hs=True)}
GLOVE_LEARNING_RATE = 0.2  # as good after three epochs as 0.05 after a dozen


def run(bench: BenchmarkInputs) -> list[Row]:
    corpus = _prepare_corpus(bench)
    lines_path = None if bench.options.get("peer") == "none" else _write_lines(corpus, bench.folder / "lines.txt")
    rows: list[Row] = []
    for method in bench.options.get("methods", "skip-gram,cbow").split(","):
        rows += _measure_glove(bench, corpus) if method == "glove" else _compare(bench, method, corpus, lines_path)
    return rows


def _prepare_corpus(bench: BenchmarkInputs) -> Corpus:
    texts, folder = [str(path) for path in bench.texts], bench.folder
    api.train_tokenizer(
        texts=texts,
        kind="word",
        min_frequency=5,
        vocab_size=bench.int_option("vocab_size", 30_000),
        out=str(folder / "words"),
        quiet=True,
    )
    api.prepare(texts=texts, tokenizer=str(folder / "words"), out=str(folder / "words-corpus"), quiet=True)
    return Corpus.open(folder / "words-corpus")


def _write_lines(corpus: Corpus, path: Path) -> Path:
    """The same words for gensim, a sentence per line, without unknown words."""
    words, special = np.array(corpus.tokenizer.id_to_token, object), corpus.tokenizer.is_special
    with path.open("w", encoding="utf-8") as out:
        for first, last in zip(corpus.sentence_offsets[:-1], corpus.sentence_offsets[1:], strict=True):
            ids = corpus.tokens[first:last]
            out.write(" ".join(words[ids[~special[ids]]]) + "\n")
    return path


def _compare(bench: BenchmarkInputs, method: str, corpus: Corpus, lines_path: Path | None) -> list[Row]:
    epochs, threads, device = bench.int_option("epochs", 3), bench.int_option("threads", 1), bench.options.get("device", "cpu")
    torch.set_num_threads(threads)
    ours = METHODS[method].build_trainer(corpus, bench.folder, epochs, 0, torch.device(device), lambda done, of: None)
    peer, num_words = (
        lines_path and _build_gensim(method, lines_path, threads),
        int((~corpus.tokenizer.is_special[corpus.tokens]).sum()),
    )
    times = [
        (_time_call(lambda e=e: _train_epoch(ours, e, epochs)),
         _time_call(lambda e=e: _train_gensim_epoch(peer, lines_path, e, epochs)) if lines_path else np.nan)
        for e in range(epochs)
    ]  # fmt: skip
    our_speed, their_speed = (statistics.median(num_words / side[i] for side in times) for i in (0, 1))
    ratio = statistics.median(side[1] / side[0] for side in times)
    label = f"{method}, {num_words / 1e6:.1f} M words x {epochs}, {len(corpus.tokenizer):,} words, vector_size 100"
    peer_columns = (f"gensim {their_speed:,.0f} words/s ({threads} threads)", f"{ratio:.1f}x") if peer else ("", "")
    rows: list[Row] = [(label, f"{our_speed:,.0f} words/s ({device})", *peer_columns, "1x on cores, 10x on a GPU")]
    print("  ".join(rows[0]), file=sys.stderr, flush=True)
    table = ours.build_model()[0].encoder.word_embeddings.weight.detach().numpy()
    peer_vectors = KeyedVectors(peer.wv.index_to_key, peer.wv.vectors) if peer else None
    return rows + _evaluate(bench, method, vectors_from_table(corpus.tokenizer, table), peer_vectors)


def _measure_glove(bench: BenchmarkInputs, corpus: Corpus) -> list[Row]:
    """Time of counting co-occurrences (on the CPU) and of an epoch over them."""
    epochs, device, start = bench.int_option("epochs", 3), bench.options.get("device", "cpu"), time.perf_counter()
    torch.set_num_threads(bench.int_option("threads", 1))
    trainer = Glove().build_trainer(
        corpus, bench.folder / "glove", epochs, 0, torch.device(device), lambda done, of: None, GLOVE_LEARNING_RATE
    )
    count_seconds = time.perf_counter() - start
    epoch_seconds = statistics.median(_time_call(lambda e=e: _train_epoch(trainer, e, epochs)) for e in range(epochs))
    model, facts = trainer.build_model()
    label = f"glove, {len(corpus.tokens) / 1e6:.1f} M words, {facts['cooccurrences']:,} pairs, vector_size 100"
    rows: list[Row] = [(label, f"{count_seconds:.1f} s to count, {epoch_seconds:.1f} s per epoch ({device})", "", "", "")]
    print("  ".join(rows[0]), file=sys.stderr, flush=True)
    table = model.encoder.word_embeddings.weight.detach().numpy()
    return rows + _evaluate(bench, "glove", vectors_from_table(corpus.tokenizer, table), None)


def _time_call(fn: Any) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def _train_epoch(trainer: WordVectorTrainer, epoch: int, epochs: int) -> None:
    for k in range(epoch * trainer.num_rounds // epochs, (epoch + 1) * trainer.num_rounds // epochs):
        trainer.train_round(k)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _build_gensim(method: str, lines_path: Path, threads: int) -> Any:
    """gensim's default settings, which are ours: window 5, 5 negatives, sample 1e-3."""
    from gensim.models import Word2Vec

    use_hs = method.endswith("-hs")
    model = Word2Vec(vector_size=100, window=5, negative=0 if use_hs else 5, hs=int(use_hs), sample=1e-3,
                    sg=int(method.startswith("skip-gram")), min_count=1, workers=threads, seed=1, epochs=1)  # fmt: skip
    model.build_vocab(corpus_file=str(lines_path))
    return model


def _train_gensim_epoch(model: Any, lines_path: Path, epoch: int, epochs: int) -> None:
    first, last = (model.alpha + (model.min_alpha - model.alpha) * epochs_done / epochs for epochs_done in (epoch, epoch + 1))
    model.train(corpus_file=str(lines_path), total_examples=model.corpus_count, total_words=model.corpus_total_words, epochs=1,
               start_alpha=first, end_alpha=last)  # fmt: skip


def _evaluate(bench: BenchmarkInputs, method: str, ours: KeyedVectors, peer: KeyedVectors | None) -> list[Row]:
    rows: list[Row] = []
    for name in filter(None, bench.options.get("pairs", "").split(",")):
        scores = [100 * benchmarks.evaluate_word_pairs(vectors, Path(name)).spearman for vectors in (ours, peer) if vectors]
        rows.append(_format_scores(f"{method}: Spearman, {Path(name).name}", scores))
    for name in filter(None, bench.options.get("analogies", "").split(",")):
        scores = [
            100 * benchmarks.evaluate_word_analogies(vectors, Path(name)).total.accuracy for vectors in (ours, peer) if vectors
        ]
        rows.append(_format_scores(f"{method}: analogies, {Path(name).name}, %", scores))
    return rows


def _format_scores(label: str, scores: list[float]) -> Row:
    """A row of our score, and of the peer's if there is one."""
    if len(scores) == 1:
        return label, f"{scores[0]:.1f}", "", "", ""
    return label, f"{scores[0]:.1f}", f"gensim {scores[1]:.1f}", f"{scores[0] - scores[1]:+.1f}", "+0"
