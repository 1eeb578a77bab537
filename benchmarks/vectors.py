"""Vectors of words against gensim: the same text, words, sizes, epochs and threads, an epoch of each in turns.

Keys: texts=FILES size=30000 epochs=3 threads=1 ways=skip-gram,cbow,cbow-tree,glove device=cpu peer=gensim pairs=FILES
analogies=FILES; a tree is hierarchical softmax on both sides, in place of negatives.
Needs gensim; peer=none measures our side alone. With device=cuda the peer has the cores, `threads` of them. GloVe has no peer.
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
from bertsmith.objectives.glove import Glove
from bertsmith.objectives.word2vec import Cbow, Filling, SkipGram
from bertsmith.word_vectors import Vectors, benchmarks, of_table

from .material import Material

Row = tuple[str, str, str, str, str]
WAYS = {"skip-gram": SkipGram(), "cbow": Cbow(), "skip-gram-tree": SkipGram(tree=True), "cbow-tree": Cbow(tree=True)}
GLOVE = {"kind": "glove", "rate": 0.2}  # learns as much in three epochs as 0.05 in a dozen


def run(stuff: Material) -> list[Row]:
    corpus = _text(stuff)
    lines = None if stuff.given.get("peer") == "none" else _lines(corpus, stuff.folder / "lines.txt")
    rows: list[Row] = []
    for way in stuff.given.get("ways", "skip-gram,cbow").split(","):
        rows += _glove(stuff, corpus) if way == "glove" else _compared(stuff, way, corpus, lines)
    return rows


def _text(stuff: Material) -> Corpus:
    texts, folder = [str(path) for path in stuff.texts], stuff.folder
    api.train_tokenizer(
        texts=texts, kind="word", least=5, size=stuff.number("size", 30_000), out=str(folder / "words"), quiet=True
    )
    api.prepare(texts=texts, tokenizer=str(folder / "words"), out=str(folder / "words-corpus"), quiet=True)
    return Corpus.open(folder / "words-corpus")


def _lines(corpus: Corpus, path: Path) -> Path:
    """The same words for gensim, a sentence a line; words that the vocabulary has not are in neither."""
    pieces, special = np.array(corpus.tokenizer.pieces, object), corpus.tokenizer.special
    with path.open("w", encoding="utf-8") as out:
        for first, last in zip(corpus.sentences[:-1], corpus.sentences[1:], strict=True):
            ids = corpus.tokens[first:last]
            out.write(" ".join(pieces[ids[~special[ids]]]) + "\n")
    return path


def _compared(stuff: Material, way: str, corpus: Corpus, lines: Path | None) -> list[Row]:
    epochs, threads, device = stuff.number("epochs", 3), stuff.number("threads", 1), stuff.given.get("device", "cpu")
    torch.set_num_threads(threads)
    ours = WAYS[way].filling(corpus, stuff.folder, epochs, 0, torch.device(device), lambda done, of: None)
    peer, words = lines and _gensim(way, lines, threads), int((~corpus.tokenizer.special[corpus.tokens]).sum())
    taken = [(_timed(lambda e=e: _epoch(ours, e, epochs)),
              _timed(lambda e=e: _peer_epoch(peer, lines, e, epochs)) if lines else np.nan) for e in range(epochs)]  # fmt: skip
    mine, theirs = (statistics.median(words / side[i] for side in taken) for i in (0, 1))
    ratio = statistics.median(side[1] / side[0] for side in taken)
    what = f"{way}, {words / 1e6:.1f} M words x {epochs}, {len(corpus.tokenizer):,} words, width 100"
    beside = (f"gensim {theirs:,.0f} words/s ({threads} threads)", f"{ratio:.1f}x") if peer else ("", "")
    rows: list[Row] = [(what, f"{mine:,.0f} words/s ({device})", *beside, "1x on cores, 10x on a GPU")]
    print("  ".join(rows[0]), file=sys.stderr, flush=True)
    table = ours.finished()[0].encoder.tokens.weight.detach().numpy()
    other = Vectors(peer.wv.index_to_key, peer.wv.vectors) if peer else None
    return rows + _judged(stuff, way, of_table(corpus.tokenizer, table), other)


def _glove(stuff: Material, corpus: Corpus) -> list[Row]:
    """Counts, which a GPU has no part in, and epochs over them."""
    epochs, device, begun = stuff.number("epochs", 3), stuff.given.get("device", "cpu"), time.perf_counter()
    torch.set_num_threads(stuff.number("threads", 1))
    config = parse(Glove, GLOVE, "benchmark")
    ours = config.filling(corpus, stuff.folder / "glove", epochs, 0, torch.device(device), lambda done, of: None)
    counting = time.perf_counter() - begun
    each = statistics.median(_timed(lambda e=e: _epoch(ours, e, epochs)) for e in range(epochs))
    model, told = ours.finished()
    what = f"glove, {len(corpus.tokens) / 1e6:.1f} M words, {told['entries']:,} pairs, width 100"
    rows: list[Row] = [(what, f"{counting:.1f} s to count, {each:.1f} s an epoch ({device})", "", "", "")]
    print("  ".join(rows[0]), file=sys.stderr, flush=True)
    table = model.encoder.tokens.weight.detach().numpy()
    return rows + _judged(stuff, "glove", of_table(corpus.tokenizer, table), None)


def _timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _epoch(ours: Filling, epoch: int, epochs: int) -> None:
    for k in range(epoch * ours.turns // epochs, (epoch + 1) * ours.turns // epochs):
        ours.turn(k)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _gensim(way: str, lines: Path, threads: int) -> Any:
    """Its usual settings, which are ours: window 5, 5 negatives, sample 1e-3."""
    from gensim.models import Word2Vec

    tree = way.endswith("-tree")
    made = Word2Vec(vector_size=100, window=5, negative=0 if tree else 5, hs=int(tree), sample=1e-3,
                    sg=int(way.startswith("skip-gram")), min_count=1, workers=threads, seed=1, epochs=1)  # fmt: skip
    made.build_vocab(corpus_file=str(lines))
    return made


def _peer_epoch(peer: Any, lines: Path, epoch: int, epochs: int) -> None:
    first, last = (peer.alpha + (peer.min_alpha - peer.alpha) * share / epochs for share in (epoch, epoch + 1))
    peer.train(corpus_file=str(lines), total_examples=peer.corpus_count, total_words=peer.corpus_total_words, epochs=1,
               start_alpha=first, end_alpha=last)  # fmt: skip


def _judged(stuff: Material, way: str, ours: Vectors, peer: Vectors | None) -> list[Row]:
    rows: list[Row] = []
    for name in filter(None, stuff.given.get("pairs", "").split(",")):
        found = [100 * benchmarks.likeness(side, Path(name)).spearman for side in (ours, peer) if side]
        rows.append(_scored(f"{way}: Spearman, {Path(name).name}", found))
    for name in filter(None, stuff.given.get("analogies", "").split(",")):
        found = [100 * benchmarks.answered(side, Path(name)).total.accuracy for side in (ours, peer) if side]
        rows.append(_scored(f"{way}: analogies, {Path(name).name}, %", found))
    return rows


def _scored(what: str, found: list[float]) -> Row:
    """Ours, and the peer's if there is one."""
    if len(found) == 1:
        return what, f"{found[0]:.1f}", "", "", ""
    return what, f"{found[0]:.1f}", f"gensim {found[1]:.1f}", f"{found[0] - found[1]:+.1f}", "+0"
