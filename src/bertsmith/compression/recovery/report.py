"""What a smaller model kept, and what it cost: units by layer, parameters, bytes, speed, and the score with its interval."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from torch import nn

from ...evaluation.evaluate import Evaluation
from ...inference.predictor import Predictor
from ...model.model import Model
from ...model.transformer import Block
from ..pruning.structure import count_heads, count_neurons

MAX_TIMED = 512  # examples that the speed is measured on
ROUNDS = 5  # times both models answer them, in turn; the median counts


def describe_model(model: Model) -> dict[str, Any]:
    """Parameters, bytes of the weights, the share of zeros in the matrices of the layers, and the units of each layer."""
    blocks: list[Block] = list(model.encoder.stack.layers)  # type: ignore[arg-type]
    matrices = [module.weight for block in blocks for module in block.modules() if isinstance(module, nn.Linear)]
    num_weights = sum(matrix.numel() for matrix in matrices)
    num_zeros = sum(int((matrix == 0).sum()) for matrix in matrices)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "bytes": sum(weight.nbytes for weight in model.state_dict().values()),
        "layer_parameters": sum(parameter.numel() for block in blocks for parameter in block.parameters()),
        "zeros": num_zeros / max(num_weights, 1),
        "vocab_size": model.config.vocab_size,
        "heads": [count_heads(block) for block in blocks],
        "neurons": [count_neurons(block) for block in blocks],
    }


def measure_speed(before: Predictor, after: Predictor, examples: Sequence[Any]) -> dict[str, float]:
    """Examples per second of both models, tokenization and decoding included, and their ratio (`speedup`)."""
    timed = examples[:MAX_TIMED]
    return compare_speed(before.predict_examples, after.predict_examples, timed)


def compare_speed(
    before: Callable[[Sequence[Any]], Any], after: Callable[[Sequence[Any]], Any], examples: Sequence[Any]
) -> dict[str, float]:
    """Examples per second of two functions, and their ratio.

    Both answer the same examples in turn, so that a busy machine slows both.
    """
    functions, seconds = {"before": before, "after": after}, {"before": list[float](), "after": list[float]()}
    for function in functions.values():
        function(examples[: max(1, len(examples) // 8)])  # the first call is slower
    for _ in range(ROUNDS):
        for name, function in functions.items():
            start = time.perf_counter()
            function(examples)
            seconds[name].append(time.perf_counter() - start)
    rates = {f"examples_per_second_{name}": len(examples) / median(values) for name, values in seconds.items()}
    return rates | {"speedup": median(seconds["before"]) / median(seconds["after"])}


def describe_scores(metric: str, before: Evaluation, after: Evaluation) -> dict[str, Any]:
    """The main metric of both models with its 95 % confidence interval, and the share that is kept."""
    scores: dict[str, Any] = {}
    for name, evaluation in (("before", before), ("after", after)):
        scores[name] = {"value": evaluation.scores[metric]}
        if metric in evaluation.intervals:
            interval = evaluation.intervals[metric]
            scores[name] |= {"value": interval.value, "confidence_interval": [interval.low, interval.high]}
    first = scores["before"]["value"]
    return {"metric": metric, **scores} | ({"kept": scores["after"]["value"] / first} if first else {})


def share_kept(score: float, original: float, lower_is_better: bool) -> float:
    """score / original; the other way round for an error. An error of 0, and a score of 0 that was 0, is kept whole."""
    if lower_is_better:
        return 1.0 if score == 0 else original / score
    return score / original if original else 1.0


def list_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table on the console: before and after."""
    before, after = result["before"], result["after"]
    rows: list[tuple[str, ...]] = [("", "before", "after")]
    rows += [
        (name, f"{before[name]:,}", f"{after[name]:,}") for name in ("parameters", "bytes", "layer_parameters", "vocab_size")
    ]
    rows.append(("zeros in layers", f"{before['zeros']:.1%}", f"{after['zeros']:.1%}"))
    for name in ("heads", "neurons"):
        if any(before[name]):
            rows.append((f"{name} by layer", *(" ".join(map(str, described[name])) for described in (before, after))))
    if score := result.get("score"):
        rows.append((score["metric"], *(format_score(score[name]) for name in ("before", "after"))))
    if speed := result.get("speed"):
        rates = [f"{speed[f'examples_per_second_{name}']:,.0f}" for name in ("before", "after")]
        rows.append(("examples/s", rates[0], f"{rates[1]} ({speed['speedup']:.2f}x)"))
    return rows


def format_score(score: dict[str, Any]) -> str:
    if "confidence_interval" not in score:
        return f"{score['value']:.4f}"
    low, high = score["confidence_interval"]
    return f"{score['value']:.4f} [{low:.4f}, {high:.4f}]"
