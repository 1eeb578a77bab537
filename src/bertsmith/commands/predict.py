"""Texts, or a file of any size, to answers, one JSON a line, in order."""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import named
from ..config import Config, Count, plain
from ..console import Screen
from ..errors import BadInput
from ..inference import output_files
from ..inference.predictor import Predictor, load
from ..inference.runtime import Precision
from ..inference.text_generation import continues
from ..model.generation.search import Greedy, SearchConfig
from ..tasks import Generate, Tag
from ..tasks.chunked_rows import Reach, Stretch, stretches
from ..tasks.requests import fault_of, unanswered, worded
from ..tasks.table_rows import BadRow

AT_ONCE = 1024  # examples: sorted by length among themselves, and all that is held in memory, but for what context shows
QUESTION = ("text", "text_b", "question", "context", "options")
WORDS = ("candidates", "together", "likelihood")

Answers = Callable[[Stretch], list[Any]]


class Recipe(Config, frozen=True):
    model: Annotated[str, "the folder `finetune` made; one that `pretrain` made fills masks, or writes on, if it is causal"]
    text: Annotated[str | None, "one text to answer, or with [MASK] to fill, or to write on"] = None
    text_b: Annotated[str | None, "the second text of a pair"] = None
    question: Annotated[str | None, "answer, choose: what is asked"] = None
    context: Annotated[str | None, "answer, choose: the passage it is asked about"] = None
    options: Annotated[tuple[str, ...] | None, "choose: what there is to choose from"] = None
    data: Annotated[
        str | None,
        "a file in the task's format, or .txt: a text a line (tag: or CoNLL's columns); labels are not looked at",
    ] = None
    columns: Annotated[dict[str, str], "what text, text_b ... are called in it; as in training, if none"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "rows that cannot be used are answered by an error in their place, and the work goes on"] = False
    top: Annotated[Count, "words told of each mask"] = 5
    together: Annotated[bool, "fill several masks one after another, the surest first, each knowing those before"] = False
    candidates: Annotated[tuple[str, ...] | None, "words for the one mask of a text, to be ranked"] = None
    generate: Annotated[
        SearchConfig, "how a causal model writes on: greedy, sample, beam; with task=generate, if not as the task says"
    ] = Greedy()
    likelihood: Annotated[bool, "how likely a pre-trained model finds texts, each token hidden alone"] = False
    out: Annotated[str | None, "a .jsonl file for the answers; without one they go to the terminal"] = None
    batch_tokens: Annotated[Count | None, "tokens of one batch; what suits the device, if nothing is said"] = None
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, fp32 on a CPU"] = "auto"


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Answers as they come; a file goes on where a killed run of the same command left it."""
    question = {name: value for name in QUESTION if (value := getattr(recipe, name)) is not None}
    if bool(question) == (recipe.data is not None):
        raise BadInput("give text=... or data=FILE, one of the two")
    out = output_files.writable(named(recipe.out, "out"), recipe.data) if recipe.out is not None else None
    screen, predictor = Screen(quiet), load(recipe.model, recipe.device, recipe.precision)
    if out is None:
        count = 0
        for some in _answers(recipe, predictor, question):
            sys.stdout.writelines(_line(answer).decode() for answer in some)
            count += len(some)
    else:
        count = _filed(recipe, predictor, question, out, screen)
        if recipe.skip_bad and (bad := _errors(out)):
            screen.warn(f'{bad:,} rows could not be used; their lines of {out} say why, as {{"error": ...}}')
    return {"model": recipe.model, "answers": count, "out": recipe.out}


def _filed(recipe: Recipe, predictor: Predictor, question: dict[str, Any], out: Path, screen: Screen) -> int:
    with (
        output_files.lines(out, output_files.identity(recipe, recipe.model, recipe.data)) as (file, done),
        screen.bar("answers") as bar,
    ):
        if done:
            screen.say(f"{out}: going on after {done:,} answers")
        count, of = done - done % AT_ONCE, _total(recipe, predictor, screen)
        for some in _answers(recipe, predictor, question, count):
            # Answers depend, in their last digits, on what shares their batches: the same are made again, and left out.
            file.write(b"".join(map(_line, some[max(0, done - count) :])))
            file.flush()
            count += len(some)
            bar(count, of)
    screen.say(f"{count:,} answers in {out}")
    return count


def _errors(out: Path) -> int:
    """Those of the whole file, also where a run before this one made some of it."""
    with out.open("rb") as file:
        return sum(line.startswith(b'{"error": ') for line in file)


def _answers(recipe: Recipe, predictor: Predictor, question: dict[str, Any], skip: int = 0) -> Iterator[list[Any]]:
    """AT_ONCE at a time, without the first `skip`, a multiple of that."""
    answer = _beside(_worded(recipe, predictor) if _of_words(recipe, predictor) else _asked(recipe, predictor))
    if recipe.data is None:
        if _of_words(recipe, predictor):
            if list(question) != ["text"]:
                raise BadInput("a model without a task is given text=... alone; `bertsmith finetune` teaches it a task")
            yield answer(Stretch([recipe.text]))
        else:
            yield [predictor(batch_tokens=recipe.batch_tokens, **question)]
        return
    some = stretches(_rows(recipe, predictor), AT_ONCE, _reach(recipe, predictor))
    yield from map(answer, islice(some, skip // AT_ONCE, None))


def _rows(recipe: Recipe, predictor: Predictor) -> Iterator[Any]:
    path = named(str(recipe.data), "data")
    if _of_words(recipe, predictor):
        return worded(path, recipe.columns, recipe.skip_bad)
    task = predictor.taught()
    if recipe.columns and hasattr(task, "columns"):
        task = msgspec.structs.replace(task, columns=recipe.columns)
    return unanswered(task, path, recipe.skip_bad)


def _reach(recipe: Recipe, predictor: Predictor) -> Reach | None:
    task = predictor.task
    if not isinstance(task, Tag) or _of_words(recipe, predictor):
        return None
    return Reach(task, predictor.tokenizer, predictor.length) if task.context else None


def _of_words(recipe: Recipe, predictor: Predictor) -> bool:
    return predictor.task is None or any(getattr(recipe, name) for name in WORDS)


def _beside(answer: Answers) -> Answers:
    """Answers stand beside their rows: one that cannot be used has what is wrong with it."""

    def either(some: Stretch) -> list[Any]:
        good = iter(answer(some._replace(rows=[one for one in some.rows if not isinstance(one, BadRow)])))
        return [{"error": fault_of(one)} if isinstance(one, BadRow) else next(good) for one in some.rows]

    return either


def _asked(recipe: Recipe, predictor: Predictor) -> Answers:
    if recipe.generate != Greedy():
        if not isinstance(predictor.task, Generate):
            raise BadInput("generate=... is for a model that writes, and the task of this one is another; leave it out")
        predictor.search = recipe.generate

    def answer(some: Stretch) -> list[Any]:
        rows, before, after = ([one.example for one in part] for part in some)
        found = predictor.answers(rows, recipe.batch_tokens, before, after)
        return [one.told(said) for one, said in zip(some.rows, found, strict=True)]

    return answer


def _worded(recipe: Recipe, predictor: Predictor) -> Answers:
    if recipe.likelihood:
        return lambda some: predictor.likelihood(some.rows, recipe.batch_tokens)
    if continues(predictor.model):
        search = plain(recipe.generate)
        return lambda some: predictor.generate(some.rows, batch_tokens=recipe.batch_tokens, **search)
    if recipe.generate != Greedy():
        raise BadInput("generate=... is for a causal model without a task; this one was made otherwise")
    if recipe.candidates:
        return lambda some: [{"candidates": predictor.fill(text, candidates=recipe.candidates)} for text in some.rows]
    return lambda some: [{"masks": predictor.fill(text, recipe.top, together=recipe.together)} for text in some.rows]


def _total(recipe: Recipe, predictor: Predictor, screen: Screen) -> int:
    """How many there will be, for the bar: the file is read once more, where there is somebody to see it."""
    seen = recipe.data is not None and not screen.quiet and sys.stderr.isatty()
    return sum(1 for _ in _rows(recipe, predictor)) if seen else 1


def _line(answer: Any) -> bytes:
    return (json.dumps(answer, ensure_ascii=False) + "\n").encode("utf-8", "replace")
