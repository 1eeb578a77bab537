"""Character CNN (Kim et al. 2016; ELMo): convolutions over the bytes of a word, max pooling, highway layers, a projection."""

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...config import NonNegInt, PosInt, Variant
from ...errors import UserError
from ...tokenization.characters import NUM_CHARS, Lexicon
from ..linear import Linear
from ..packing import Layout
from .base import InputEmbedding

NUM_CHARACTERS = NUM_CHARS + 1  # rows of the character embedding; row 0 stands for no word


class CharCNNConfig(Variant, frozen=True, tag="char-cnn"):
    """Character CNN (ELMo, Peters et al. 2018): no word table, so that there are no out-of-vocabulary words."""

    filters: Annotated[
        tuple[tuple[PosInt, PosInt], ...],
        Meta(min_length=1),
        "convolutions as pairs: kernel size in characters, number of filters",
    ] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    embedding_size: Annotated[PosInt, "character embedding size"] = 16
    max_characters_per_token: Annotated[PosInt, "maximum length of a word in bytes, with its start and end marks"] = 50
    num_highway: Annotated[NonNegInt, "number of highway layers"] = 2
    hidden_act: Annotated[Literal["relu", "tanh"], "activation of the convolutions"] = "relu"

    causal: ClassVar[bool] = True  # embeddings do not depend on context
    has_open_vocabulary: ClassVar[bool] = True
    spells_words: ClassVar[bool] = True  # each distinct word of a batch is computed once, from its characters

    def token_table_dim(self, hidden_size: int) -> int:
        """0: the encoder has no token embedding table."""
        return 0

    def build(self, hidden_size: int, vocab_size: int, lexicon: Lexicon | None = None) -> "CharCNN":
        return CharCNN(self, hidden_size, lexicon)


class CharCNN(InputEmbedding):
    """Embedding of a word (hidden_size / 2), twice: for the channels of the forward and of the backward language model."""

    def __init__(self, config: CharCNNConfig, hidden_size: int, lexicon: Lexicon | None = None) -> None:
        """`lexicon` maps word ids to characters; it may grow later."""
        super().__init__()
        if hidden_size % 2:
            raise UserError(f"model.hidden_size={hidden_size} must be even: each direction has half of the channels")
        if max(kernel_size for kernel_size, _ in config.filters) > config.max_characters_per_token:
            raise UserError(
                "model.embeddings.filters has a kernel size above "
                f"model.embeddings.max_characters_per_token={config.max_characters_per_token}; lower it, or raise that"
            )
        num_filters = sum(out_channels for _, out_channels in config.filters)
        self.max_word_length, self.lexicon = config.max_characters_per_token, lexicon or Lexicon()
        self.char_embeddings = nn.Embedding(NUM_CHARACTERS, config.embedding_size)
        self.filters = nn.ModuleList(
            nn.Conv1d(config.embedding_size, out_channels, kernel_size) for kernel_size, out_channels in config.filters
        )
        self.highways = nn.ModuleList(Highway(num_filters) for _ in range(config.num_highway))
        self.projection = Linear(num_filters, hidden_size // 2)
        self.activation = F.relu if config.hidden_act == "relu" else torch.tanh
        self.char_id_cache: Tensor
        self.register_buffer(
            "char_id_cache", torch.zeros(0, config.max_characters_per_token, dtype=torch.int16), persistent=False
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Variance-preserving initialization, so that words differ from the first step on; highway gates start near 0."""
        nn.init.uniform_(self.char_embeddings.weight, -1.0, 1.0)
        for layer in (*self.filters, *(linear for highway in self.highways for linear in highway.children()), self.projection):
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            nn.init.zeros_(layer.bias)
        for highway in self.highways:
            highway.gate.bias.fill_(-2.0)  # type: ignore[operator, union-attr]

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        if isinstance(self.projection.weight, FakeTensor):  # FLOP counting in `plan`: no values, every word counts as different
            embeddings = self.embed_words(input_ids[:, None].expand(-1, self.max_word_length) * 0)
            return torch.cat([embeddings, embeddings], -1)
        distinct_ids, inverse = input_ids.unique(return_inverse=True)  # compute each distinct word once
        embeddings = self.embed_words(self._char_ids(distinct_ids))
        return torch.cat([embeddings, embeddings], -1)[inverse]

    def embed_words(self, char_ids: Tensor) -> Tensor:
        """(words, max_word_length) character ids -> (words, hidden_size / 2)."""
        x = self.char_embeddings(char_ids).mT
        x = torch.cat([self.activation(conv(x).amax(-1)) for conv in self.filters], -1)
        for highway in self.highways:
            x = highway(x)
        return self.projection(x)

    def _char_ids(self, word_ids: Tensor) -> Tensor:
        """(words, max_word_length): character ids, cached in the buffer `char_id_cache` for the words of the lexicon."""
        if len(self.char_id_cache) < len(self.lexicon):
            new_char_ids = [
                self.lexicon.char_ids(word_id, self.max_word_length)
                for word_id in range(len(self.char_id_cache), len(self.lexicon))
            ]
            new_rows = torch.from_numpy(np.array(new_char_ids, np.int16)).to(self.char_id_cache.device)
            self.char_id_cache = torch.cat([self.char_id_cache, new_rows])
        if len(word_ids) and int(word_ids[-1]) >= len(self.char_id_cache):
            raise UserError(
                f"token id {int(word_ids[-1])} is out of range: this model's vocabulary has {len(self.char_id_cache)} words; "
                "use the model's own tokenizer"
            )
        return self.char_id_cache[word_ids].long()


class Highway(nn.Module):
    """Highway layer (Srivastava et al. 2015): g * relu(A x) + (1 - g) * x with g = sigmoid(B x)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.transform, self.gate = Linear(hidden_size, hidden_size), Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid()
        return gate * F.relu(self.transform(x)) + (1 - gate) * x
