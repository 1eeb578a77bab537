"""Vectors of words against gensim: the same text, words, sizes, epochs and threads, an epoch of each in turns.

Keys: texts=FILES size=30000 epochs=3 threads=1 ways=skip-gram,cbow device=cpu pairs=FILES analogies=FILES
Needs gensim. With device=cuda the peer has the cores, `threads` of them.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith import api
from bertsmith.config import parse
from bertsmith.corpus.store import Corpus
from bertsmith.objectives.learning import Learning
from bertsmith.objectives.neighbours import Cbow, SkipGram
from bertsmith.vectors import Vectors, judge, of_table

from .material import Material

Row = tuple[str, str, str, str, str]
WAYS = {"skip-gram": SkipGram, "cbow": Cbow}


def run(stuff: Material) -> list[Row]:
    corpus, lines = _text(stuff)
    rows: list[Row] = []
    for way in stuff.given.get("ways", "skip-gram,cbow").split(","):
        rows += _compared(stuff, way, corpus, lines)
    return rows


def _text(stuff: Material) -> tuple[Corpus, Path]:
    """The corpus, and the same words for gensim, a sentence a line; words that the vocabulary has not are in neither."""
    texts, folder = [str(path) for path in stuff.texts], stuff.folder
    api.train_tokenizer(
        texts=texts, kind="word", least=5, size=stuff.number("size", 30_000), out=str(folder / "words"), quiet=True
    )
    api.prepare(texts=texts, tokenizer=str(folder / "words"), out=str(folder / "words-corpus"), quiet=True)
    corpus = Corpus.open(folder / "words-corpus")
    pieces, special = np.array(corpus.tokenizer.pieces, object), corpus.tokenizer.special
    with (folder / "lines.txt").open("w", encoding="utf-8") as out:
        for first, last in zip(corpus.sentences[:-1], corpus.sentences[1:], strict=True):
            ids = corpus.tokens[first:last]
            out.write(" ".join(pieces[ids[~special[ids]]]) + "\n")
    return corpus, folder / "lines.txt"


def _compared(stuff: Material, way: str, corpus: Corpus, lines: Path) -> list[Row]:
    epochs, threads, device = stuff.number("epochs", 3), stuff.number("threads", 1), stuff.given.get("device", "cpu")
    torch.set_num_threads(threads)
    config = parse(WAYS[way], {"kind": way}, "benchmark")  # type: ignore[arg-type]
    ours = config.filling(corpus, stuff.folder, epochs, 0, torch.device(device), lambda done, of: None)
    peer, words = _gensim(way, lines, threads)
    taken = [(_timed(lambda e=e: _epoch(ours, e, device)), _timed(lambda e=e: _peer_epoch(peer, lines, e, epochs)))
             for e in range(epochs)]  # fmt: skip
    mine, theirs = (statistics.median(words / side[i] for side in taken) for i in (0, 1))
    ratio = statistics.median(side[1] / side[0] for side in taken)
    what = f"{way}, {words / 1e6:.1f} M words x {epochs}, {len(corpus.tokenizer):,} words, width 100"
    rows: list[Row] = [(what, f"{mine:,.0f} words/s ({device})", f"gensim {theirs:,.0f} words/s ({threads} threads)",
                        f"{ratio:.1f}x", "1x on cores, 10x on a GPU")]  # fmt: skip
    print("  ".join(rows[0]), file=sys.stderr, flush=True)
    table = ours.finished()[0].encoder.tokens.weight.detach().numpy()
    return rows + _judged(stuff, way, of_table(corpus.tokenizer, table), Vectors(peer.wv.index_to_key, peer.wv.vectors))


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _epoch(ours: Learning, epoch: int, device: str) -> None:
    for k in range(epoch * ours.read.an_epoch, (epoch + 1) * ours.read.an_epoch):
        ours.turn(k)
    if device != "cpu":
        torch.cuda.synchronize()


def _gensim(way: str, lines: Path, threads: int) -> tuple[Any, int]:
    """Its usual settings, which are ours: window 5, 5 negatives, sample 1e-3."""
    from gensim.models import Word2Vec

    made = Word2Vec(vector_size=100, window=5, negative=5, sample=1e-3, sg=int(way == "skip-gram"), min_count=1,
                    workers=threads, seed=1, epochs=1)  # fmt: skip
    made.build_vocab(corpus_file=str(lines))
    return made, made.corpus_total_words


def _peer_epoch(peer: Any, lines: Path, epoch: int, epochs: int) -> None:
    first, last = (peer.alpha + (peer.min_alpha - peer.alpha) * share / epochs for share in (epoch, epoch + 1))
    peer.train(corpus_file=str(lines), total_examples=peer.corpus_count, total_words=peer.corpus_total_words, epochs=1,
               start_alpha=first, end_alpha=last)  # fmt: skip


def _judged(stuff: Material, way: str, ours: Vectors, peer: Vectors) -> list[Row]:
    rows: list[Row] = []
    for name in filter(None, stuff.given.get("pairs", "").split(",")):
        mine, theirs = (100 * judge.likeness(side, Path(name)).spearman for side in (ours, peer))
        rows.append(
            (f"{way}: Spearman, {Path(name).name}", f"{mine:.1f}", f"gensim {theirs:.1f}", f"{mine - theirs:+.1f}", "+0")
        )
    for name in filter(None, stuff.given.get("analogies", "").split(",")):
        mine, theirs = (100 * judge.answered(side, Path(name)).total.accuracy for side in (ours, peer))
        rows.append((f"{way}: analogies, {Path(name).name}", f"{mine:.1f} %", f"gensim {theirs:.1f} %",
                     f"{mine - theirs:+.1f}", "+0"))  # fmt: skip
    return rows
