"""The files that the documentation names, small, in the formats it describes."""

import gzip
import json
import lzma
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from tests.support.texts import CHINESE_CHARS, make_chinese_text, make_english_text

ADJECTIVES = {"positive": ["fine", "good", "great", "moving"], "negative": ["bad", "dull", "poor", "slow"]}
NAMES = [("Mary Smith", "PER"), ("John Brown", "PER"), ("Paris", "LOC"), ("Berlin", "LOC"), ("Acme Corp", "ORG")]
CITIES = ["Paris", "Rome", "Berlin", "Madrid", "Vienna"]
SENSES = [("river", "water", "deep"), ("river", "boat", "slow"), ("money", "clerk", "kind"), ("money", "queue", "long")]
PLACE = [("天", "B-LOC"), ("城", "I-LOC"), ("很", "O"), ("大", "O")]
PERSON = [("他", "O"), ("姓", "O"), ("张", "B-PER")]
SEGMENTS = [[("天", "B"), ("地", "E"), ("大", "S")], [("日", "B"), ("月", "M"), ("星", "E")]]
SPECIAL_WORDS = "king queen man woman bank river money deposit once upon time france capital film court contract plaintiff"


def write_sample_data(folder: Path) -> None:
    """Write every input file that a documented command reads."""
    write_texts(folder)
    write_classification(folder)
    write_tagging(folder)
    write_questions(folder)
    write_similarity(folder)
    write_sequences(folder)
    write_word_vectors(folder)
    write_word_senses(folder)
    write_chinese(folder)
    write_race_tasks(folder)


def write_texts(folder: Path) -> None:
    special = "\n".join([SPECIAL_WORDS + "."] * 12)
    for number, name in enumerate(["one", "two"]):
        write(folder / f"books/{name}.txt.gz", f"{make_english_text(80, number)}\n{special}\n")
    write(folder / "english.txt.xz", f"{make_english_text(80, 3)}\n{special}\n")
    write(folder / "valid.txt.xz", make_english_text(10, 4))
    write(folder / "law.txt", "\n\n".join(["The plaintiff shall indemnify the lessee. The court voids the covenant."] * 60))
    write(folder / "texts.txt", make_english_text(10, 5).replace("\n\n", "\n"))
    write(folder / "queries.txt", "one of these\nother people\n")


def write_classification(folder: Path) -> None:
    def sentiment(count: int) -> list[tuple[str, str]]:
        labels = list(ADJECTIVES)
        return [(f"a {ADJECTIVES[labels[i % 2]][i % 4]} film", labels[i % 2]) for i in range(count)]

    for name, count in {"train": 24, "dev": 12, "test": 12}.items():
        write_table(folder / f"{name}.tsv", ("text", "label"), sentiment(count))
        write_table(folder / f"law/{name}.tsv", ("text", "label"), sentiment(count))
        pairs = [
            (f"She is in {CITIES[i % 5]}.", f"He was in {CITIES[(i + i % 2) % 5]}.", ["same", "different"][i % 2])
            for i in range(count)
        ]
        write_table(folder / f"pairs/{name}.tsv", ("text", "text_b", "label"), pairs)
        topics = [
            (f"the {' and '.join(group)} pages", "|".join(group))
            for group in cycle([("art",), ("art", "law"), ("law",), ()], count)
        ]
        write_table(folder / f"topics/{name}.tsv", ("text", "label"), topics)
        ratings = [(text, str(4.5 if label == "positive" else 1.5 + i % 2)) for i, (text, label) in enumerate(sentiment(count))]
        write_table(folder / f"ratings/{name}.tsv", ("text", "label"), ratings)
        preferences = [
            ("a good film", "a bad film", "0") if i % 2 else ("a dull film", "a fine film", "1") for i in range(count)
        ]
        write_table(folder / f"preferences/{name}.tsv", ("text", "text_b", "label"), preferences)
        documents = [((text + " and so on. ") * 120, label) for text, label in sentiment(8)]
        write_table(folder / f"long/{name}.tsv", ("text", "label"), documents)
    write_table(folder / "reviews.tsv", ("text",), [(text,) for text, _ in sentiment(6)])


