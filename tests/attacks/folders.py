"""Hostile folders: pipes and devices in place of files, JSON of any depth and size, configs larger than their weights, headers
that lie, shards outside the folder.

Half of them are sealed anew, as their author could. Each ends in a result or one line of error, soon and in little memory.
"""

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.artifacts import write_manifest
from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import MEGABYTE, Case
from tests.attacks.readers import build_sources, commands_for

CASES = 4000
MAX_MEMORY = 1200 * MEGABYTE
NUMBERS = (0, -1, 1, 2, 3, 7, 10**4, 10**5, 10**7, 2**31 - 1, 2**31, 2**32, 4 * 10**9, 10**12, 2**40, 2**62, 2**63, 2**64, 10**18,
           10**30, 10**39, 1e-300, 1e300, -1e300, 0.5, float("nan"), float("inf"), -float("inf"))  # fmt: skip
VALUES = (None, True, False, "", "x", "0", "x" * 100_000, "\x1b[31m", "\ud800", "../../etc/passwd", "/dev/zero", [], {}, [[]], [0], [-1],
          [10**12], [1] * 100_000, {"kind": "x"}, {"kind": None}, {"": ""}, [None] * 3, ["x"] * 3, "none", "auto")  # fmt: skip
TEXTS = ("", "null", "[]", "{}", "1", '"a"', "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "[" + "9" * 400 + "]", "[1,", '{"a":1,"a":2}',
         "\ufeff{}", "\0", "NaN", "[" * 150 + "]" * 150, '{"weight_map": {"a": "../outside.safetensors"}}',
         '{"weight_map": {"a": "/dev/zero"}}', '{"weight_map": []}', '{"files": {"/dev/zero": {"bytes": 0, "sha256": ""}}}',
         '{"files": {"../x": {"bytes": 0, "sha256": ""}}}')  # fmt: skip


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int, kinds: tuple[str, ...] = ()) -> Iterator[Case]:
    rng, sources = random.Random(seed), build_sources(artifacts, work / "sources")
    names = list(kinds or sources)
    for number in range(count):
        kind = names[number % len(names)]
        source, copy, out = sources[kind], work / f"case-{number}", work / f"out-{number}"
        shutil.copytree(source if source.is_dir() else source.parent, copy)
        path = copy if source.is_dir() else copy / source.name
        commands = commands_for(kind, path, artifacts, out)
        what = poison(rng, copy)
        seal(rng, copy, kind)
        args = rng.choice(commands)
        yield Case(
            f"{number} {kind} {what}: {' '.join(args)[:200]}",
            args,
            work,
            statuses=frozenset({0, 1, 2} if args[0] == "doctor" else {0, 2}),
            timeout=60,
            max_memory=MAX_MEMORY,
            check=lambda outcome, copy=copy, out=out: _clean(copy, out),
        )


def seal(rng: random.Random, folder: Path, kind: str) -> None:
    """Write a manifest that fits, which a corpus must have, or remove it."""
    for manifest in [folder / "manifest.json", *folder.rglob("step-*/manifest.json")]:
        if not os.path.lexists(manifest) or not manifest.is_file():
            continue
        if kind != "corpus" and rng.random() < 0.5:
            manifest.unlink()
            continue
        names = [path for path in manifest.parent.rglob("*") if path.is_file() and path.name != "manifest.json"]
        if all(path.stat().st_size < 1 << 24 for path in names):
            with suppress(ValueError, OSError):
                write_manifest(manifest.parent)


