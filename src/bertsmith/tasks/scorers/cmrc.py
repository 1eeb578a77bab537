"""How answers in Chinese are scored: exact match and F1 over the longest common stretch, as CMRC 2018 defines them."""

import re
from collections.abc import Sequence

# The marks CMRC passes over. Its list also names the two-character "……", which no single character equals: "…" stays.
_PASSED_OVER = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHINESE = re.compile("[一-龥]")
_MARKS = r";@#$%&?!()\[\]{}<>\"«»„‘–—―‒"
# What is not Chinese is cut as the Penn Treebank does: marks alone, a comma inside a number kept, the last full stop apart.
_WORD = re.compile(rf"\.{{2,}}|[{_MARKS}]|,(?!\d)|(?:[^\s,.{_MARKS}]|,(?=\d)|\.(?!\.))+")
_CLITIC = re.compile(r"(?<=[^'])(?=(?:'(?:s|m|d|ll|re|ve)?|n't)$)")
_CLOSING = frozenset("])}>\"'»")


def exact(said: str, answers: Sequence[str]) -> float:
    """1 if what was said is any of the answers, but for case and CMRC's marks."""
    return max((float(_bare(said) == _bare(answer)) for answer in answers), default=0.0)


def f1(said: str, answers: Sequence[str]) -> float:
    """The best of all answers: how much of both is their longest common stretch, in characters and foreign words."""
    return max((_overlap(parts(said), parts(answer)) for answer in answers), default=0.0)


def parts(text: str) -> list[str]:
    """Each Chinese character and each word of other writing, in lower case, without CMRC's marks."""
    found, stretch = [], ""
    for character in _bare(text):
        if _CHINESE.match(character):
            found += [*_words(stretch), character]
            stretch = ""
        else:
            stretch += character
    return found + _words(stretch)


def _bare(text: str) -> str:
    return "".join(character for character in text.lower().strip() if character not in _PASSED_OVER)


def _words(stretch: str) -> list[str]:
    words = [part for word in _WORD.findall(stretch) for part in _CLITIC.split(word)]
    last = next((at for at in range(len(words) - 1, -1, -1) if words[at] not in _CLOSING), None)
    if last is not None and words[last].endswith(".") and words[last].strip("."):
        words[last : last + 1] = [words[last][:-1], "."]
    return words


def _overlap(said: list[str], answer: list[str]) -> float:
    common = _longest_common(said, answer)
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(answer)
    return 2 * precision * recall / (precision + recall)


def _longest_common(first: list[str], second: list[str]) -> int:
    """The length of the longest stretch both have, unbroken."""
    best, before = 0, [0] * (len(second) + 1)  # before[j]: how long the stretch is that ends at second[j - 1]
    for one in first:
        here = [0] * (len(second) + 1)
        for place, other in enumerate(second):
            if one == other:
                here[place + 1] = before[place] + 1
        best, before = max(best, *here), here
    return best
