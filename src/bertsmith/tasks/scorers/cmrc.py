"""How answers in Chinese are scored: exact match and F1 over the longest common stretch, as CMRC 2018 defines them."""

import re
from collections.abc import Sequence

# The marks CMRC passes over. Its list also names the two-character "……", which no single character equals: "…" stays.
_IGNORED_PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHINESE = re.compile("[一-龥]")
_PUNCTUATION = r";@#$%&?!()\[\]{}<>\"«»„‘–—―‒"
# What is not Chinese is cut as the Penn Treebank does: marks alone, a comma inside a number kept, the last full stop apart.
_WORD = re.compile(rf"\.{{2,}}|[{_PUNCTUATION}]|,(?!\d)|(?:[^\s,.{_PUNCTUATION}]|,(?=\d)|\.(?!\.))+")
_CLITIC = re.compile(r"(?<=[^'])(?=(?:'(?:s|m|d|ll|re|ve)?|n't)$)")
_CLOSING = frozenset("])}>\"'»")


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if what was said is any of the answers, but for case and CMRC's marks."""
    return max((float(_remove_punctuation(prediction) == _remove_punctuation(answer)) for answer in references), default=0.0)


def f1(prediction: str, references: Sequence[str]) -> float:
    """The best of all answers: how much of both is their longest common stretch, in characters and foreign words."""
    return max(
        (_substring_f1(mixed_segmentation(prediction), mixed_segmentation(answer)) for answer in references), default=0.0
    )


def mixed_segmentation(text: str) -> list[str]:
    """Each Chinese character and each word of other writing, in lower case, without CMRC's marks."""
    found, stretch = [], ""
    for character in _remove_punctuation(text):
        if _CHINESE.match(character):
            found += [*_split_non_chinese(stretch), character]
            stretch = ""
        else:
            stretch += character
    return found + _split_non_chinese(stretch)


def _remove_punctuation(text: str) -> str:
    return "".join(character for character in text.lower().strip() if character not in _IGNORED_PUNCTUATION)


def _split_non_chinese(text: str) -> list[str]:
    words = [part for word in _WORD.findall(text) for part in _CLITIC.split(word)]
    last = next((at for at in range(len(words) - 1, -1, -1) if words[at] not in _CLOSING), None)
    if last is not None and words[last].endswith(".") and words[last].strip("."):
        words[last : last + 1] = [words[last][:-1], "."]
    return words


def _substring_f1(prediction: list[str], reference: list[str]) -> float:
    common = _longest_common_substring(prediction, reference)
    if not common:
        return 0.0
    precision, recall = common / len(prediction), common / len(reference)
    return 2 * precision * recall / (precision + recall)


def _longest_common_substring(first: list[str], second: list[str]) -> int:
    """The length of the longest stretch both have, unbroken."""
    best, before = 0, [0] * (len(second) + 1)  # before[j]: how long the stretch is that ends at second[j - 1]
    for one in first:
        here = [0] * (len(second) + 1)
        for place, other in enumerate(second):
            if one == other:
                here[place + 1] = before[place] + 1
        best, before = max(best, *here), here
    return best
