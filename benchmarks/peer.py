"""Transformers' side of fine-tuning: its tokenizer, collators and Trainer, on the examples that we read."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

Feature = dict[str, Any]
CHUNK_SIZE = 500  # questions tokenised together: their offsets are many
MODEL_CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
}


def load_model(kind: str, folder: Path, num_labels: int, attention_dropout: float | None = 0.0, seed: int = 0) -> Any:
    """With a new head, in float32 whatever the folder holds; with the config's own dropout on attention, if None is given."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(seed)
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=num_labels)
    for name in ("attention_probs_dropout_prob", "attention_dropout"):
        if hasattr(config, name) and attention_dropout is not None:
            setattr(config, name, attention_dropout)
    return getattr(transformers, MODEL_CLASSES[kind]).from_pretrained(folder, config=config, dtype=torch.float32)


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def build_trainer(
    model: Any,
    tokenizer: Any,
    train_features: Sequence[Feature],
    folder: Path,
    *,
    precision: str,
    device: str,
    callbacks: Any = None,
    **training_args: Any,
) -> Any:
    """Its Trainer as it comes, but for saving and reporting; batches are padded to their own longest."""
    from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    tags = type(model).__name__.endswith("TokenClassification")
    collator = (DataCollatorForTokenClassification if tags else DataCollatorWithPadding)(tokenizer)
    told: dict[str, Any] = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "log_level": "error"}
    told |= {"bf16": precision == "bf16", "use_cpu": device == "cpu", "logging_strategy": "no", **training_args}
    arguments = TrainingArguments(str(folder), **told)
    made = Trainer(model, arguments, train_dataset=train_features, data_collator=collator, callbacks=callbacks)  # type: ignore[arg-type]
    made.remove_callback(PrinterCallback)
    return made


def encode_texts(tokenizer: Any, examples: Sequence[Any], max_length: int, labels: Sequence[str] = ()) -> list[Feature]:
    """Texts or pairs; with `labels` their numbers, without the label as a number itself."""
    seconds = None if examples[0].text_b is None else [one.text_b for one in examples]
    made = tokenizer([one.text for one in examples], seconds, truncation=True, max_length=max_length)
    numbers = [labels.index(one.label) if labels else float(one.label) for one in examples]
    return [{name: made[name][i] for name in made} | {"labels": number} for i, number in enumerate(numbers)]


def encode_words(tokenizer: Any, examples: Sequence[Any], max_length: int, labels: Sequence[str]) -> list[Feature]:
    """Sentences of words: a word's tag is at its first piece, and `words` says which word that is."""
    tokens = [list(one.tokens) for one in examples]
    made = tokenizer(tokens, is_split_into_words=True, truncation=True, max_length=max_length)
    numbers, features = {label: number for number, label in enumerate(labels)}, []
    for i, one in enumerate(examples):
        owners = made.word_ids(i)
        pairs = zip([None, *owners[:-1]], owners, strict=True)
        first = [owner if owner != before else None for before, owner in pairs]
        tags = [-100 if owner is None else numbers.get(one.tags[owner], -100) for owner in first]
        features.append({name: made[name][i] for name in made} | {"labels": tags, "words": first})
    return features


def encode_windows(tokenizer: Any, examples: Sequence[Any], max_length: int, overlap: int) -> list[Feature]:
    """Questions with windows of their passages; a window without the whole answer points at its first token."""
    numbered = list(enumerate(examples))
    parts = [numbered[start : start + CHUNK_SIZE] for start in range(0, len(numbered), CHUNK_SIZE)]
    return [feature for some in parts for feature in _encode_window_chunk(tokenizer, some, max_length, overlap)]


def _encode_window_chunk(tokenizer: Any, chunk: Sequence[tuple[int, Any]], max_length: int, overlap: int) -> Iterator[Feature]:
    asked, passages = [one.question.lstrip() for _, one in chunk], [one.context for _, one in chunk]
    made = tokenizer(asked, passages, truncation="only_second", max_length=max_length, stride=overlap,
                     return_overflowing_tokens=True, return_offsets_mapping=True)  # fmt: skip
    plain = [name for name in made if name not in ("overflow_to_sample_mapping", "offset_mapping")]
    for i, sample in enumerate(made["overflow_to_sample_mapping"]):
        number, one = chunk[sample]
        inside = [part == 1 for part in made.sequence_ids(i)]
        offsets = [place if mine else None for place, mine in zip(made["offset_mapping"][i], inside, strict=True)]
        start, end = _target_positions(offsets, one.span)
        facts = {"offsets": offsets, "example": number, "start_positions": start, "end_positions": end}
        yield {name: made[name][i] for name in plain} | facts


def _target_positions(offsets: list[tuple[int, int] | None], span: tuple[int, int] | None) -> tuple[int, int]:
    real = [(place, *offset) for place, offset in enumerate(offsets) if offset]
    if span is None or not real or real[0][1] > span[0] or real[-1][2] < span[1]:
        return 0, 0
    held = [place for place, start, end in real if end > span[0] and start < span[1]]
    return (held[0], held[-1]) if held else (0, 0)


def find_best_spans(
    features: Sequence[Feature],
    start_logits: Any,
    end_logits: Any,
    num_examples: int,
    max_answer_length: int = 30,
    n_best_size: int = 20,
) -> list[tuple[int, int] | None]:
    """The characters of each example's best answer: of the best starts and ends of its windows, the best sum that is legal."""
    found: list[tuple[float, tuple[int, int] | None]] = [(float("-inf"), None)] * num_examples
    for feature, start, end in zip(features, start_logits, end_logits, strict=True):
        offsets, number = feature["offsets"], feature["example"]
        for i in start[: len(offsets)].argsort()[::-1][:n_best_size]:
            for j in end[: len(offsets)].argsort()[::-1][:n_best_size]:
                if offsets[i] and offsets[j] and i <= j < i + max_answer_length and start[i] + end[j] > found[number][0]:
                    found[number] = float(start[i] + end[j]), (offsets[i][0], offsets[j][1])
    return [span for _, span in found]
