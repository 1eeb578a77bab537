"""Text learnt by heart: held-out loss that rises or lies far above training's, and text read too often."""

from collections.abc import Iterator
from typing import Any

from .course import Course
from .finding import Finding, number
from .run import Run

RISE = 0.02  # of the lowest held-out loss
GAP, LEAST = 0.2, 0.2  # of the training loss, and in nats
EPOCHS = 100  # BERT read its text 40 times, with masks that came again


def overfit(course: Course, run: Run, card: dict[str, Any] | None) -> Iterator[Finding]:
    name, held, steps = course.judged()
    read = epochs(course, card)
    risen = len(held) > 1 and not run.train("stop") and held[-1] > (1 + RISE) * held.min() + 0.01
    apart = len(held) > 0 and name == "valid" and held[-1] - course.end > max(LEAST, GAP * course.end)
    often = f", the text read {number(read)} times" if read else ""
    if (risen or apart) and course.end <= held[-1]:
        best = int(held.argmin())
        told = f"held-out loss was {held[best]:.3f} at step {steps[best]:,} and is {held[-1]:.3f}" if risen else ""
        gap = f"loss in training is {course.end:.3f}, on held-out text {held[-1]:.3f}" if apart else ""
        # Another corpus may be harder by nature, and fine-tuned answers often get better while their loss gets worse.
        elsewhere = run.stage == "finetune" or (bool((run.recipe or {}).get("valid")) and not risen)
        yield Finding(
            "overfitting", "note" if elsewhere else "problem", f"{'; '.join(filter(None, (told, gap)))}{often}",
            "the model learns its text by heart, and gets no better, or gets worse, at any other",
            "stop at the best evaluation, read more text fewer times, or take a smaller model or more dropout",
            f"train.steps={steps[best]}" if risen else "model.dropout=0.1",
        )  # fmt: skip
    elif read and read > EPOCHS:
        yield Finding(
            "too many epochs", "note", f"{course.tokens:,} tokens were read of a text of {card['tokens'] if card else 0:,}: "
            f"{number(read)} times over",
            "after the first few dozen readings the same text teaches little more; BERT read its own 40 times",
            "gather more text, or stop sooner", f"train.epochs={EPOCHS // 2}",
        )  # fmt: skip


def epochs(course: Course, card: dict[str, Any] | None) -> float | None:
    """How often a run read its text; none, where the text is not known."""
    return course.tokens / card["tokens"] if card and card.get("tokens") else None
