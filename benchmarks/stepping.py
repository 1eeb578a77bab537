"""A pre-training step of bert-mini on this CPU against transformers': the same batch, forward, back, AdamW."""

import numpy as np
import torch

from bertsmith import api
from bertsmith.corpus.store import Corpus
from bertsmith.model.batch import Batch
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, built
from bertsmith.objectives import Pairs

from .material import Material
from .sides import seconds

TOKENS = 4096


def run(stuff: Material) -> list[tuple[str, str, str, str, str]]:
    out = stuff.folder / "stepping"
    api.prepare(texts=[str(path) for path in stuff.texts[:1]], tokenizer=str(stuff.tokenizer), out=str(out), quiet=True)
    corpus, objective = Corpus.open(out), Pairs()
    every = np.arange(len(corpus.documents) - 1)
    rows = []
    for length in (128, 512):
        batch = objective.batch(objective.batches(corpus, every, length, TOKENS, 0)(0))
        ours, theirs = seconds(_ours(batch, len(corpus.tokenizer)), _theirs(batch, len(corpus.tokenizer)))
        padded = batch.inputs.layout.sequences * batch.inputs.layout.longest
        what = f"bert-mini step, pairs of at most {length} ({batch.tokens} tokens, {padded} padded)"
        speeds = f"{batch.tokens / ours:,.0f} tokens/s", f"transformers {batch.tokens / theirs:,.0f} tokens/s"
        rows.append((what, *speeds, f"{theirs / ours:.2f}x", "1.3x"))
    return rows


def _ours(batch: Batch, vocabulary: int):  # type: ignore[no-untyped-def]
    objective = Pairs()
    model = built(ModelConfig(encoder=EncoderConfig.presets["bert-mini"], vocabulary=vocabulary, heads=objective.heads()), 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss = objective.loss(model, batch)
        sum(part / batch.counts[name] for name, part in loss.parts.items()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _theirs(batch: Batch, vocabulary: int):  # type: ignore[no-untyped-def]
    from transformers import BertConfig, BertForPreTraining

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    config = BertConfig(vocab_size=vocabulary, attention_probs_dropout_prob=0.0, **sizes)  # as ours
    model = BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    layout, labels = batch.inputs.layout, torch.full((batch.tokens,), -100)
    labels[batch.targets["where"]] = batch.targets["words"]
    real = layout.real()
    inputs = {"input_ids": layout.grid(batch.inputs.tokens), "token_type_ids": layout.grid(batch.inputs.segments)}
    inputs |= {"attention_mask": real.long(), "labels": layout.grid(labels).masked_fill(~real, -100)}
    inputs["next_sentence_label"] = batch.targets["next"]

    def step() -> None:
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
