"""A folder with a corpus, runs, a race and a compression, for the pages of `bertsmith serve runs=`."""

import json
import random

from bertsmith import api

WORDS = ["the", "a", "small", "large", "cat", "dog", "house", "river", "bank", "sat", "ran", "on", "under", "mat", "and"]
TINY = {"num_hidden_layers": 1, "hidden_size": 16, "max_position_embeddings": 48, "feedforward": {"intermediate_size": 16},
        "mixer": {"kind": "attention", "num_attention_heads": 2}}  # fmt: skip
TRAIN = {"steps": 6, "batch_tokens": 96, "log_every": 1, "eval_every": 3, "device": "cpu"}


def build_workshop(root):
    """Returns the folder of the workshop, `root`/out."""
    rng = random.Random(0)
    documents = [
        "\n".join(" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in range(rng.randint(2, 6))) for _ in range(40)
    ]
    (root / "text.txt").write_text("\n\n".join([*documents, "the <script> cat\nsat & ran"]))
    (root / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "<", ">", "&", "script"]))
    out = root / "out"
    api.prepare(
        texts=[str(root / "text.txt")], tokenizer=str(root / "vocab.txt"), out=str(out / "corpus"), workers=1, quiet=True
    )
    common = {"corpus": str(out / "corpus"), "model": TINY, "validation_split": 0.1, "quiet": True}
    api.pretrain(**common, train=TRAIN, max_length=[24, 48], out=str(out / "bert"))
    api.pretrain(**common, train={**TRAIN, "steps": 2, "gradient_accumulation_steps": 2}, max_length=[32], objective="mlm",
                 seed=7, out=str(out / "group" / "roberta"))  # fmt: skip
    scores = {mode: {task: {"mean": value, "std": 0.01} for task in ("sst2", "average")}
              for mode, value in (("frozen", 0.6), ("tuned", 0.8))}  # fmt: skip
    members = [{"name": "<b>bert", "parameters": 1e6, "scores": scores, "errors": []},
               {"name": "gpt", "parameters": 2e6, "scores": scores, "errors": ["out of memory"]}]  # fmt: skip
    write(out / "race" / "race.json", {"num_pending": 2, "members": members})
    artifact = {"name": "3 layers, int8", "folder": "3-int8", "precision": "int8", "kept": 0.98, "bytes": 2e6, "pareto": True,
                "score": {"value": 0.875, "confidence_interval": [0.86, 0.89]}, "latency_p50": 0.004,
                "throughput": 250.0}  # fmt: skip
    write(out / "small" / "front.json", {"metric": "accuracy", "gate": 0.97, "chosen": "3-int8", "artifacts": [artifact]})
    return out


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
