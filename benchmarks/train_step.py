"""A pre-training step of bert-mini on a CPU against transformers': the same batch, forward, backward, AdamW."""

import numpy as np
import torch

from bertsmith import api
from bertsmith.corpus.store import Corpus
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.objectives import NextSentenceMLM
from bertsmith.train.objective import Batch

from .inputs import BenchmarkInputs
from .timing import median_seconds

BATCH_TOKENS = 4096


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    out = bench.folder / "stepping"
    api.prepare(texts=[str(path) for path in bench.texts[:1]], tokenizer=str(bench.tokenizer), out=str(out), quiet=True)
    corpus, objective = Corpus.open(out), NextSentenceMLM()
    documents = np.arange(len(corpus.document_offsets) - 1)
    rows = []
    for length in (128, 512):
        batch = objective.to_batch(objective.build_batches(corpus, documents, length, BATCH_TOKENS, 0)(0))
        ours, theirs = median_seconds(
            _build_our_step(batch, len(corpus.tokenizer)), _build_their_step(batch, len(corpus.tokenizer))
        )
        num_padded = batch.inputs.layout.num_sequences * batch.inputs.layout.max_seqlen
        label = f"bert-mini step, pairs of at most {length} ({batch.num_tokens} tokens, {num_padded} padded)"
        speeds = f"{batch.num_tokens / ours:,.0f} tokens/s", f"transformers {batch.num_tokens / theirs:,.0f} tokens/s"
        rows.append((label, *speeds, f"{theirs / ours:.2f}x", "1.3x"))
    return rows


def _build_our_step(batch: Batch, vocab_size: int):  # type: ignore[no-untyped-def]
    objective = NextSentenceMLM()
    model = build_model(
        ModelConfig(encoder=EncoderConfig.presets()["bert-mini"], vocab_size=vocab_size, heads=objective.heads()), 0
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss = objective.compute_loss(model, batch)
        sum(part / batch.target_counts[name] for name, part in loss.parts.items()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _build_their_step(batch: Batch, vocab_size: int):  # type: ignore[no-untyped-def]
    from transformers import BertConfig, BertForPreTraining

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    config = BertConfig(vocab_size=vocab_size, attention_probs_dropout_prob=0.0, **sizes)  # as ours
    model = BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    layout, labels = batch.inputs.layout, torch.full((batch.num_tokens,), -100)
    labels[batch.targets["output_indices"]] = batch.targets["target_ids"]
    padding_mask = layout.padding_mask()
    inputs = {"input_ids": layout.pad(batch.inputs.input_ids), "token_type_ids": layout.pad(batch.inputs.token_type_ids)}
    inputs |= {"attention_mask": padding_mask.long(), "labels": layout.pad(labels).masked_fill(~padding_mask, -100)}
    inputs["next_sentence_label"] = batch.targets["pair_labels"]

    def step() -> None:
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
