"""Taught with the same sentences in the same order, a tagger of ours has the losses and weights of transformers'."""

import numpy as np
import pytest
import torch

from bertsmith.objectives.supervised import ExampleBatches, Supervised
from bertsmith.tasks import TokenClassification
from bertsmith.tasks.conll_files import Sentence
from bertsmith.train.config import TrainConfig
from bertsmith.train.optim import Adamw
from bertsmith.train.trainer import Trainer
from tests.parity.huggingface_models import imported, theirs, transformers

LABELS = ("B", "I", "O")
STEPS, RATE = 8, 1e-3
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
WORDS = ("people", "way", "made", "they", "saw", "the", "then")
HOW = TrainConfig(steps=STEPS, rate=RATE, warmup=0.0, decay=0.0, optimizer=Adamw(eps=1e-8), device="cpu")


def sentences():
    """Of unequal lengths: theirs are padded, and a batch weighs its words alike, not its sentences."""
    dice = np.random.default_rng(0)
    drawn = [(dice.choice(WORDS, size), dice.choice(LABELS, size)) for size in dice.integers(1, 9, 24)]
    return [Sentence(tokens=tuple(map(str, words)), tags=tuple(map(str, tags))) for words, tags in drawn]


def padded(batch):
    """A batch of ours as transformers takes it."""
    sizes = batch.inputs.layout.lengths.tolist()
    fill = {"input_ids": (batch.inputs.tokens, 0), "labels": (batch.targets["label"], -100)}
    made = {
        name: torch.nn.utils.rnn.pad_sequence(flat.split(sizes), batch_first=True, padding_value=value)
        for name, (flat, value) in fill.items()
    }
    return made | {"attention_mask": (torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]).long()}


def taught(model, batches):
    """The loop of their recipe; (loss, norm of the gradient) of every update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-8, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    told = []
    for batch in batches:
        loss = model(**padded(batch)).loss
        loss.backward()
        told.append((loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return told


def test_every_update_is_theirs(tmp_path):
    model = theirs("BertForTokenClassification", tmp_path / "hf", num_labels=len(LABELS), **STILL).train()
    _, ours, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    task = TokenClassification(labels=LABELS)
    reading, told = ExampleBatches(task, task.encode(sentences(), tokenizer, 32), 40, seed=0), []
    rows = lambda step, row: told.append((row["loss"], row["norm"]))
    Trainer(ours, Supervised(task), HOW, tmp_path / "run", seed=0, quiet=True, on_step=rows).fit(reading)
    wanted = taught(model, [reading(k) for k in range(STEPS)])
    assert max(norm for _, norm in wanted) > 1  # so that clipping, too, is compared
    assert told == [pytest.approx(one, rel=1e-4) for one in wanted]
    assert torch.allclose(ours.heads["task"].score.weight, model.classifier.weight, atol=1e-5)
    assert torch.allclose(ours.encoder.tokens.weight, model.bert.embeddings.word_embeddings.weight, atol=1e-5)
