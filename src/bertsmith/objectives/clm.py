"""Causal language modelling: every token is asked for by those before it, as in GPT."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..config import Variant
from ..corpus.collate import Arrays, Flowing, Following
from ..corpus.loader import Batches
from ..corpus.masking import Pieces
from ..corpus.sampling import Streams, ViewConfig, Windows
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model.batch import Batch
from ..model.config import EncoderConfig
from ..model.embeddings.adaptive import RarityHead
from ..model.heads import HeadConfig, WordHead
from ..model.model import Model
from ..train.loss import Loss
from .base import Ints, packed
from .mlm import asked
from .recurrent_state import carried, flowing, recalled


class Causal(Variant, frozen=True):
    view: Annotated[ViewConfig, "how the corpus is read"] = Windows()
    head: Annotated[WordHead | RarityHead, "what scores the words; by-rarity is quicker for large vocabularies"] = WordHead(
        transform=False, bias=False
    )

    least: ClassVar[int] = 1  # sentences a document must have to be read
    hides: ClassVar[bool] = False
    rate: ClassVar[float] = 1.0  # share of the tokens asked for

    def check(self, encoder: EncoderConfig) -> None:
        """Refuses a model that would see the answers."""
        if not encoder.causal:
            raise BadInput("objective=causal asks each token for the next, which this model sees already; set "
                           "model.mixer.causal=true, or take a preset that is causal, such as model=gpt")  # fmt: skip

    def heads(self) -> dict[str, HeadConfig]:
        return {"words": self.head}

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        maker = Flowing if isinstance(self.view, Streams) else Following
        return Batches(maker(corpus.path, Pieces(), self.rate, seed), self.view, documents, length, tokens)

    def batch(self, arrays: Arrays) -> Batch:
        targets = {"where": torch.from_numpy(arrays.where), "words": torch.from_numpy(arrays.words)}
        return Batch(packed(arrays), targets | flowing(arrays), {"words": len(arrays.where)})

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        memory = recalled(model, batch, carry)
        rows = model(asked(batch.inputs, batch.targets["where"], memory))
        total, right = model.entropy("words", rows, batch.targets["words"])
        return Loss({"words": total}, {"accuracy": (right, batch.counts["words"])}, carried(memory, batch))
