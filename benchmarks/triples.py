"""Training triples of mini-en-embed: a text, one that follows from it, and a hard negative, from labelled pairs and questions.

python -m benchmarks.triples OUT.jsonl [nli=FILE,FILE] [squad=FILE] [seed=0]

nli: files with the columns text_a, text_b and label (entailment, neutral, contradiction), as SNLI's and MNLI's. A premise, what
it entails, and what contradicts it; where only one of the two is known, the premise itself is the positive, or a text that
shares words with the premise the negative. squad: SQuAD JSON; a question, the sentence of its answer, another sentence of the
paragraph. Texts of more than `MAX_WORDS` words are left out.
"""

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bertsmith.tasks import QuestionAnswering, TextClassification
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.question_answering import QuestionAnsweringExample
from bertsmith.tokenization.sentences import split_sentences

from .embeddings import BM25, split_words

Triple = tuple[str, str, str]
MAX_WORDS = 22
NEAREST = 5  # texts by BM25 of which one is the hard negative
COLUMNS = {"text": "text_a", "text_b": "text_b", "label": "label"}


def pair_inferences(files: Sequence[Path], rng: random.Random) -> Iterator[Triple]:
    """Triples of natural language inference."""
    by_premise: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        for example in TextClassification(columns=COLUMNS).read(file):
            if isinstance(example, ClassificationExample):
                by_premise[example.text][str(example.label)].append(str(example.text_b))
    alone = list[tuple[str, str]]()
    for premise, hypotheses in by_premise.items():
        entailed, contradicting = hypotheses["entailment"], hypotheses["contradiction"]
        yield from ((premise, *pair) for pair in zip(entailed, contradicting, strict=False))
        yield from ((premise, premise, text) for text in contradicting[len(entailed) :])
        alone += [(premise, text) for text in entailed[len(contradicting) :]]
    texts = list(dict.fromkeys(text for _, text in alone))
    index = BM25(texts) if texts else None
    for premise, text in alone:
        if index is not None and (negative := choose_near(index, texts, premise, text, rng)):
            yield premise, text, negative


def choose_near(index: BM25, texts: Sequence[str], premise: str, positive: str, rng: random.Random) -> str | None:
    """One of the texts that share most words with the premise, but is no part of it."""
    order = np.argsort(-index.score(premise), kind="stable")[: NEAREST + 1]
    near = [texts[i] for i in order if texts[i] != positive and texts[i] not in premise]
    return rng.choice(near[:NEAREST]) if near else None


def pair_questions(file: Path, rng: random.Random) -> Iterator[Triple]:
    """Triples of questions and the sentences of their paragraphs."""
    for example in QuestionAnswering(no_answer=True).read(file):
        if not isinstance(example, QuestionAnsweringExample) or not example.answers:
            continue
        answer, sentences = example.answers[0], split_sentences(example.context)
        found = next((sentence for sentence in sentences if answer in sentence), None)
        others = [sentence for sentence in sentences if sentence != found]
        if found and others:
            yield example.question, found, rng.choice(others)


def main(arguments: Sequence[str]) -> int:
    """Write the triples, shuffled; returns their number."""
    options = dict(argument.split("=", 1) for argument in arguments[1:])
    rng = random.Random(int(options.get("seed", "0")))
    triples = list(pair_inferences([Path(name) for name in options.get("nli", "").split(",") if name], rng))
    if "squad" in options:
        triples += pair_questions(Path(options["squad"]), rng)
    triples = [triple for triple in triples if max(len(split_words(text)) for text in triple) <= MAX_WORDS]
    rng.shuffle(triples)
    with Path(arguments[0]).open("w", encoding="utf-8") as out:
        for text, positive, negative in triples:
            out.write(json.dumps({"text": text, "text_b": positive, "negative": negative}, ensure_ascii=False) + "\n")
    return len(triples)


if __name__ == "__main__":
    print(f"{main(sys.argv[1:]):,} triples")