def poison(rng: random.Random, folder: Path) -> str:
    """Change one file of a folder; what was done."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(paths)
    name = path.relative_to(folder).as_posix()
    changes = (
        [replace_by_kind, replace_by_text, grow]
        if rng.random() < 0.25
        else list(CHANGES.get(path.name) or CHANGES.get(path.suffix, [flip_numbers]))
    )
    change = rng.choice(changes)
    try:
        what = change(rng, path)
    except (ValueError, KeyError, IndexError, RecursionError):  # a file of another kind than its suffix says
        what = replace_by_kind(rng, path)
    return f"{name} {change.__name__} {what[:80]}"


def replace_by_kind(rng: random.Random, path: Path) -> str:
    """Something else in its place."""
    path.unlink()
    kind = rng.choice(
        (
            "pipe",
            "/dev/zero",
            "/dev/urandom",
            "/dev/full",
            "/dev/tty",
            "/proc/self/mem",
            "folder",
            "socket",
            "loop",
            "absent",
            "self",
        )
    )
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server, suppress(OSError):  # a name of at most 107 bytes
            server.bind(str(path))
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "absent":
        path.symlink_to("nothing")
    elif kind == "self":
        path.symlink_to(path.parent)
    else:
        path.symlink_to(kind)
    return kind


def replace_by_text(rng: random.Random, path: Path) -> str:
    text = rng.choice(TEXTS)
    path.write_bytes(text.encode())
    return repr(text[:40])


def grow(rng: random.Random, path: Path) -> str:
    """A sparse file of a tebibyte, with the bytes of the old one first or none."""
    size = rng.choice((1 << 33, 1 << 40))
    with path.open("r+b" if rng.random() < 0.5 else "wb") as file:
        file.truncate(size)
    return f"{size:,} bytes"


def change_json(rng: random.Random, path: Path) -> str:
    """One value replaced, removed, renamed or wrapped."""
    value = json.loads(path.read_bytes())
    what = change_value(rng, value)
    path.write_text(json.dumps(value), encoding="utf-8")
    return what


def change_value(rng: random.Random, value: Any) -> str:
    places = list(iterate_places(value))
    numbers = [place for place in places if type(place[0][place[1]]) in (int, float)]
    parent, key = rng.choice(numbers if numbers and rng.random() < 0.5 else places)
    kind = rng.randrange(8)
    if kind == 0 and isinstance(parent, dict):
        del parent[key]
        return f"{key} removed"
    if kind == 1 and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
        return f"{key} renamed"
    if kind == 2:
        for _ in range(rng.choice((1, 50, 900))):
            parent[key] = [parent[key]] if rng.random() < 0.5 else {"a": parent[key]}
        return f"{key} wrapped"
    parent[key] = rng.choice(NUMBERS if rng.random() < 0.6 else VALUES)
    return f"{key} = {str(parent[key])[:40]}"


def iterate_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of at most some thousand values."""
    stack, count = [value], 0
    while stack and count < 4000:
        item = stack.pop()
        for key in list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ():
            yield item, key
            count += 1
            stack.append(item[key])


