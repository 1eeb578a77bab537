"""Files are opened by `reading`, or by a module that is listed here with the reason."""

import ast
from pathlib import Path

import bertsmith

ROOT = Path(bertsmith.__file__).parent
READS = {"open", "read_text", "read_bytes", "load_file", "safe_open", "memmap", "fromfile", "open_memmap"}
WRITTEN_BY_US = "reads only what the same command has just written"
OUR_SOURCE = "reads the files of the package"
SYSTEM = "reads files of the system"
EXCEPTIONS = {
    "reading": "the reader",
    "writing": "opens files to write them",
    "tokenization.files": "texts and task files, which may be streams",
    "tokenization.tokenizer": "decompresses what the reader has read",
    "tensors": "after `read_tensor_headers`",
    "model.folder": "after `read_tensor_headers`",
    "cores": SYSTEM, "planning.machines": SYSTEM, "inference.engines.choice": SYSTEM, "cli": SYSTEM,
    "codegen": OUR_SOURCE, "schema": OUR_SOURCE, "reference": OUR_SOURCE, "pretrained": OUR_SOURCE,
    "convert.huggingface.custom_code": OUR_SOURCE,
    "quickstart": WRITTEN_BY_US, "commands.predict": WRITTEN_BY_US, "convert.onnx.external_data": WRITTEN_BY_US,
    "compression.quantization.run": "`open` of a quantized model starts an engine",
    "corpus.build": WRITTEN_BY_US, "corpus.card": WRITTEN_BY_US, "corpus.dedup": WRITTEN_BY_US,
    "corpus.cooccurrence": WRITTEN_BY_US, "inference.output_files": WRITTEN_BY_US, "tokenization.word_counts": WRITTEN_BY_US,
    "tokenization.rows": WRITTEN_BY_US, "train.logging": WRITTEN_BY_US,
}  # fmt: skip


def find_reads(source: str) -> list[str]:
    """Calls that open or read a file by its path, except os.open, Corpus.open and the reader's own functions."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            is_read = node.func.attr in READS and owner not in ("os", "Corpus", "webbrowser")
            names += [f"{owner}.{node.func.attr}"] if is_read or (owner, node.func.attr) == ("np", "load") else []
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in READS - {"read_text", "read_bytes"}
        ):
            names.append(node.func.id)
    return names


def test_every_module_reads_through_the_reader():
    offenders = {}
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        is_exception = any(module == name or module.startswith(f"{name}.") for name in EXCEPTIONS)
        if not is_exception and (reads := find_reads(path.read_text(encoding="utf-8"))):
            offenders[module] = reads
    assert not offenders, f"use bertsmith.reading, or add the module to EXCEPTIONS with the reason: {offenders}"


def test_reads_are_found():
    source = (
        "open(p)\np.open()\np.read_text()\nnp.load(p)\nnp.memmap(p)\nload_file(p)\nos.open(p)\nread_bytes(p, 1)\njson.loads(t)"
    )
    assert find_reads(source) == ["open", "p.open", "p.read_text", "np.load", "np.memmap", "load_file"]
