"""Quantize: measure ranges, keep the layers that hurt in float32, compare with the gate, publish."""

import shutil
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from ... import cores, runs
from ...artifacts import atomic_folder, resolve_path
from ...config import to_dict
from ...console import Console
from ...convert.onnx.support import check_exportable
from ...errors import UserError
from ...evaluation.evaluate import Evaluation, evaluate_model
from ...inference.predictor import Predictor
from ...model.heads.cross_attention import CrossAttentionHead
from ...runs import Run
from ...tasks import Task
from ...writing import check_writable, resolve_output
from ..recovery.report import compare_speed, describe_scores, measure_speed, share_kept
from ..recovery.run import Setup, Source, load_source, read_setup, record_recipe
from . import calibration
from .calibration import Feeds
from .candidate import Candidates, FloatModel, Quantized
from .quality import Quality, compare, compute_outputs, measure_sensitivity
from .recipe import QuantizeRecipe, check_recipe, quantize_identity
from .report import list_rows, list_sensitivity
from .training import train_quantized
from .weights import smoothing_scale

TEST_SAMPLES = 64  # sequences that were not calibrated on, on which outputs are compared
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class Samples(NamedTuple):
    """Inputs of the graph: to measure ranges on, and others to compare outputs on."""

    calibration: list[Feeds]
    test: list[Feeds]
    margin: float  # of the ranges, in units of those measured


class Measured(NamedTuple):
    """A quantized model and how good it is; `evaluation` is None without dev examples."""

    quantized: Quantized
    quality: Quality
    kept: float  # share of the main metric that remains, or the mean cosine: what the gate is compared with
    evaluation: Evaluation | None


def quantize(recipe: QuantizeRecipe, quiet: bool = False) -> dict[str, Any]:
    """Quantize, resume an interrupted run (mode=qat), or return the result of a finished one."""
    check_recipe(recipe)
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise UserError(f"quantize needs {' and '.join(missing)}: pip install 'bertsmith[export,onnx]'")
    console, out = Console(quiet), resolve_output(recipe.out)
    with runs.open_run(out, quantize_identity(recipe), console) as run:
        return run.finished_result or _quantize(recipe, run)


def _quantize(recipe: QuantizeRecipe, run: Run) -> dict[str, Any]:
    source = load_source(recipe)
    check_exportable(source.model, source.task)
    setup = read_setup(recipe, source, run.console)
    if recipe.resolved_mode != "qat":
        check_writable(run.folder)
    task = setup.objective.finalize_task(source.model) if setup else source.task
    samples = _read_samples(recipe, source, setup)
    original = FloatModel(source.model, task)
    if not original.linears:
        raise UserError(f"{recipe.model} has no linear layers that int8 makes faster; `bertsmith export format=int8` stores "
                       "its weights as int8")  # fmt: skip
    summary: dict[str, Any] = {"mode": recipe.resolved_mode}
    candidates = _calibrate(recipe, original, samples)
    if recipe.resolved_mode == "qat":
        assert setup is not None
        candidates, trained = train_quantized(recipe, run, source, setup, candidates)
        summary |= trained
    with ExitStack() as stack:
        comparison = _Comparison(recipe, source, setup, task, original, samples, stack)
        chosen, float_names, sensitivity = _choose(recipe, candidates, comparison, run.console)
        summary |= comparison.describe(chosen, candidates, float_names)
    if sensitivity:
        summary["sensitivity"] = sensitivity
        run.console.print_table("error of the outputs when one layer is quantized", list_sensitivity(sensitivity))
    return _publish(recipe, run, source, setup, task, chosen, summary)