def write_tagging(folder: Path) -> None:
    for name, count in {"train": 15, "dev": 10, "test": 10}.items():
        sentences = []
        for entity, group in cycle(NAMES, count):
            words = [(word, f"{'BI'[i > 0]}-{group}") for i, word in enumerate(entity.split())]
            sentences.append([*words, ("was", "O"), ("seen", "O"), (".", "O")])
        write_conll(folder / f"names/{name}.conll", sentences)


def write_questions(folder: Path) -> None:
    def squad(count: int, unanswerable: bool, language: str) -> dict[str, object]:
        paragraphs = []
        for i in range(count):
            if language == "zh":
                context, question, answer = f"他住在{'天地日月'[i % 4]}城。", "他住在哪里？", f"{'天地日月'[i % 4]}城"
            else:
                answer = CITIES[i % 5]
                context, question = f"She moved to {answer} in the spring and stayed there.", "Where did she move?"
            answers = [{"text": answer, "answer_start": context.index(answer)}]
            qas: list[dict[str, object]] = [{"id": f"{i}-a", "question": question, "answers": answers}]
            if unanswerable:
                qas[0]["is_impossible"] = False
                qas.append({"id": f"{i}-b", "question": "Who paid?", "answers": [], "is_impossible": True})
            paragraphs.append({"context": context, "qas": qas})
        return {"version": "1.1", "data": [{"title": "cities", "paragraphs": paragraphs}]}

    for name, count in {"train": 12, "dev": 6, "test": 6}.items():
        for path, options in {"squad": (False, "en"), "squad2": (True, "en"), "cmrc": (False, "zh")}.items():
            write(folder / f"{path}/{name}.json", json.dumps(squad(count, *options), ensure_ascii=False))
        rows = [
            {"context": "She opened the door.", "question": "What did she do next?",
             "options": ["She walked in.", "Seven."], "label": 0}
            for _ in range(count)
        ]  # fmt: skip
        write(folder / f"choices/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def write_similarity(folder: Path) -> None:
    for name, count in {"train": 12, "dev": 8, "test": 8}.items():
        rows = [
            ("A man is playing a guitar.", "Someone plays the guitar.", "4.6")
            if i % 2 == 0
            else ("A man is playing a guitar.", f"The train to {CITIES[i % 5]} is late.", f"0.{i % 5}")
            for i in range(count)
        ]
        write_table(folder / f"sts/{name}.tsv", ("text", "text_b", "score"), rows)
    lines = [f"She took the train to {city} {when}." for city in CITIES for when in ("today", "in the spring", "at noon")]
    write(folder / "sentences.txt", "\n".join(lines) + "\n")
    triples = [("Where is the bank?", "The bank is near the river.", "The king is old.")] * 10
    write_table(folder / "triples.tsv", ("text", "text_b", "negative"), triples)
    write_table(folder / "duplicates.tsv", ("text", "text_b"), [(line, line.replace("She", "He")) for line in lines])


def write_sequences(folder: Path) -> None:
    words = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
    for name, count in {"train": 20, "dev": 6, "test": 6}.items():
        sources = [[list(words)[(i * k) % 5] for k in (1, 2, 3)] for i in range(count)]
        rows = [(" ".join(source), " ".join(words[word] for word in source)) for source in sources]
        write_table(folder / f"translation/{name}.tsv", ("source", "target"), rows)
        couplets = [
            (f"{a}{b}{c}", f"{c}{b}{a}") for a, b, c in zip(*[CHINESE_CHARS[i : i + count] for i in (0, 7, 14)], strict=True)
        ]
        write_table(folder / f"couplets/{name}.tsv", ("source", "target"), couplets)
    write(folder / "both-languages.txt", "\n".join(f"{a} {b}" for a, b in words.items()) + "\n")


def write_word_vectors(folder: Path) -> None:
    rng = np.random.default_rng(0)
    words = SPECIAL_WORDS.split() + list("abc")
    rows = [f"{word} {' '.join(f'{value:.4f}' for value in rng.normal(size=100))}" for word in words]
    write(folder / "glove.6B.100d.txt", "\n".join(rows) + "\n")
    write(
        folder / "wordsim353.csv",
        "Word 1,Word 2,Human (mean)\nking,queen,8.58\nbank,money,8.5\nfilm,river,1.5\nman,woman,8.3\n",
    )
    write(folder / "questions-words.txt", ": family\nman king woman queen\nking man queen woman\n")


def write_word_senses(folder: Path) -> None:
    rows = [(f"the {near} at the bank was {far}", sense) for sense, near, far in SENSES * 5]
    write_table(folder / "senses.tsv", ("text", "sense"), rows)
    chinese = [
        ("他买了一束[[花]]", "plant"),
        ("她在看[[花]]", "plant"),
        ("他[[花]]了很多钱", "spend"),
        ("别[[花]]太多钱", "spend"),
    ] * 4
    write_table(folder / "花.tsv", ("text", "sense"), chinese)
    for part in ("train", "test"):
        text = "".join(f"{row[0].split().index('bank')}\t{row[0]}\n" for row in rows)
        write(folder / f"coarsewsd20/bank/{part}.data.txt", text)
        write(folder / f"coarsewsd20/bank/{part}.gold.txt", "".join(f"{int(row[1] == 'money')}\n" for row in rows))
    write(folder / "coarsewsd20/bank/classes_map.txt", json.dumps({"0": "bank_river", "1": "bank_money"}))


def write_chinese(folder: Path) -> None:
    for number in range(2):
        write(folder / f"chinese/{number}.txt", make_chinese_text(40, number))
    for name, count in {"train": 24, "dev": 12, "test": 12}.items():
        rows = [(f"这部电影很{'好差'[i % 2]}", ["好评", "差评"][i % 2]) for i in range(count)]
        write_table(folder / f"chinese/{name}.tsv", ("text", "label"), rows)
        write_conll(folder / f"chinese/{name}.conll", cycle([PLACE, PERSON], count))
        write_conll(folder / f"chinese/words-{name}.conll", cycle(SEGMENTS, count))


def write_race_tasks(folder: Path) -> None:
    """The files of recipes/race.toml and recipes/suite.toml, with the columns of GLUE."""
    for name in ("train", "dev"):
        rows = [(f"a {word} film", str(int(label == "positive"))) for label, words in ADJECTIVES.items() for word in words]
        pairs = [(text, text if label == "1" else "another one", label) for text, label in rows]
        write_table(folder / f"SST-2/{name}.tsv", ("sentence", "label"), rows)
        write_table(folder / f"MRPC/{name}.tsv", ("#1 String", "#2 String", "Quality"), pairs)
        write(folder / f"NER/{name}.conll", (folder / f"names/{name}.conll").read_text())


def write_hugging_face_folder(folder: Path) -> None:
    """A tiny BERT as `save_pretrained` writes it."""
    import transformers

    folder.mkdir(parents=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz."]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)


def cycle(items: Sequence[object], count: int) -> Iterable:
    return [items[i % len(items)] for i in range(count)]


def write_conll(path: Path, sentences: Iterable[Iterable[tuple[str, str]]]) -> None:
    write(path, "\n\n".join("\n".join(f"{token} {tag}" for token, tag in sentence) for sentence in sentences) + "\n")


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    write(path, "".join("\t".join(row) + "\n" for row in [columns, *rows]))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    compress: Callable[[bytes], bytes] = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, lambda data: data)
    path.write_bytes(compress(text.encode()))
