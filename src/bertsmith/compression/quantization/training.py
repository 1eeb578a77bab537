"""Quantization-aware training (Q8BERT, Zafrir et al. 2019): the task is learned through fake quantization, and the ranges, too.

The original model teaches the quantized one, as in the other stages that make a model smaller.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

from ...runs import Run
from ...train.param_groups import ParamSchedule, ParamScheduleFn
from ..recovery.run import Setup, Smaller, Source, train
from ..recovery.teacher import Teacher
from .candidate import Candidates, FloatModel
from .fake_quantize import RANGE_SUFFIXES, FakeQuantizer
from .recipe import QuantizeRecipe

RANGE_LR_SCALE = 10.0  # learning rate of the ranges, in units of that of the weights


def train_quantized(
    recipe: QuantizeRecipe, run: Run, source: Source, setup: Setup, candidates: Candidates
) -> tuple[Candidates, dict[str, Any]]:
    """The candidates of the trained model, with its learned ranges, and the summary of the run."""
    model = deepcopy(source.model)
    quantizer = FakeQuantizer(model, candidates.activations or {}, candidates.input_scales)
    layers = range(source.model.config.encoder.num_hidden_layers)
    smaller = Smaller(model, source.tokenizer, Teacher(source.model, layers))
    summary = train(recipe, "quantize", run, source, setup, smaller, wrap_schedule=_set_ranges_rate)
    input_scales = {**candidates.input_scales, **quantizer.input_scales()}
    activations = {**(candidates.activations or {}), **quantizer.remove()}
    trained = FloatModel(model.cpu().eval(), candidates.source.task)
    return replace(candidates, source=trained, input_scales=input_scales, activations=activations), summary


def _set_ranges_rate(schedule: ParamScheduleFn, learning_rate: float) -> ParamScheduleFn:
    ranges = ParamSchedule(RANGE_LR_SCALE)
    return lambda name: ranges if name.endswith(RANGE_SUFFIXES) else schedule(name)