def _read_samples(recipe: QuantizeRecipe, source: Source, setup: Setup | None) -> Samples:
    encoder, count = source.model.config.encoder, recipe.calibration_samples
    longest = encoder.max_position_embeddings
    if setup is None and recipe.corpus is None:
        measured, test = (calibration.draw_batches(source.tokenizer, longest, seed) for seed in (recipe.seed, recipe.seed + 1))
        return Samples(measured, test, calibration.DRAWN_MARGIN)
    if setup is None:
        corpus = calibration.open_corpus(resolve_path(cast(str, recipe.corpus), "corpus"), source.tokenizer)
        max_length = min(recipe.max_length or source.record.get("max_length") or longest, longest)
        batches = calibration.batch_corpus(corpus, source.tokenizer, max_length, count + TEST_SAMPLES, recipe.seed)
        return Samples(batches[:count], batches[count:], 1.0)
    reads_pairs = any(isinstance(head, CrossAttentionHead) for head in source.model.heads.values())
    order = np.random.default_rng(recipe.seed).permutation(len(setup.examples.train))[: count + TEST_SAMPLES]
    num_test = max(1, min(TEST_SAMPLES, len(order) // 2))
    parts = list[list[Feeds]]()
    for part in (order[num_test:][:count], order[:num_test]):
        chosen = [setup.examples.train[i] for i in part] or [setup.examples.train[i] for i in order]
        encoded = setup.objective.task.encode(chosen, source.tokenizer, setup.max_length)
        parts.append(calibration.batch_examples(encoded, range(len(encoded.input_ids))[:count], reads_pairs))
    return Samples(parts[0], parts[1], 1.0)


def _calibrate(recipe: QuantizeRecipe, original: FloatModel, samples: Samples) -> Candidates:
    """Smoothing of every linear layer, and the ranges of their inputs (mode=qat: before training)."""
    channels = calibration.measure_channels(original.graph, original.weights, original.linears, samples.calibration)
    scales = {name: smoothing_scale(original.weights[name], values) for name, values in channels.items()}
    if recipe.resolved_mode == "dynamic":
        return Candidates(original, scales, None, recipe.embedding_bits)
    if recipe.percentile is not None:
        activations = calibration.measure_percentiles(
            original.graph, original.weights, original.linears, samples.calibration, scales, recipe.percentile
        )
    else:
        activations = {
            name: calibration.smoothed_range(values, scales[name], samples.margin) for name, values in channels.items()
        }
    return Candidates(original, scales, activations, recipe.embedding_bits)


class _Comparison:
    """The score of the original model, and that of quantized ones."""

    def __init__(
        self, recipe: QuantizeRecipe, source: Source, setup: Setup | None, task: Task | None, original: FloatModel,
        samples: Samples, stack: ExitStack,
    ) -> None:  # fmt: skip
        self.recipe, self.source, self.setup, self.task, self.original = recipe, source, setup, task, original
        self.test = samples.test
        self.outputs = compute_outputs(original.as_quantized().open(), self.test)
        self.before = self._predictor(original.as_quantized(), stack)
        self.evaluation = self._evaluate(self.before)

    def measure(self, quantized: Quantized) -> Measured:
        quality = compare(compute_outputs(quantized.open(), self.test), self.outputs)
        with ExitStack() as stack:
            evaluation = self._evaluate(self._predictor(quantized, stack))
        kept = quality.cosine
        if evaluation is not None and self.evaluation is not None:
            metric = cast(Setup, self.setup).metric
            before, after = self.evaluation.scores[metric], evaluation.scores[metric]
            kept = share_kept(after, before, evaluation.metrics[metric].lower_is_better)
        return Measured(quantized, quality, kept, evaluation)

    def describe(self, measured: Measured, candidates: Candidates, float_names: frozenset[str]) -> dict[str, Any]:
        """The result: bytes, layers, score and speed before and after."""
        names = candidates.names
        result: dict[str, Any] = {
            "before": {"bytes": self.original.as_quantized().num_bytes},
            "after": {"bytes": measured.quantized.num_bytes},
            "int8_layers": sum(layer.weight not in float_names for layer in self.original.linears),
            "float_layers": [name for name in names if name in float_names],
            "embedding_bits": candidates.table_bits, "quality": measured.quality._asdict(), "kept": measured.kept,
            "has_vnni": cores.has_vnni(),
        }  # fmt: skip
        with ExitStack() as stack:
            after = self._predictor(measured.quantized, stack)
            if measured.evaluation is not None and self.evaluation is not None and self.setup is not None:
                result |= {"dev": measured.evaluation.scores, "metric": self.setup.metric}
                result["score"] = describe_scores(self.setup.metric, self.evaluation, measured.evaluation)
                if self.setup.examples.test:
                    after.task = measured.evaluation.task
                    result["test"] = evaluate_model(after, self.setup.examples.test).scores
            result["speed"] = self._compare_speed(after)
        return result

    def _predictor(self, quantized: Quantized, stack: ExitStack) -> Predictor:
        engine = stack.enter_context(quantized.open_engine(self.source.model))
        max_length = self.setup.max_length if self.setup else self.source.record.get("max_length", 0)
        return Predictor(engine, self.source.tokenizer, {}, self.task, max_length)

    def _evaluate(self, predictor: Predictor) -> Evaluation | None:
        if self.setup is None or not self.setup.examples.dev:
            return None
        return evaluate_model(predictor, self.setup.examples.dev, tune=True)

    def _compare_speed(self, after: Predictor) -> dict[str, float]:
        """Of both in onnxruntime: on the dev examples, or the vectors of the sequences that outputs are compared on."""
        if self.setup is not None and self.setup.examples.dev:
            return measure_speed(self.before, after, self.setup.examples.dev)
        ids = [row for feeds in self.test for row in feeds["input_ids"]]

        def embed(predictor: Predictor, rows: list[Any]) -> None:
            for batch in predictor.engine.batch_by_length(np.array([len(row) for row in rows])):
                predictor.engine.embed([rows[i] for i in batch], "mean")

        return compare_speed(lambda rows: embed(self.before, list(rows)), lambda rows: embed(after, list(rows)), ids)


def _choose(
    recipe: QuantizeRecipe, candidates: Candidates, comparison: _Comparison, console: Console
) -> tuple[Measured, frozenset[str], list[dict[str, Any]]]:
    """The candidate that passes the gate, the weights of it in float32, and the table of sensitivity, if it was needed.

    While it is worse than the gate, the layers whose outputs have the largest error alone stay in float32: one, two, four ...,
    at most half of them.
    """
    chosen = _float_names(recipe, candidates)
    measured = comparison.measure(candidates.build(chosen))
    sensitivity = list[dict[str, Any]]()
    if recipe.sensitivity or measured.kept < recipe.gate:
        names = [name for name in candidates.names if name not in chosen]
        sensitivity = measure_sensitivity(names, candidates.open_with, comparison.test, comparison.outputs)
    first, count, float_names = measured, 1, chosen
    while measured.kept < recipe.gate:
        if count > max(1, len(sensitivity) // 2):
            raise UserError(_refuse(recipe, comparison, first, measured, float_names, sensitivity))
        float_names = chosen | {row["layer"] for row in sensitivity[:count]}
        measured = comparison.measure(candidates.build(float_names))
        console.info(f"{count} of {len(candidates.names)} layers in float32: {_describe(comparison, measured)}")
        count *= 2
    return measured, float_names, sensitivity


def _float_names(recipe: QuantizeRecipe, candidates: Candidates) -> frozenset[str]:
    """The weights of `modules_to_not_convert`, named as in the model or from the stack of layers on."""
    names, chosen = candidates.names, set[str]()
    for prefix in recipe.modules_to_not_convert:
        starts = tuple(f"{parent}{prefix.rstrip('.')}." for parent in ("", "encoder.", "encoder.stack."))
        found = [name for name in names if f"{name}.".startswith(starts)]
        if not found:
            raise UserError(f"modules_to_not_convert={prefix} is the beginning of no quantized layer's name; the first ones "
                           f"are {', '.join(names[:4])}")  # fmt: skip
        chosen.update(found)
    return frozenset(chosen)


def _describe(comparison: _Comparison, measured: Measured) -> str:
    if measured.evaluation is None or comparison.evaluation is None:
        return f"mean cosine of sentence embeddings {measured.kept:.4f}"
    metric = cast(Setup, comparison.setup).metric
    before, after = comparison.evaluation.scores[metric], measured.evaluation.scores[metric]
    return f"{metric} {after:.4f} of {before:.4f} ({measured.kept:.2%})"


def _refuse(
    recipe: QuantizeRecipe, comparison: _Comparison, first: Measured, last: Measured, float_names: frozenset[str],
    sensitivity: list[dict[str, Any]],
) -> str:  # fmt: skip
    worst = ", ".join(f"{row['layer']} ({row['output_error']:.1%})" for row in sensitivity[:3])
    way_out = "lower gate" if recipe.resolved_mode == "qat" else "use mode=qat, or lower gate"
    if recipe.embedding_bits == 4:
        way_out = f"set embedding_bits=8, {way_out}"
    return (f"gate={recipe.gate:g}: {_describe(comparison, first)}, and with {len(float_names)} layers in float32 "
            f"{_describe(comparison, last)}; nothing was written. The largest errors of outputs come from {worst}; "
            f"{way_out}")  # fmt: skip


def _publish(
    recipe: QuantizeRecipe, run: Run, source: Source, setup: Setup | None, task: Task | None, chosen: Measured,
    summary: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    record = source.record | {"stage": "quantize", "tokenizer_fingerprint": source.tokenizer.fingerprint}
    card: dict[str, Any] = {key: source.card[key] for key in ("finetuning",) if key in source.card}
    if chosen.evaluation is not None and setup is not None:
        task = chosen.evaluation.task
        record["max_length"] = setup.max_length
        card |= chosen.evaluation.card
    record |= {"task": to_dict(task)} if task is not None else {}

    def write(folder: Path, card: dict[str, Any], provenance: dict[str, Any]) -> None:
        chosen.quantized.write(folder, run.folder.absolute().name, source.model, task, source.tokenizer, card, provenance)

    written = (write, {**card, "result": summary}, record, record_recipe(recipe))
    log = run.folder / "metrics.jsonl"  # of a run that trained; what else its folder has are checkpoints
    with atomic_folder(run.folder if log.exists() else check_writable(run.folder)) as staging:
        if log.exists():
            shutil.copyfile(log, staging / log.name)
        replace(run, folder=staging).publish(*written)
    run.console.print_table(str(run.folder), list_rows(summary))
    return {"out": str(run.folder), "created": True, **summary}
