"""Opens the folders of `write.py` with transformers and sentence-transformers alone, and compares their answers with ours.

    python tests/interop/check.py FOLDER

Run in an environment without bertsmith. Prints the largest difference of each case; exits 1 if one is above TOLERANCE.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

TOLERANCE = 1e-5


def main(folder: Path) -> int:
    assert "bertsmith" not in sys.modules
    import sentence_transformers

    print(f"transformers {transformers.__version__}, sentence-transformers {sentence_transformers.__version__}, "
          f"torch {torch.__version__}")  # fmt: skip
    transformers.utils.logging.set_verbosity_error()
    failed = []
    for case in json.loads((folder / "expected.json").read_text(encoding="utf-8")):
        check = CHECKS[case["kind"]]
        with torch.inference_mode():
            answer, difference = check(str(folder / case["folder"]), case)
        failed += [case["name"]] * (not difference <= TOLERANCE)
        print(f"{case['name']:22} {case['class']:40} {difference:.1e}  {answer}")
    print(f"above {TOLERANCE:g}: {', '.join(failed)}" if failed else f"all within {TOLERANCE:g}")
    return int(bool(failed))


def check_fill(folder: str, case: dict[str, Any]) -> tuple[str, float]:
    """The pipeline's tokens and probabilities for a mask."""
    pipe = transformers.pipeline("fill-mask", folder, trust_remote_code=True, device="cpu")
    rows = pipe(case["text"], top_k=len(case["tokens"]))
    assert [row["token"] for row in rows] == case["tokens"], (rows, case["tokens"])
    return rows[0]["sequence"], largest_difference([row["score"] for row in rows], case["probabilities"])


def check_classify(folder: str, case: dict[str, Any]) -> tuple[str, float]:
    """Calibrated probabilities of a batch of texts, the longest truncated."""
    model, tokenizer = load(folder, "AutoModelForSequenceClassification")
    assert [model.config.id2label[i] for i in range(len(case["labels"]))] == case["labels"]
    inputs = tokenizer(case["texts"], padding=True, truncation=True, max_length=case["max_length"], return_tensors="pt")
    probs = model(**inputs).logits.softmax(-1).numpy()
    return case["labels"][probs[0].argmax()], largest_difference(probs, case["probabilities"])


def check_tag(folder: str, case: dict[str, Any]) -> tuple[str, float]:
    """The entities that the pipeline groups, and the probabilities of every token's tags."""
    model, tokenizer = load(folder, "AutoModelForTokenClassification")
    probs = model(**tokenizer(case["text"], return_tensors="pt")).logits[0].softmax(-1).numpy()
    pipe = transformers.pipeline("token-classification", folder, trust_remote_code=True, device="cpu")
    entities = [(row["entity_group"], row["word"]) for row in _group(pipe, case["text"])]
    return str(entities), largest_difference(probs, case["probabilities"])


def _group(pipe: Any, text: str) -> list[dict[str, Any]]:
    return pipe(text, aggregation_strategy="simple")


def check_answer(folder: str, case: dict[str, Any]) -> tuple[str, float]:
    """The answer between the best start and end, and their probabilities over all tokens."""
    model, tokenizer = load(folder, "AutoModelForQuestionAnswering")
    inputs = tokenizer(case["question"], case["context"], return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    outputs = model(**inputs)
    logits = torch.stack([outputs.start_logits[0], outputs.end_logits[0]])
    in_context = torch.tensor([part == 1 for part in inputs.sequence_ids(0)])
    scores = logits[0][:, None] + logits[1][None]
    legal = in_context[:, None] & in_context[None] & (torch.ones_like(scores).triu() - torch.ones_like(scores).triu(30)).bool()
    start, end = divmod(int(scores.masked_fill(~legal, float("-inf")).argmax()), len(scores))
    answer = case["context"][offsets[start][0] : offsets[end][1]]
    assert answer == case["answer"], (answer, case["answer"])
    return answer, largest_difference(logits.softmax(-1).numpy(), case["probabilities"])


def check_choose(folder: str, case: dict[str, Any]) -> tuple[str, float]:
    model, tokenizer = load(folder, "AutoModelForMultipleChoice")
    contexts = [case["context"]] * len(case["options"])
    inputs = tokenizer(contexts, case["options"], padding=True, return_tensors="pt")
    probs = model(**{name: values[None] for name, values in inputs.items()}).logits[0].softmax(-1).numpy()
    return case["options"][probs.argmax()], largest_difference(probs, case["probabilities"])


def check_embed(folder: str, case: dict[str, Any]) -> tuple[str, float]:
    """Vectors of documents and of queries, whose prompt is another."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    pairs = [(model.encode(case["texts"]), case["vectors"]), (model.encode_query(case["texts"]), case["query_vectors"])]
    differences = [largest_difference(*pair) for pair in pairs]
    return f"{pairs[0][0].shape[1]} dimensions", max(differences)


def load(folder: str, auto_class: str) -> tuple[Any, Any]:
    options = {"trust_remote_code": True}
    model = getattr(transformers, auto_class).from_pretrained(folder, **options).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder, **options)


def largest_difference(theirs: Any, ours: Any) -> float:
    theirs, ours = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
    assert theirs.shape == ours.shape, (theirs.shape, ours.shape)
    return float(np.abs(theirs - ours).max())


CHECKS = {
    "fill-mask": check_fill,
    "text-classification": check_classify,
    "token-classification": check_tag,
    "question-answering": check_answer,
    "multiple-choice": check_choose,
    "sentence-similarity": check_embed,
}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
