"""Replaced-token detection: a small generator fills hidden words, and the model says of every token if it did (ELECTRA)."""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ..config import Count, Positive, Variant
from ..corpus.collate import Arrays
from ..corpus.loader import Batches
from ..corpus.masking import MaskConfig, Pieces
from ..corpus.sampling import ViewConfig, Windows
from ..corpus.store import Corpus
from ..model.batch import Batch
from ..model.heads import HeadConfig, ReplacedHead
from ..model.heads.electra_generator import Generator, GeneratorHead, Size
from ..model.model import Model
from ..train.loss import Loss
from .base import Ints, packed
from .mlm import asked, batches

GENERATOR, HEAD = "generator", "replaced"


class Replaced(Variant, frozen=True):
    """Clark et al. 2020: what the generator's words cost, and `weight` times what the answers about every token do."""

    view: Annotated[ViewConfig, "how the corpus is read"] = Windows()
    masks: Annotated[MaskConfig, "what is hidden together"] = Pieces()
    rate: Annotated[float, Meta(gt=0, lt=1), "share of the tokens the generator is asked for"] = 0.15
    repeats: Annotated[Count | None, "epochs after which samples and masks come again"] = None
    size: Annotated[Size, "of the generator, as a share of the model's width: 1/4 for small models, 1/3 for base"] = 0.25
    weight: Annotated[Positive, "of what the model says of every token, beside the generator's words"] = 50.0

    least: ClassVar[int] = 1  # sentences a document must have to be read
    hides: ClassVar[bool] = False  # from the generator, which is gone when the model is published

    def heads(self) -> dict[str, HeadConfig]:
        return {HEAD: ReplacedHead(), GENERATOR: GeneratorHead(size=self.size)}

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        return batches(self.view, self.masks, self.rate, self.repeats, corpus, documents, length, tokens, seed)

    def batch(self, arrays: Arrays) -> Batch:
        targets = {"where": torch.from_numpy(arrays.where), "words": torch.from_numpy(arrays.words)}
        return Batch(packed(arrays), targets, {"words": len(arrays.where), HEAD: len(arrays.tokens)})

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        generator, where, words = model.heads[GENERATOR], batch.targets["where"], batch.targets["words"]
        assert isinstance(generator, Generator)
        rows = generator(asked(batch.inputs, where), model.encoder)
        guessed, right = generator.entropy(rows, model.encoder, words)
        drawn = generator.drawn(rows, model.encoder)
        tokens = batch.inputs.tokens.index_copy(0, where, drawn)
        fake = torch.zeros_like(tokens, dtype=torch.bool).index_copy(0, where, drawn != words)  # a right guess is no fake
        scores = model.scores(HEAD, model(replace(batch.inputs, tokens=tokens))).squeeze(-1).float()
        told = F.binary_cross_entropy_with_logits(scores, fake.float(), reduction="sum")
        called = scores > 0
        report: dict[str, tuple[Tensor | float, Tensor | float]] = {
            "mlm_accuracy": (right, batch.counts["words"]),
            "replaced_accuracy": ((called == fake).sum(), batch.counts[HEAD]),
            "replaced_found": ((called & fake).sum(), fake.sum()),
        }
        return Loss({"words": guessed, HEAD: self.weight * told}, report)
