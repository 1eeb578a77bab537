"""Export of a table of token vectors as a folder that model2vec's `StaticModel.from_pretrained` opens."""

from pathlib import Path
from typing import Any

import torch

from ..artifacts import atomic_folder, checksum, read_finished_run
from ..console import Console
from ..errors import UserError
from ..model import checkpoint
from ..tensors import load_tensors, save_tensors
from ..writing import check_writable, lock_output, write_json

WEIGHTS_FILE, TENSOR = "model.safetensors", "embeddings"


def export_model2vec(source: Path, out: Path, console: Console, identity: str) -> dict[str, Any]:
    """Write config.json, modules.json, tokenizer.json and the table, and read the table back to verify it."""
    model, tokenizer, _ = checkpoint.load(source)
    if not model.config.encoder.is_vector_table:
        raise UserError(f"{source} computes its vectors in layers, and model2vec reads a table; make one with "
                       f"`bertsmith distill student=static teacher={source} out=...`")  # fmt: skip
    table = model.encoder.word_embeddings.weight.detach()
    result = {"words": len(table), "vector_size": table.shape[1]}
    with lock_output(out):
        if finished := read_finished_run(out, identity):
            console.info(f"{out} already exists, exported from the same model")
            return {"out": str(out), **finished}
        check_writable(out)
        run: dict[str, Any] = {"identity": identity}
        with atomic_folder(out, run) as staging:
            save_tensors({TENSOR: table.contiguous()}, staging / WEIGHTS_FILE)
            tokenizer.save(staging)
            config = {
                "model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": table.shape[1],
                "seq_length": 1_000_000, "normalize": False, "embedding_dtype": "float32",
            }  # fmt: skip
            write_json(staging / "config.json", config)
            modules = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
            write_json(staging / "modules.json", modules)
            if not torch.equal(load_tensors(staging / WEIGHTS_FILE)[TENSOR], table):
                raise UserError(f"{staging / WEIGHTS_FILE} does not have the vectors that were written; check the disk")
            run["result"] = result | {"sha256": checksum(staging / WEIGHTS_FILE)}
    console.info(f"{out}: {len(table):,} tokens, {table.shape[1]} dimensions")
    return {"out": str(out), **run["result"]}
