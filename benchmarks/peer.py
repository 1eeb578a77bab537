"""Fine-tuning with transformers: its tokenizer, collators and Trainer, on examples read by bertsmith."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

Feature = dict[str, Any]
CHUNK_SIZE = 500  # questions tokenized together; bounds the memory of their offsets
MODEL_CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "answer": "AutoModelForQuestionAnswering",
}


def load_model(kind: str, folder: Path, num_labels: int, attention_dropout: float | None = 0.0, seed: int = 0) -> Any:
    """Model with a new head, in float32; attention_dropout None keeps the config's."""
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
    """transformers' Trainer with its defaults, without saving and reporting; batches are padded to their longest sequence."""
    from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    is_token_level = type(model).__name__.endswith("TokenClassification")
    collator = (DataCollatorForTokenClassification if is_token_level else DataCollatorWithPadding)(tokenizer)
    settings: dict[str, Any] = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "log_level": "error"}
    settings |= {"bf16": precision == "bf16", "use_cpu": device == "cpu", "logging_strategy": "no", **training_args}
    arguments = TrainingArguments(str(folder), **settings)
    trainer = Trainer(model, arguments, train_dataset=train_features, data_collator=collator, callbacks=callbacks)  # type: ignore[arg-type]
    trainer.remove_callback(PrinterCallback)
    return trainer


def encode_texts(tokenizer: Any, examples: Sequence[Any], max_length: int, labels: Sequence[str] = ()) -> list[Feature]:
    """Features of texts or pairs; labels are indices in `labels`, or floats if it is empty."""
    second_texts = None if examples[0].text_b is None else [example.text_b for example in examples]
    encoding = tokenizer([example.text for example in examples], second_texts, truncation=True, max_length=max_length)
    targets = [labels.index(example.label) if labels else float(example.label) for example in examples]
    return [{name: encoding[name][i] for name in encoding} | {"labels": target} for i, target in enumerate(targets)]


def encode_words(tokenizer: Any, examples: Sequence[Any], max_length: int, labels: Sequence[str]) -> list[Feature]:
    """Features of sentences of words: tags at the first subword of each word; `words` has the word index there."""
    tokens = [list(example.tokens) for example in examples]
    encoding = tokenizer(tokens, is_split_into_words=True, truncation=True, max_length=max_length)
    label_ids, features = {label: index for index, label in enumerate(labels)}, []
    for i, example in enumerate(examples):
        word_ids = encoding.word_ids(i)
        pairs = zip([None, *word_ids[:-1]], word_ids, strict=True)
        first_subwords = [word if word != previous else None for previous, word in pairs]
        tags = [-100 if word is None else label_ids.get(example.tags[word], -100) for word in first_subwords]
        features.append({name: encoding[name][i] for name in encoding} | {"labels": tags, "words": first_subwords})
    return features


def encode_windows(tokenizer: Any, examples: Sequence[Any], max_length: int, overlap: int) -> list[Feature]:
    """Features of questions with overlapping windows of their context; windows without the answer point at position 0."""
    numbered = list(enumerate(examples))
    chunks = [numbered[start : start + CHUNK_SIZE] for start in range(0, len(numbered), CHUNK_SIZE)]
    return [feature for chunk in chunks for feature in _encode_window_chunk(tokenizer, chunk, max_length, overlap)]


def _encode_window_chunk(tokenizer: Any, chunk: Sequence[tuple[int, Any]], max_length: int, overlap: int) -> Iterator[Feature]:
    questions, contexts = [example.question.lstrip() for _, example in chunk], [example.context for _, example in chunk]
    encoding = tokenizer(questions, contexts, truncation="only_second", max_length=max_length, stride=overlap,
                     return_overflowing_tokens=True, return_offsets_mapping=True)  # fmt: skip
    input_names = [name for name in encoding if name not in ("overflow_to_sample_mapping", "offset_mapping")]
    for i, sample in enumerate(encoding["overflow_to_sample_mapping"]):
        index, example = chunk[sample]
        is_context = [part == 1 for part in encoding.sequence_ids(i)]
        offsets = [offset if inside else None for offset, inside in zip(encoding["offset_mapping"][i], is_context, strict=True)]
        start, end = _target_positions(offsets, example.span)
        facts = {"offsets": offsets, "example": index, "start_positions": start, "end_positions": end}
        yield {name: encoding[name][i] for name in input_names} | facts


def _target_positions(offsets: list[tuple[int, int] | None], span: tuple[int, int] | None) -> tuple[int, int]:
    context_tokens = [(position, *offset) for position, offset in enumerate(offsets) if offset]
    if span is None or not context_tokens or context_tokens[0][1] > span[0] or context_tokens[-1][2] < span[1]:
        return 0, 0
    answer_tokens = [position for position, start, end in context_tokens if end > span[0] and start < span[1]]
    return (answer_tokens[0], answer_tokens[-1]) if answer_tokens else (0, 0)


def find_best_spans(
    features: Sequence[Feature],
    start_logits: Any,
    end_logits: Any,
    num_examples: int,
    max_answer_length: int = 30,
    n_best_size: int = 20,
) -> list[tuple[int, int] | None]:
    """Character span of each example's best answer: the highest start + end logit among valid pairs of the n best."""
    best: list[tuple[float, tuple[int, int] | None]] = [(float("-inf"), None)] * num_examples
    for feature, start, end in zip(features, start_logits, end_logits, strict=True):
        offsets, index = feature["offsets"], feature["example"]
        for i in start[: len(offsets)].argsort()[::-1][:n_best_size]:
            for j in end[: len(offsets)].argsort()[::-1][:n_best_size]:
                if offsets[i] and offsets[j] and i <= j < i + max_answer_length and start[i] + end[j] > best[index][0]:
                    best[index] = float(start[i] + end[j]), (offsets[i][0], offsets[j][1])
    return [span for _, span in best]
