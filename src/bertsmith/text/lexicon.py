"""How words are spelt, in the numbers that ELMo's characters have; words never seen are appended as they come."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from tokenizers import Encoding

BEGIN, END = 256, 257  # of a sentence, each a word of one such letter
WORD, OVER, PADDING = 258, 259, 260  # a word begins, it is over, and what follows it
SYMBOLS = 261


class Lexicon:
    """Numbered words: those of a vocabulary, and behind them those met since. It lives as long as the process does."""

    def __init__(self, words: Sequence[str] = (), begin: int = -1, end: int = -1) -> None:
        """`begin` and `end` are the numbers of the words around a sentence."""
        self.words, self.begin, self.end = list(words), begin, end
        self.new: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.words)

    def number(self, word: str) -> int:
        """Of a word outside the vocabulary: the same whenever it comes again."""
        if word not in self.new:
            self.new[word] = len(self.words)
            self.words.append(word)
        return self.new[word]

    def spelling(self, number: int, letters: int) -> list[int]:
        """`letters` numbers from 1 up, as the published model has them: a long word is cut."""
        inner = [BEGIN] if number == self.begin else [END] if number == self.end else list(self.words[number].encode())
        spelt = [WORD, *inner[: letters - 2], OVER]
        return [one + 1 for one in spelt] + [PADDING + 1] * (letters - len(spelt))


class Numbered:
    """An encoding whose unknown words have numbers of their own."""

    def __init__(self, encoding: Encoding, ids: list[int]) -> None:
        self.encoding, self.ids = encoding, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoding, name)


def numbered(encoding: Encoding, text: str, unknown: int, clean: Callable[[str], str], lexicon: Lexicon) -> Encoding:
    ids = list(encoding.ids)
    for place, (start, end) in enumerate(encoding.offsets):
        if ids[place] == unknown:
            ids[place] = lexicon.number(clean(text[start:end]).strip())
    return cast(Encoding, Numbered(encoding, ids))
