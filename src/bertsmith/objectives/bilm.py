"""Two language models in one: half the channels foretell the next word, the other half the one before (ELMo)."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..config import Variant
from ..corpus.collate import Around, Arrays
from ..corpus.loader import Batches
from ..corpus.masking import Pieces
from ..corpus.sampling import ViewConfig, Windows
from ..corpus.store import Corpus
from ..errors import BadInput
from ..model.batch import Batch
from ..model.config import EncoderConfig
from ..model.embeddings import Characters
from ..model.heads import HalfHead, HeadConfig
from ..model.mixers import Lstm
from ..model.model import Model
from ..train.loss import Loss
from .base import Ints, packed

Report = dict[str, tuple[Tensor | float, Tensor | float]]


class BothWays(Variant, frozen=True, tag="both-ways"):
    """One softmax for both; the ends of a sequence are read, and never asked for."""

    view: Annotated[ViewConfig, "how the corpus is read"] = Windows()
    head: Annotated[HalfHead, "what scores the words"] = HalfHead()

    least: ClassVar[int] = 1  # sentences a document must have to be read
    hides: ClassVar[bool] = False
    rate: ClassVar[float] = 1.0  # share of the tokens asked for

    def check(self, encoder: EncoderConfig) -> None:
        """Refuses a model that would see the answers."""
        apart = isinstance(encoder.mixer, Lstm) and encoder.mixer.directions == "apart" and encoder.feedforward is None
        alone = encoder.front is None or isinstance(encoder.front, Characters)
        if not apart or not alone or not encoder.layers or encoder.norm != "none":
            raise BadInput("objective=both-ways asks each half of the channels for what the other sees; they must never meet: "
                           "take model=elmo, or a mixer lstm with directions=apart, no feed-forward and norm=none")  # fmt: skip

    def heads(self) -> dict[str, HeadConfig]:
        return {"words": self.head}

    def batches(self, corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int) -> Batches:
        return Batches(Around(corpus.path, Pieces(), self.rate, seed), self.view, documents, length, tokens)

    def batch(self, arrays: Arrays) -> Batch:
        targets = {"where": torch.from_numpy(arrays.where), "words": torch.from_numpy(arrays.words)}
        return Batch(packed(arrays), targets, {"words": 2 * len(arrays.where)})

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        where, words = batch.targets["where"], batch.targets["words"]
        forth, back = model(batch.inputs).chunk(2, -1)
        last = len(forth) - 1  # a made-up batch, of `plan`, may ask for its very ends
        next_loss, next_right = model.entropy("words", forth[(where - 1).clamp(min=0)], words)
        past_loss, past_right = model.entropy("words", back[(where + 1).clamp(max=last)], words)
        told: Report = {"accuracy": (next_right + past_right, batch.counts["words"])}
        told |= {"forward": (next_loss.detach(), len(where)), "backward": (past_loss.detach(), len(where))}
        return Loss({"words": next_loss + past_loss}, told)
