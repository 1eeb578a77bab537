"""`prepare`, files to corpus folder on all cores, against the `tokenizers` library encoding the same lines in memory."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from bertsmith.corpus.store import Corpus
from bertsmith.tokenization import documents
from bertsmith.tokenization.tokenizer import Tokenizer

from .material import BenchmarkInputs

PEER_BYTES = 24 << 20  # the peer gets this much of the text: it is slow, and its speed does not change


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    out = bench.folder / "corpus"
    raw = sum(len(block.text.encode()) for block in documents.read_blocks(bench.texts))
    cut_taken, cut_peak = _run_prepare(bench, out, "cut")
    shutil.rmtree(out)
    taken, peak = _run_prepare(bench, out, "lines")
    corpus = Corpus.open(out)
    peer, same = _measure_peer(bench, corpus)
    ours, cutting, theirs = raw / taken / 1e6, raw / cut_taken / 1e6, peer / 1e6
    index = sum((out / name).stat().st_size for name in ("sentences.bin", "documents.bin"))
    disk = sum(p.stat().st_size for p in out.iterdir() if p.suffix == ".bin") - index
    rows = [
        (f"prepare {raw / 1e6:.0f} MB of text (ids {'identical' if same else 'DIFFER'})", f"{ours:.1f} MB/s",
         f"tokenizers {theirs:.1f} MB/s", f"{ours / theirs:.1f}x", "4x"),
        ("the same, sentences cut first", f"{cutting:.1f} MB/s", "", f"{cutting / theirs:.1f}x", ""),
        ("prepare, peak memory of all processes (PSS)", f"{max(peak, cut_peak) / 1e6:.0f} MB", "", "", "600 MB"),
        ("prepare, disk a token beside the index", f"{disk / len(corpus.tokens):.2f} bytes", "", "", "2.2 bytes"),
    ]  # fmt: skip
    shutil.rmtree(out)
    return rows


def _run_prepare(bench: BenchmarkInputs, out: Path, sentences: str) -> tuple[float, int]:
    """Seconds, and the most memory its processes held together."""
    texts = "texts=[" + ",".join(f'"{path}"' for path in bench.texts) + "]"
    words = [
        sys.executable,
        "-m",
        "bertsmith",
        "prepare",
        texts,
        f"tokenizer={bench.tokenizer}",
        f"out={out}",
        f"sentences={sentences}",
        "--quiet",
    ]
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen(words)
    while process.poll() is None:
        peak = max(peak, sum(_pss_bytes(pid) for pid in [process.pid, *_child_pids(process.pid)]))
        time.sleep(0.05)
    if process.returncode:
        sys.exit("prepare failed")
    return time.perf_counter() - start, peak


def _child_pids(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found += [int(path.parent.name), *_child_pids(int(path.parent.name))]
    return found


def _pss_bytes(pid: int) -> int:
    """Bytes of its own: pages shared with others (the mapped libraries) are counted in part, as the kernel does."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _measure_peer(bench: BenchmarkInputs, corpus: Corpus) -> tuple[float, bool]:
    """Bytes a second of `encode_batch_fast` on all cores, and whether its ids are ours."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer.load(bench.tokenizer)
    lines, size = [], 0
    for block in documents.read_blocks(bench.texts):
        lines += [line for line in block.text.split("\n") if line]
        size += len(block.text.encode())
        if size > PEER_BYTES:
            break
    start = time.perf_counter()
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(lines, add_special_tokens=False)
    taken = time.perf_counter() - start
    ids = np.fromiter((i for e in encodings for i in e.ids), np.int64)
    return sum(len(line.encode()) for line in lines) / taken, np.array_equal(ids, corpus.tokens[: len(ids)])
