"""A small vocabulary, and random English, Chinese and Unicode texts."""

import numpy as np
from hypothesis import strategies as st

WORDS = """
the of and to in a is that it was for on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way
""".split()  # noqa: SIM905
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHINESE_CHARS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜金生丽水玉出昆冈"
VOCAB = [
    *SPECIAL_TOKENS,
    *".,!?;:'\"()-",
    *LETTERS,
    *(f"##{c}" for c in LETTERS),
    *[w for w in WORDS if len(w) > 1],
    *CHINESE_CHARS,
    "。",
    "，",
]


def make_english_text(documents: int, seed: int = 0, sentences: int = 12) -> str:
    """Random English documents: one sentence per line, a blank line between documents."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        lines = [" ".join(rng.choice(WORDS, rng.integers(3, 18))).capitalize() + "." for _ in range(rng.integers(1, sentences))]
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


def make_chinese_text(documents: int, seed: int = 0, sentences: int = 8) -> str:
    """Random Chinese documents: one sentence per line, a blank line between documents."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        lines = [
            "".join(rng.choice(list(CHINESE_CHARS), rng.integers(4, 20))) + "。" for _ in range(rng.integers(2, sentences))
        ]
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


UNUSUAL_CHARACTERS = "天地玄ａＡ，。“”‘’…ςΣİıßéÉＺ≠﷽👩🏽‍🚀\u0301\u0338\u200b\u200d\ufffd\x00\x85\u00a0\u3000\u2028"
likely_chars = st.sampled_from(list(LETTERS + LETTERS.upper() + " .,'\"-\t\r" + UNUSUAL_CHARACTERS))
unicode_texts = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), likely_chars), max_size=60)
