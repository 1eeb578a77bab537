"""Fine-tuning a token classifier gives the same losses, gradient norms and weights as transformers."""

import numpy as np
import pytest
import torch

from bertsmith.console import Console
from bertsmith.objectives.supervised import ExampleBatches, Supervised
from bertsmith.runs import Run
from bertsmith.tasks import TokenClassification
from bertsmith.tasks.conll_files import Sentence
from bertsmith.train.config import TrainConfig
from bertsmith.train.optim import Adamw
from bertsmith.train.setup import prepare
from bertsmith.train.trainer import Trainer
from tests.support.huggingface_models import import_folder, save_random_model, transformers

LABELS = ("B", "I", "O")
STEPS, LEARNING_RATE = 8, 1e-3
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
WORDS = ("people", "way", "made", "they", "saw", "the", "then")
CONFIG = TrainConfig(
    steps=STEPS, learning_rate=LEARNING_RATE, warmup_steps=0.0, weight_decay=0.0, optimizer=Adamw(eps=1e-8), device="cpu"
)


def random_sentences():
    """Of unequal lengths: theirs are padded, and the loss is a mean over words, not over sentences."""
    rng = np.random.default_rng(0)
    samples = [(rng.choice(WORDS, size), rng.choice(LABELS, size)) for size in rng.integers(1, 9, 24)]
    return [Sentence(tokens=tuple(map(str, words)), tags=tuple(map(str, tags))) for words, tags in samples]


def to_padded(batch):
    """A batch in the padded format of transformers."""
    lengths = batch.inputs.layout.lengths.tolist()
    columns = {"input_ids": (batch.inputs.input_ids, 0), "labels": (batch.targets["label"], -100)}
    arrays = {
        name: torch.nn.utils.rnn.pad_sequence(flat.split(lengths), batch_first=True, padding_value=value)
        for name, (flat, value) in columns.items()
    }
    return arrays | {"attention_mask": (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()}


def train_reference(model, batches):
    """The training loop with transformers; (loss, gradient norm) of every update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=1e-8, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    history = []
    for batch in batches:
        loss = model(**to_padded(batch)).loss
        loss.backward()
        history.append((loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return history


def test_fine_tuning_matches_transformers(tmp_path):
    model = save_random_model("BertForTokenClassification", tmp_path / "hf", num_labels=len(LABELS), **NO_DROPOUT).train()
    _, ours, tokenizer = import_folder(tmp_path / "hf", tmp_path / "ours")
    task = TokenClassification(labels=LABELS)
    batches, history = ExampleBatches(task, task.encode(random_sentences(), tokenizer, 32), 40, seed=0), []
    record = lambda step, row: history.append((row["loss"], row["grad_norm"]))
    run = Run(tmp_path / "run", console=Console(quiet=True))
    Trainer(prepare(ours, CONFIG), Supervised(task), run, 0, on_step=record).fit(batches)
    expected = train_reference(model, [batches(k) for k in range(STEPS)])
    assert max(norm for _, norm in expected) > 1  # so that clipping is compared, too
    assert history == [pytest.approx(update, rel=1e-4) for update in expected]
    assert torch.allclose(ours.heads["task"].classifier.weight, model.classifier.weight, atol=1e-5)
    assert torch.allclose(ours.encoder.word_embeddings.weight, model.bert.embeddings.word_embeddings.weight, atol=1e-5)
