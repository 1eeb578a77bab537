"""CMRC 2018 scorer for Chinese question answering: exact match and F1 of the longest common substring."""

import re
from collections.abc import Sequence

# Punctuation CMRC removes. Its list also has the two-character "……", which no single character equals: "…" is kept.
_IGNORED_PUNCTUATION = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHINESE = re.compile("[一-龥]")
_PUNCTUATION = r";@#$%&?!()\[\]{}<>\"«»„‘–—―‒"
# Text that is not Chinese is split as in the Penn Treebank: punctuation separate, but not a comma inside a number; only
# the last full stop is split off.
_WORD = re.compile(rf"\.{{2,}}|[{_PUNCTUATION}]|,(?!\d)|(?:[^\s,.{_PUNCTUATION}]|,(?=\d)|\.(?!\.))+")
_CLITIC = re.compile(r"(?<=[^'])(?=(?:'(?:s|m|d|ll|re|ve)?|n't)$)")
_CLOSING = frozenset("])}>\"'»")


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """1 if the prediction equals any reference, ignoring case and the punctuation CMRC removes."""
    return max((float(_remove_punctuation(prediction) == _remove_punctuation(answer)) for answer in references), default=0.0)


def f1(prediction: str, references: Sequence[str]) -> float:
    """Maximum over references of the F1 of the longest common substring, in units of `mixed_segmentation`."""
    return max(
        (_substring_f1(mixed_segmentation(prediction), mixed_segmentation(answer)) for answer in references), default=0.0
    )


def mixed_segmentation(text: str) -> list[str]:
    """Each Chinese character and each word of other scripts, lowercased, without the punctuation CMRC removes."""
    units, run = [], ""
    for character in _remove_punctuation(text):
        if _CHINESE.match(character):
            units += [*_split_non_chinese(run), character]
            run = ""
        else:
            run += character
    return units + _split_non_chinese(run)


def _remove_punctuation(text: str) -> str:
    return "".join(character for character in text.lower().strip() if character not in _IGNORED_PUNCTUATION)


def _split_non_chinese(text: str) -> list[str]:
    words = [part for word in _WORD.findall(text) for part in _CLITIC.split(word)]
    last = next((index for index in range(len(words) - 1, -1, -1) if words[index] not in _CLOSING), None)
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
    """Length of the longest common substring (contiguous)."""
    best, previous = 0, [0] * (len(second) + 1)  # previous[j]: length of the common suffix that ends at second[j - 1]
    for left in first:
        current = [0] * (len(second) + 1)
        for column, right in enumerate(second):
            if left == right:
                current[column + 1] = previous[column] + 1
        best, previous = max(best, *current), current
    return best
