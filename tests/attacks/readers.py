"""The commands that read each kind of folder or file, and sources in other programs' formats, for `damage` and `folders`."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.attacks.artifacts import Artifacts
from tests.support.cli import run_cli
from tests.support.elmo_files import write_published_files
from tests.support.google_checkpoint import to_google_names, write_checkpoint
from tests.support.texts import VOCAB

FOREIGN = ("elmo", "tensorflow", "bin", "sharded", "vectors.txt", "vectors.bin", "vectors.npy", "vocab.txt", "recipe.toml")


def build_sources(a: Artifacts, root: Path) -> dict[str, Path]:
    """Everything that is read, by kind: our folders, and small sources in each format that `import` takes."""
    root.mkdir(parents=True)
    paths = {name: root / name for name in FOREIGN}
    write_published_files(paths["elmo"])
    _write_tensorflow(a, paths["tensorflow"])
    for name in ("bin", "sharded"):
        shutil.copytree(a.huggingface, paths[name])
        (paths[name] / "manifest.json").unlink()
    weights = load_file(paths["bin"] / "model.safetensors")
    (paths["bin"] / "model.safetensors").unlink()
    torch.save(weights, paths["bin"] / "pytorch_model.bin")
    _shard(paths["sharded"])
    words, matrix = ["the", "of", "and"], np.arange(12, dtype=np.float32).reshape(3, 4)
    rows = [f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, matrix, strict=True)]
    paths["vectors.txt"].write_text("3 4\n" + "".join(rows))
    paths["vectors.bin"].write_bytes(
        b"3 4\n" + b"".join(word.encode() + b" " + row.tobytes() for word, row in zip(words, matrix, strict=True))
    )
    (root / "npy").mkdir()
    paths["vectors.npy"] = root / "npy" / "vectors.npy"
    np.save(paths["vectors.npy"], matrix)
    paths["vectors.npy"].with_suffix(".words.txt").write_text("".join(f"{word}\n" for word in words))
    (root / "vocab").mkdir()
    paths["vocab.txt"] = root / "vocab" / "vocab.txt"
    paths["vocab.txt"].write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    (root / "recipe").mkdir()
    paths["recipe.toml"] = root / "recipe" / "recipe.toml"
    paths["recipe.toml"].write_text(f'texts = "{a.text}"\nworkers = 1\n')
    return a.folders | paths


def commands_for(kind: str, path: Path, a: Artifacts, out: Path) -> list[list[str]]:
    """Commands that read a source of this kind; `out` does not exist yet."""
    device, small = "device=cpu", ["max_length=32", "train.steps=1", "train.batch_tokens=256", "train.device=cpu", "--quiet"]
    prepare = ["prepare", f"texts={a.text}", "workers=1", f"out={out}", "--quiet"]
    commands = {
        "tokenizer": [[*prepare, f"tokenizer={path}"], ["tokenizer", f"texts={a.rows}", f"extend={path}", "add=5", "min_frequency=1", f"out={out}"]],
        "corpus": [
            ["pretrain", f"corpus={path}", "model=bert-tiny", "eval_tokens=256", *small, f"out={out}"],
            ["show", "corpus", f"corpus={path}", f"out={out}.html"],
            ["plan", f"corpus={path}", "model=bert-tiny", "train.steps=2"],
            ["doctor", str(path)],
        ],
        "model": [
            ["predict", f"model={path}", "text=the [MASK] of", device],
            ["embed", f"model={path}", "text=the", device],
            ["show", "curves", f"model={path}", f"out={out}.html"],
            ["export", f"model={path}", f"out={out}", "--quiet"],
            ["doctor", str(path)],
            ["convert-long", f"model={path}", "max_length=128", "attention_window=8", f"out={out}"],
        ],
        "unfinished": [["doctor", str(path)], ["show", "curves", f"model={path}", f"out={out}.html"]],
        "classifier": [
            ["predict", f"model={path}", "text=a good film", device],
            ["evaluate", f"model={path}", f"data={a.rows}", device, f"out={out}"],
            ["finetune", "task=classify", f"model={path}", f"data.train={a.rows}", f"data.dev={a.rows}", *small, f"out={out}"],
        ],
        "tagger": [["predict", f"model={path}", "text=Ann lives in Rome", device], ["export", f"model={path}", "format=int8", f"out={out}"]],
        "vectors": [
            ["embed", f"model={path}", "word=the"], ["export", f"model={path}", "format=vectors", f"out={out}.txt"],
            ["predict", f"model={path}", "text=the [MASK] of", device],
        ],
        "vocab.txt": [[*prepare, f"tokenizer={path}"], [*prepare, f"tokenizer={path.parent}"]],
        "recipe.toml": [["prepare", str(path), f"tokenizer={a.tokenizer}", f"out={out}", "--quiet"]],
    }  # fmt: skip
    if kind in commands:
        return commands[kind]
    imported = [["import", f"source={path}", f"out={out}", "--quiet"]]
    return [*imported, ["embed", f"model={path}", "word=the"]] if kind.startswith("vectors.") else imported


def _shard(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write_tensorflow(a: Artifacts, folder: Path) -> None:
    """The pre-trained model as Google would have published it."""
    exported = folder.with_name("exported")
    run_cli("export", f"model={a.model}", f"out={exported}", "--quiet")
    config = json.loads((exported / "config.json").read_text())
    write_checkpoint(folder, to_google_names(load_file(exported / "model.safetensors")), **config)
    shutil.copy(exported / "vocab.txt", folder / "vocab.txt")
