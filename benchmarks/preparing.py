"""`bertsmith prepare` (files to corpus folder, all cores) against the `tokenizers` library on the same lines in memory."""

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

from .inputs import BenchmarkInputs

PEER_BYTES = 24 << 20  # of text for the peer, which is slow at a constant speed


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    out = bench.folder / "corpus"
    num_bytes = sum(len(block.text.encode()) for block in documents.read_blocks(bench.texts))
    split_seconds, split_peak = _run_prepare(bench, out, "cut")
    shutil.rmtree(out)
    seconds, peak = _run_prepare(bench, out, "lines")
    corpus = Corpus.open(out)
    peer, same_ids = _measure_peer(bench, corpus)
    ours, with_splitting, theirs = num_bytes / seconds / 1e6, num_bytes / split_seconds / 1e6, peer / 1e6
    index = sum((out / name).stat().st_size for name in ("sentences.bin", "documents.bin"))
    disk = sum(p.stat().st_size for p in out.iterdir() if p.suffix == ".bin") - index
    rows = [
        (f"prepare {num_bytes / 1e6:.0f} MB of text (ids {'identical' if same_ids else 'DIFFER'})", f"{ours:.1f} MB/s",
         f"tokenizers {theirs:.1f} MB/s", f"{ours / theirs:.1f}x", "4x"),
        ("the same, with sentence splitting", f"{with_splitting:.1f} MB/s", "", f"{with_splitting / theirs:.1f}x", ""),
        ("prepare, peak memory of all processes (PSS)", f"{max(peak, split_peak) / 1e6:.0f} MB", "", "", "600 MB"),
        ("prepare, disk per token, without the index", f"{disk / len(corpus.tokens):.2f} bytes", "", "", "2.2 bytes"),
    ]  # fmt: skip
    shutil.rmtree(out)
    return rows


def _run_prepare(bench: BenchmarkInputs, out: Path, sentences: str) -> tuple[float, int]:
    """Seconds, and the peak memory (PSS) of all its processes together."""
    texts = "texts=[" + ",".join(f'"{path}"' for path in bench.texts) + "]"
    command = [
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
    process = subprocess.Popen(command)
    while process.poll() is None:
        peak = max(peak, sum(_pss_bytes(pid) for pid in [process.pid, *_child_pids(process.pid)]))
        time.sleep(0.05)
    if process.returncode:
        sys.exit("prepare failed")
    return time.perf_counter() - start, peak


def _child_pids(parent: int) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            pids += [int(path.parent.name), *_child_pids(int(path.parent.name))]
    return pids


def _pss_bytes(pid: int) -> int:
    """Proportional set size: pages shared with other processes count in proportion."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _measure_peer(bench: BenchmarkInputs, corpus: Corpus) -> tuple[float, bool]:
    """Bytes per second of `encode_batch_fast` on all cores, and whether its ids equal ours."""
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
    seconds = time.perf_counter() - start
    ids = np.fromiter((i for e in encodings for i in e.ids), np.int64)
    return sum(len(line.encode()) for line in lines) / seconds, np.array_equal(ids, corpus.tokens[: len(ids)])