def change_lines(rng: random.Random, path: Path) -> str:
    """One JSON line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    index = rng.randrange(len(lines))
    value = [json.loads(lines[index])]
    what = change_value(rng, value)
    lines[index] = rng.choice((json.dumps(value[0]), rng.choice(TEXTS))) if rng.random() < 0.3 else json.dumps(value[0])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return f"line {index + 1}: {what}"


def change_header(rng: random.Random, path: Path) -> str:
    """The header of safetensors, with the same data behind it."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    kind = rng.randrange(4)
    if kind == 0:
        size = rng.choice((0, 1, size - 1, size + 1, len(data), 10**8, 2**63, 2**64 - 1))
        path.write_bytes(size.to_bytes(8, "little") + data[8:])
        return f"header of {size:,} bytes"
    name = rng.choice([name for name in header if name != "__metadata__"])
    if kind == 1:
        header[f"x{name}"] = header.pop(name)
        what = f"{name} renamed"
    elif kind == 2:
        count = int(np.prod(header[name]["shape"]))
        header[name]["shape"] = rng.choice(([count], [1, count], [count, 1], [], [2**40, 2**40], [10**12], [-1], [0]))
        what = f"{name} of shape {header[name]['shape']}"
    else:
        what = change_value(rng, header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    return what


def change_npy(rng: random.Random, path: Path) -> str:
    """The header of .npy, with the same data behind it."""
    data = path.read_bytes()
    size = int.from_bytes(data[8:10], "little")
    shape = rng.choice(("(1000000000000, 4)", "(3, 1000000000000)", "()", "(3,)", "(-3, -4)", "(12, 1, 1)", "(0, 4)", "[3, 4]", "x" * 9000,
                        "(" * 5000, "(3, 4)"))  # fmt: skip
    dtype = rng.choice(
        ("'<f4'", "'|O'", "'<f8'", "'<i4'", "'<c8'", "'|V0'", "'<U1000000'", "[('a', '<f4')]", "'nothing'", "'<f2'")
    )
    header = f"{{'descr': {dtype}, 'fortran_order': {rng.choice(('False', 'True', '1'))}, 'shape': {shape}, }}\n".encode()
    path.write_bytes(data[:8] + (len(header) & 65535).to_bytes(2, "little") + header + data[10 + size :])
    return f"{dtype} {shape[:30]}"


def change_hdf5(rng: random.Random, path: Path) -> str:
    """One dataset replaced by something else."""
    import h5py

    names: list[str] = []
    with h5py.File(path, "r+") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name, kind = rng.choice(names), rng.randrange(8)
        shape = file[name].shape
        del file[name]
        if kind == 0:
            file.create_dataset(name, (2**30, 2**10), "f4", chunks=(1024, 1024))
        elif kind == 1:
            file[name] = h5py.ExternalLink("/dev/zero", "/a")
        elif kind == 2:
            file[name] = h5py.SoftLink(f"/{name}")
        elif kind == 3:
            file.create_group(name)
        elif kind == 4:
            file[name] = np.ones(shape, rng.choice(("i4", "f8", "S3", "c8")))
        elif kind == 5:
            file[name] = np.ones(rng.choice(((), (0,), (1,), (1, 1), (1, 1, 1, 1), (*shape, 1), shape[::-1])), "f4")
        elif kind == 6:
            file.create_dataset(name, shape, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
        return f"{name} {kind}"


def change_pickle(rng: random.Random, path: Path) -> str:
    """A .bin with other values, or tensors that share or repeat their memory."""
    weights = torch.load(path, weights_only=True)
    name, kind = rng.choice(sorted(weights)), rng.randrange(6)
    if kind == 0:
        weights[name] = torch.ones(1).expand(2**20, 2**20)
    elif kind == 1:
        weights |= {f"x{number}": weights[name].expand(1000, *weights[name].shape) for number in range(100)}
    elif kind == 2:
        weights[name] = rng.choice(
            (None, "text", [1], {"a": 1}, 5, torch.ones(3, dtype=torch.complex64), torch.ones(2).to_sparse())
        )
    elif kind == 3:
        weights = rng.choice(([1], "text", None, 5))
    elif kind == 4:
        weights[rng.choice((1, None, ("a",)))] = weights[name]
    else:
        weights[name] = weights[name].to(rng.choice((torch.int64, torch.float16, torch.bool, torch.float64)))
    torch.save(weights, path)
    return f"{name} {kind}"


def change_words(rng: random.Random, path: Path) -> str:
    """Lines of a text: a header that lies, duplicates, blanks, long ones."""
    lines = path.read_bytes().split(b"\n")
    index = 0 if rng.random() < 0.4 else rng.randrange(len(lines))
    lines[index] = rng.choice((
        b"", b" ", b"1000000000000 4", b"3 1000000000000", b"3 0", b"-3 -4", b"999999999999999999 999999999999999999", b"9" * 5000,
        b"x" * 1_000_000, b"\xff", b"\0", b"the nan inf 1 1", b"the 1e999 1 1 1", lines[-2], b"a = [" + b"[" * 50_000, b"a." * 3000 + b"b = 1",
        b"workers = 4611686018427387904", b"[[[[a]]]]", b"a 1 2 3 4 5 6",
    ))  # fmt: skip
    path.write_bytes(b"\n".join(lines))
    return f"line {index + 1}: {lines[index][:30]!r}"


def flip_numbers(rng: random.Random, path: Path) -> str:
    """Some bytes of a binary file replaced by extreme ones."""
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 4, 40))):
        position = rng.randrange(max(1, len(data)))
        data[position : position + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, b"\x7f" * 8, rng.randbytes(8)))[
            : len(data) - position
        ]
    path.write_bytes(data)
    return "bytes"


Change = Callable[[random.Random, Path], str]
CHANGES: dict[str, tuple[Change, ...]] = {
    ".json": (change_json,), ".jsonl": (change_lines,), ".safetensors": (change_header, change_header, flip_numbers),
    ".npy": (change_npy,), ".hdf5": (change_hdf5, change_hdf5, flip_numbers), "pytorch_model.bin": (change_pickle, flip_numbers),
    "vectors.bin": (change_words, flip_numbers),
    ".txt": (change_words,), ".toml": (change_words,),
}  # fmt: skip


def _clean(copy: Path, out: Path) -> list[str]:
    for item in (copy, out, out.with_name(out.name + ".html"), out.with_name(out.name + ".txt")):
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        elif os.path.lexists(item):
            item.unlink()
    return []
