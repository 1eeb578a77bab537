"""Words by their characters: filters over the bytes of a word, their maxima through highways, a projection (ELMo)."""

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
from ..packing import Layout
from .base import InputEmbedding

NUM_CHARACTERS = NUM_CHARS + 1  # of the table of characters: the first is of a place where there is no word


class CharCNNConfig(Variant, frozen=True, tag="characters"):
    """Peters et al. 2018: words are never looked up, so those never seen have vectors too."""

    filters: Annotated[tuple[tuple[PosInt, PosInt], ...], Meta(min_length=1), "characters they see, and how many do: pairs"] = (
        (1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024),
    )  # fmt: skip
    numbers: Annotated[PosInt, "a character is made of"] = 16
    letters: Annotated[PosInt, "bytes of a word at most, its begin and its end among them"] = 50
    highways: Annotated[NonNegInt, "layers that let some of it pass"] = 2
    activation: Annotated[Literal["relu", "tanh"], "of the filters"] = "relu"

    causal: ClassVar[bool] = True  # a word is spelt whatever stands around it
    token_table_dim: ClassVar[int] = 0  # numbers in the encoder's table of tokens: there is none

    def build(self, hidden_size: int, vocab_size: int) -> "CharCNN":
        return CharCNN(self, hidden_size)


class CharCNN(InputEmbedding):
    """The vector of a word, twice: for the channels that read forward, and for those that read backward."""

    def __init__(self, config: CharCNNConfig, hidden_size: int) -> None:
        super().__init__()
        if hidden_size % 2:
            raise UserError(
                f"half the channels read forward, half backward: a width of {hidden_size} is not even; change model.width"
            )
        if max(seen for seen, _ in config.filters) > config.letters:
            raise UserError(f"a filter wider than the {config.letters} letters of a word sees nothing; change model.front")
        found = sum(count for _, count in config.filters)
        self.max_word_length, self.lexicon = config.letters, Lexicon()
        self.characters = nn.Embedding(NUM_CHARACTERS, config.numbers)
        self.filters = nn.ModuleList(nn.Conv1d(config.numbers, count, seen) for seen, count in config.filters)
        self.highways = nn.ModuleList(Highway(found) for _ in range(config.highways))
        self.out = nn.Linear(found, hidden_size // 2)
        self.activation = F.relu if config.activation == "relu" else torch.tanh
        self.spelt: Tensor
        self.register_buffer("spelt", torch.zeros(0, config.letters, dtype=torch.int16), persistent=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As large as what goes in, so that words differ from the first step on; highways let most of it pass."""
        nn.init.uniform_(self.characters.weight, -1.0, 1.0)
        for layer in (*self.filters, *(part for one in self.highways for part in one.children()), self.out):
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            nn.init.zeros_(layer.bias)
        for one in self.highways:
            one.gate.bias.fill_(-2.0)  # type: ignore[operator, union-attr]

    def attach_lexicon(self, lexicon: Lexicon) -> None:
        """Words are ids: the lexicon tells how they are spelt, and may grow."""
        self.lexicon, self.spelt = lexicon, self.spelt[:0]

    def forward(self, input_ids: Tensor, layout: Layout, token_embedding: nn.Embedding | None) -> Tensor:
        if isinstance(self.out.weight, FakeTensor):  # `plan` counts without contents, and every word as another
            vector = self.embed_words(input_ids[:, None].expand(-1, self.max_word_length) * 0)
            return torch.cat([vector, vector], -1)
        words, which = input_ids.unique(return_inverse=True)  # the same word has the same vector
        vector = self.embed_words(self._char_ids(words))
        return torch.cat([vector, vector], -1)[which]

    def embed_words(self, char_ids: Tensor) -> Tensor:
        """(words, letters) -> (words, width / 2)"""
        x = self.characters(char_ids).mT
        x = torch.cat([self.activation(one(x).amax(-1)) for one in self.filters], -1)
        for highway in self.highways:
            x = highway(x)
        return self.out(x)

    def _char_ids(self, word_ids: Tensor) -> Tensor:
        if len(self.spelt) < len(self.lexicon):
            new = [self.lexicon.char_ids(number, self.max_word_length) for number in range(len(self.spelt), len(self.lexicon))]
            more = torch.from_numpy(np.array(new, np.int16)).to(self.spelt.device)
            self.spelt = torch.cat([self.spelt, more])
        if len(word_ids) and int(word_ids[-1]) >= len(self.spelt):
            raise UserError(f"word {int(word_ids[-1])} has no spelling: this model knows {len(self.spelt)} words; give it its own "
                           "tokenizer")  # fmt: skip
        return self.spelt[word_ids].long()


class Highway(nn.Module):
    """g * relu(Ax) + (1 - g) * x, g = sigmoid(Bx): what it has no use for passes as it is."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.change, self.gate = nn.Linear(hidden_size, hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid()
        return gate * F.relu(self.change(x)) + (1 - gate) * x
