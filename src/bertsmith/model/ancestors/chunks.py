"""Text in chunks: some dozens of words, those around them, and which of them stand near which."""

from typing import NamedTuple

import torch
from torch import Tensor


class Chunks(NamedTuple):
    """`sides` says of each word how many it sees to its left and right: left * (window + 1) + right, 0 for padding."""

    around: Tensor  # (chunks, window + words + window): ids
    sides: Tensor  # (chunks, words)
    noise: Tensor  # (chunks, drawn): ids to be told from the real ones, drawn once for all words of a chunk

    @property
    def centres(self) -> Tensor:
        """(chunks, words): ids."""
        window = (self.around.shape[1] - self.sides.shape[1]) // 2
        return self.around[:, window : window + self.sides.shape[1]]

    def dealt(self, hands: int) -> list["Chunks"]:
        """As cards are, one to each in turns: what a page says again and again is not learnt all at once."""
        order = torch.argsort(torch.arange(len(self.sides), device=self.sides.device) % hands, stable=True)
        return [Chunks(*some) for some in zip(*(part[order].tensor_split(hands) for part in self), strict=True)]


class Bands:
    """Masks of what is near, looked up: one row for each way to see so many words to the left and right."""

    def __init__(self, window: int, words: int, device: torch.device | str = "cpu") -> None:
        steps, reach = torch.arange(-window, window + 1), torch.arange(window + 1)
        seen = (steps >= -reach[:, None, None]) & (steps <= reach[None, :, None]) & (steps != 0)
        self.seen = seen.view(-1, 2 * window + 1).float().to(device)  # (ways, window + 1 + window)
        self.number = self.seen.sum(1)
        band = torch.zeros(len(self.seen), words, words + 2 * window)
        for place in range(words):
            band[:, place, place : place + 2 * window + 1] = self.seen.cpu()
        self.band = band.view(-1, words + 2 * window).to(device)
        self.mean = self.band / self.band.sum(1, keepdim=True).clamp(min=1)
        self.places = torch.arange(words, device=device)

    def near(self, sides: Tensor) -> Tensor:
        """(chunks, words, around): 1 where a word of `around` is seen."""
        return self._rows(self.band, sides)

    def averaged(self, sides: Tensor) -> Tensor:
        """The same, each row divided by what it sees."""
        return self._rows(self.mean, sides)

    def counted(self, sides: Tensor) -> Tensor:
        """(chunks, words, 1): how many each word sees."""
        return self.number.take(sides)[..., None]

    def _rows(self, table: Tensor, sides: Tensor) -> Tensor:
        which = sides * len(self.places) + self.places
        return table.index_select(0, which.flatten()).view(*sides.shape, -1)
