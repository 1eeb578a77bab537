"""Sentence embeddings as they come: similarity of pairs and retrieval, of any models, with BM25 beside them.

python -m benchmarks embeddings suite=FILE.toml models=mini-en-embed,mini-en,FOLDER,bm25 [cases=a,b] [dimensions=64,128]
                                [queries=2000] [out=results.jsonl]

A table of the suite names a file, relative to it: of pairs with scores (Spearman correlation of the cosine, times 100), or in
SQuAD's JSON format (`kind = "retrieval"`), where each answerable question searches for its paragraph among those of the file
(nDCG@10 and MRR@10, times 100). A model is a shipped name or a folder that `bertsmith.load` opens, as the mean of its word
vectors if it is a table of those.
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

import bertsmith
from bertsmith.config import Config, from_dict
from bertsmith.metrics.scores import spearman
from bertsmith.tasks import QuestionAnswering, TextSimilarity
from bertsmith.tasks.question_answering import QuestionAnsweringExample
from bertsmith.tasks.similarity import SimilarityExample, cosine_similarity, semantic_search

from .inputs import BenchmarkInputs

Row = tuple[str, str, str, str, str]
Scores = dict[int | None, dict[str, float]]  # by size to which vectors are truncated; None: whole
TOP_K = 10
K1, B = 0.9, 0.4  # of BM25, as in Anserini


class Case(Config, frozen=True):
    """A table of the suite."""

    file: Annotated[str, "pairs with scores, or SQuAD JSON"]
    kind: Annotated[Literal["similarity", "retrieval"], "what is measured"] = "similarity"
    columns: Annotated[dict[str, str], "columns of text, text_b and score"] = msgspec.field(default_factory=dict)


def run(bench: BenchmarkInputs) -> list[Row]:
    suite = Path(bench.options["suite"])
    tables = tomllib.loads(suite.read_text(encoding="utf-8"))
    names = bench.options["cases"].split(",") if "cases" in bench.options else list(tables)
    sizes = [int(size) for size in bench.options.get("dimensions", "").split(",") if size]
    rows: list[Row] = []
    for model_name in bench.options["models"].split(","):
        model = None if model_name == "bm25" else bertsmith.load(model_name)
        for name in names:
            case = from_dict(Case, tables[name], f"{suite}, {name}")
            measure = measure_similarity if case.kind == "similarity" else measure_retrieval
            for size, scores in measure(
                model, suite.parent / case.file, case, sizes, bench.int_option("queries", 2000)
            ).items():
                rows.append(_report(bench, name, model_name, size, scores))
    return rows


def _report(bench: BenchmarkInputs, name: str, model: str, size: int | None, scores: dict[str, float]) -> Row:
    result = {"case": name, "model": Path(model).name, "dimensions": size, **scores}
    print(json.dumps(result), flush=True)
    if "out" in bench.options:
        with Path(bench.options["out"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    label = f"{name}, {Path(model).name}" + (f", {size} dimensions" if size else "")
    return label, ", ".join(f"{metric} {value:.1f}" for metric, value in scores.items()), "", "", ""


def measure_similarity(model: Any, path: Path, case: Case, sizes: Sequence[int], max_queries: int) -> Scores:
    """Spearman correlation of cosines and scores; of BM25, of the score of the second text for the first."""
    examples = [
        example for example in TextSimilarity(columns=case.columns).read(path) if isinstance(example, SimilarityExample)
    ]
    first, second = [example.text for example in examples], [str(example.text_b) for example in examples]
    gold = np.array([example.score for example in examples], float)
    if model is None:
        index = BM25(second)
        cosines = {None: np.array([index.score(text)[i] for i, text in enumerate(first)])}
    else:
        vectors = model.embed(first), model.embed(second)
        cosines = {size: cosine_similarity(*(side[:, :size] for side in vectors)) for size in (None, *sizes)}
    return {size: {"spearman": 100 * float(spearman(values, gold))} for size, values in cosines.items()}


def measure_retrieval(model: Any, path: Path, case: Case, sizes: Sequence[int], max_queries: int) -> Scores:
    """nDCG@10 and MRR@10 of the paragraph of each question, one relevant paragraph each."""
    rows = QuestionAnswering(no_answer=True).read(path)
    examples = [example for example in rows if isinstance(example, QuestionAnsweringExample) and example.answers]
    numbers = {context: i for i, context in enumerate(dict.fromkeys(example.context for example in examples))}
    documents, order = list(numbers), np.random.default_rng(0).permutation(len(examples))[:max_queries]
    texts = [examples[i].question for i in order]
    relevant = np.array([numbers[examples[i].context] for i in order])
    if model is None:
        index = BM25(documents)
        found = {None: np.stack([np.argsort(-index.score(text), kind="stable")[:TOP_K] for text in texts])}
    else:
        query, passage = model.search_prompts
        vectors = model.embed(texts, prompt_name=query), model.embed(documents, prompt_name=passage)
        found = {size: semantic_search(*(side[:, :size] for side in vectors), TOP_K)[0] for size in (None, *sizes)}
    return {size: rank_scores(rows, relevant) for size, rows in found.items()}


def rank_scores(found: NDArray[np.int64], relevant: NDArray[np.int64]) -> dict[str, float]:
    """nDCG@10 and MRR@10 times 100, of (queries, 10) documents found and the one that is relevant to each query."""
    is_hit = found == relevant[:, None]
    ranks = np.arange(1, found.shape[1] + 1)
    ndcg, mrr = (is_hit / np.log2(ranks + 1)).sum(1), (is_hit / ranks).sum(1)
    return {"nDCG@10": 100 * float(ndcg.mean()), "MRR@10": 100 * float(mrr.mean())}


class BM25:
    """Okapi BM25 (Robertson et al. 1994) over lower-cased words; Han characters are split into characters and bigrams."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(split_words(text)) for text in documents]
        self.lengths = np.array([sum(count.values()) for count in counts], float)
        postings: dict[str, list[tuple[int, int]]] = {}
        for i, count in enumerate(counts):
            for word, frequency in count.items():
                postings.setdefault(word, []).append((i, frequency))
        self.postings = {word: np.array(rows).T for word, rows in postings.items()}  # documents, and frequencies in them

    def score(self, query: str) -> NDArray[np.float64]:
        """(documents,): sum over words of idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / mean length))."""
        scores, norm = np.zeros(len(self.lengths)), K1 * (1 - B + B * self.lengths / self.lengths.mean())
        for word in split_words(query):
            if word in self.postings:
                documents, frequencies = self.postings[word]
                idf = np.log(1 + (len(scores) - len(documents) + 0.5) / (len(documents) + 0.5))
                scores[documents] += idf * frequencies * (K1 + 1) / (frequencies + norm[documents])
        return scores


def split_words(text: str) -> list[str]:
    words = list[str]()
    for part in re.findall(r"[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+", text.lower()):
        is_han = "\u4e00" <= part[0] <= "\u9fff"
        words += [*part, *(part[i : i + 2] for i in range(len(part) - 1))] if is_han else [part]
    return words
