"""Writes what `make test-interop` opens elsewhere: exported folders, and `expected.json` with our answers for each.

    python -m tests.interop.write FOLDER

The models are fine-tuned from mini-en and a small ModernBERT on a few random rows: what counts is that others compute the same.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import bertsmith
from bertsmith.config import to_dict
from bertsmith.model import checkpoint
from bertsmith.model.heads.embedding import EMBEDDING_HEAD, DenseConfig, EmbeddingHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.presets import modernbert
from bertsmith.tasks import TextClassification, TextSimilarity
from bertsmith.tasks.requests import parse_requests
from tests.support.rows import classification_row, multiple_choice_row, squad_paragraph, tagging_row, write_jsonl

TEXTS = ["Paris is a city in France.", "The people made a way, and then they saw it.", "water", "one " * 200]
CONTEXT = "John went to Paris in 1889, where he saw the tower that Eiffel had built."
WORDS = "john saw mary in paris and went to berlin"
TRAIN = {"steps": 20, "device": "cpu", "learning_rate": 1e-4}


def main(folder: Path) -> None:
    """One exported folder and one entry of expected.json for each case."""
    folder.mkdir(parents=True)
    cases = [write_case(folder) for write_case in (fill, fill_chinese, classify, classify_natively, tag, answer, choose, embed)]
    (folder / "expected.json").write_text(json.dumps(cases, indent=1), encoding="utf-8")


def fill(folder: Path, model: str = "mini-en", text: str = "Paris is the [MASK] of France.") -> dict[str, Any]:
    rows = bertsmith.load(model, precision="fp32").fill(text, top_k=5)
    return export(folder, f"fill {model}", "fill-mask", model, text=text, tokens=[row["token"] for row in rows],
                  probabilities=[row["score"] for row in rows])  # fmt: skip


def fill_chinese(folder: Path) -> dict[str, Any]:
    return fill(folder, "mini-zh", "北京是中国的[MASK]都。")


def classify(folder: Path) -> dict[str, Any]:
    """Fine-tuned from mini-en, with a temperature."""
    tuned = finetune(folder, "classify", [classification_row(np.random.default_rng(i)) for i in range(64)])
    tuned.task = msgspec.structs.replace(tuned.task, temperature=1.5)
    return export_classifier(folder, "classify", tuned)


def classify_natively(folder: Path) -> dict[str, Any]:
    """A small ModernBERT, whose mean of token vectors is read: no code beside it."""
    encoder = msgspec.structs.replace(modernbert(4, 128, 192), pooling="mean", initializer_range=0.1)
    tokenizer = bertsmith.load("mini-en").tokenizer
    task = TextClassification(labels=("bad", "good", "mixed"), temperature=0.7)
    heads = {"task": {"kind": "sequence-classification", "outputs": 3}}
    config = msgspec.convert({"encoder": to_dict(encoder), "vocab_size": len(tokenizer), "heads": heads}, ModelConfig)
    checkpoint.save(folder / "modernbert", build_model(config, 0), tokenizer, {}, {"task": to_dict(task), "max_length": 128})
    return export_classifier(folder, "classify ModernBERT", bertsmith.load(folder / "modernbert", precision="fp32"))


def tag(folder: Path) -> dict[str, Any]:
    tuned = finetune(folder, "tag", [tagging_row(np.random.default_rng(i)) for i in range(64)])
    examples, _ = parse_requests(tuned.require_task(), [{"tokens": WORDS.split()}], None, {})
    logits = tuned.compute_outputs(tuned.require_task().encode(examples, tuned.tokenizer, tuned.max_length))[0]
    return export_tuned(folder, "tag", "token-classification", tuned, text=WORDS, labels=list(tuned.labels),
                        probabilities=softmax(logits).tolist())  # fmt: skip


def answer(folder: Path) -> dict[str, Any]:
    paragraphs = [squad_paragraph(np.random.default_rng(i), i) for i in range(32)]
    data = folder / "squad.json"
    data.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    tuned = finetune(folder, "answer", None, data)
    question = "Where did John go?"
    examples, _ = parse_requests(tuned.require_task(), [{"question": question, "context": CONTEXT}], None, {})
    logits = tuned.compute_outputs(tuned.require_task().encode(examples, tuned.tokenizer, tuned.max_length))[0]
    return export_tuned(folder, "answer", "question-answering", tuned, question=question, context=CONTEXT,
                        answer=tuned(question=question, context=CONTEXT)["answer"],
                        probabilities=softmax(logits.T).tolist())  # fmt: skip


def choose(folder: Path) -> dict[str, Any]:
    rows = [multiple_choice_row(np.random.default_rng(i)) for i in range(32)]
    tuned = finetune(folder, "choose", rows)
    row = rows[0]
    return export_tuned(folder, "choose", "multiple-choice", tuned, context=row["context"], options=row["options"],
                        probabilities=list(tuned(context=row["context"], options=row["options"])["scores"]))  # fmt: skip


def embed(folder: Path) -> dict[str, Any]:
    """mini-en's encoder with prompts, two dense layers and normalization."""
    base = bertsmith.load("mini-en", precision="fp32")
    dense = EmbeddingHeadConfig(layers=(DenseConfig(out_features=256), DenseConfig(out_features=128, activation="none")))
    config = msgspec.structs.replace(base.engine.as_torch().model.config, heads={EMBEDDING_HEAD: dense})
    model = build_model(config, 0)
    model.encoder.load_state_dict(base.engine.as_torch().model.encoder.state_dict())
    task = TextSimilarity(normalize=True, prompts={"query": "query: ", "document": ""}, default_prompt_name="document")
    checkpoint.save(folder / "embed", model, base.tokenizer, {}, {"task": to_dict(task), "max_length": 64})
    ours = bertsmith.load(folder / "embed", precision="fp32")
    return export_tuned(folder, "embed", "sentence-similarity", ours, texts=TEXTS, vectors=ours.embed(TEXTS).tolist(),
                        query_vectors=ours.embed(TEXTS, prompt_name="query").tolist())  # fmt: skip


def finetune(folder: Path, task: str, rows: list[dict[str, Any]] | None, data: Path | None = None) -> Any:
    """mini-en after a few steps on the rows."""
    data = data or write_jsonl(folder / f"{task}.jsonl", rows)
    out = folder / f"tuned-{task}"
    bertsmith.finetune(task=task, model="mini-en", data={"train": str(data), "dev": str(data)}, out=str(out), train=TRAIN)
    return bertsmith.load(out, precision="fp32")


def export_classifier(folder: Path, name: str, tuned: Any) -> dict[str, Any]:
    answers = tuned(TEXTS)
    return export_tuned(folder, name, "text-classification", tuned, texts=TEXTS, labels=list(tuned.labels),
                        probabilities=[[row["scores"][label] for label in tuned.labels] for row in answers],
                        max_length=tuned.max_length)  # fmt: skip


def export_tuned(folder: Path, name: str, kind: str, model: Any, **expected: Any) -> dict[str, Any]:
    return export(folder, name, kind, str(model.save(folder / f"{name.replace(' ', '-')}-model")), **expected)


def export(folder: Path, name: str, kind: str, model: str, **expected: Any) -> dict[str, Any]:
    """The exported folder, and what is expected of it."""
    out = folder / f"{name.replace(' ', '-')}-hf"
    result = bertsmith.export(model=model, out=str(out), format="hf")
    return {"name": name, "kind": kind, "folder": out.name, "class": result["class"], **expected}


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
