"""Two language models in one: half the channels foretell the next word, the other half the one before (ELMo)."""

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..config import Variant
from ..corpus.collate import BilmCollator, NumpyBatch
from ..corpus.loader import BatchLoader
from ..corpus.masking import TokenMasking
from ..corpus.sampling import SamplerConfig, Windows
from ..corpus.store import Corpus
from ..errors import UserError
from ..model.batch import Batch
from ..model.config import EncoderConfig
from ..model.embeddings import CharCNNConfig
from ..model.heads import HalfLMHeadConfig, HeadConfig
from ..model.mixers import Lstm
from ..model.model import Model
from ..train.loss import Loss
from .base import Ints, to_inputs

MetricPairs = dict[str, tuple[Tensor | float, Tensor | float]]


class BiLM(Variant, frozen=True, tag="both-ways"):
    """One softmax for both; the ends of a sequence are read, and never asked for."""

    view: Annotated[SamplerConfig, "how the corpus is read"] = Windows()
    head: Annotated[HalfLMHeadConfig, "what scores the words"] = HalfLMHeadConfig()

    min_sentences: ClassVar[int] = 1  # sentences a document must have to be read
    can_fill_mask: ClassVar[bool] = False
    rate: ClassVar[float] = 1.0  # share of the tokens asked for

    def check(self, encoder: EncoderConfig) -> None:
        """Refuses a model that would see the answers."""
        apart = isinstance(encoder.mixer, Lstm) and encoder.mixer.directions == "apart" and encoder.feedforward is None
        alone = encoder.front is None or isinstance(encoder.front, CharCNNConfig)
        if not apart or not alone or not encoder.layers or encoder.norm != "none":
            raise UserError("objective=both-ways asks each half of the channels for what the other sees; they must never meet: "
                           "take model=elmo, or a mixer lstm with directions=apart, no feed-forward and norm=none")  # fmt: skip

    def heads(self) -> dict[str, HeadConfig]:
        return {"words": self.head}

    def build_batches(self, corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int) -> BatchLoader:
        return BatchLoader(
            BilmCollator(corpus.path, TokenMasking(), self.rate, seed), self.view, document_ids, max_length, batch_tokens
        )

    def to_batch(self, arrays: NumpyBatch) -> Batch:
        targets = {"where": torch.from_numpy(arrays.output_indices), "words": torch.from_numpy(arrays.target_ids)}
        return Batch(to_inputs(arrays), targets, {"words": 2 * len(arrays.output_indices)})

    def compute_loss(self, model: Model, batch: Batch, recurrent_state: tuple[Tensor, ...] = ()) -> Loss:
        where, words = batch.targets["where"], batch.targets["words"]
        forth, back = model(batch.inputs).chunk(2, -1)
        last = len(forth) - 1  # a made-up batch, of `plan`, may ask for its very ends
        next_loss, next_right = model.cross_entropy("words", forth[(where - 1).clamp(min=0)], words)
        past_loss, past_right = model.cross_entropy("words", back[(where + 1).clamp(max=last)], words)
        told: MetricPairs = {"accuracy": (next_right + past_right, batch.target_counts["words"])}
        told |= {"forward": (next_loss.detach(), len(where)), "backward": (past_loss.detach(), len(where))}
        return Loss({"words": next_loss + past_loss}, told)
