"""Candidates of `compress`, the gate, the Pareto front and the choice, on made-up measurements."""

import pytest

from bertsmith.compression.recovery.report import share_kept
from bertsmith.compression.search.candidates import REFERENCE, Candidate, Trained, list_candidates, list_trained
from bertsmith.compression.search.front import Artifact, Front
from bertsmith.compression.search.measure import Measured
from bertsmith.compression.search.page import render_page
from bertsmith.compression.search.recipe import CompressRecipe
from bertsmith.errors import UserError
from bertsmith.finetuning.examples import Data
from bertsmith.metrics.intervals import ConfidenceInterval


def recipe(**settings):
    return CompressRecipe(model="out/mood", data=Data(train="train.tsv"), out="out/small", **settings)


def artifact(layers, amount, precision, score, size, milliseconds):
    candidate = Candidate(Trained(layers, amount), precision)
    cost = Measured(size, 10 * size, milliseconds / 1000, milliseconds / 500, 1000 / milliseconds)
    return Artifact(candidate, ConfidenceInterval(score, score - 0.02, score + 0.02), score / 0.9, cost)


ORIGINAL = artifact(None, 0.0, "fp32", 0.90, 1000, 8.0)
INT8 = artifact(None, 0.0, "int8", 0.898, 260, 4.0)
THREE = artifact(3, 0.0, "fp32", 0.89, 600, 4.1)
THREE_INT8 = artifact(3, 0.0, "int8", 0.885, 160, 2.0)
PRUNED = artifact(3, 0.5, "int8", 0.84, 110, 1.2)


def front(*artifacts, gate):
    return Front("accuracy", gate, (ORIGINAL, *artifacts))


def test_default_students_have_half_and_a_third_of_the_layers():
    assert [model.folder for model in list_trained(recipe(), 6)] == [
        "original", "pruned-50", "3-layers", "3-layers-pruned-50", "2-layers", "2-layers-pruned-50",
    ]  # fmt: skip
    assert [model.folder for model in list_trained(recipe(amount=()), 2)] == ["original", "1-layers"]
    assert [model.folder for model in list_trained(recipe(num_hidden_layers=(), amount=(0.3, 0.7)), 1)] == [
        "original", "pruned-30", "pruned-70",
    ]  # fmt: skip


def test_every_model_comes_after_its_parent_and_has_a_folder_of_its_own():
    models = list_trained(recipe(num_hidden_layers=(4, 2), amount=(0.25, 0.5)), 6)
    assert len({model.folder for model in models}) == len(models) == 9
    for index, model in enumerate(models):
        assert model.parent is None or model.parent in models[:index]


def test_a_student_needs_fewer_layers():
    with pytest.raises(UserError, match="has 6 layers; students need fewer"):
        list_trained(recipe(num_hidden_layers=(6,)), 6)


def test_the_original_is_always_measured_in_fp32():
    only_int8 = recipe(precision=("int8",))
    assert list_candidates(only_int8, Trained()) == [REFERENCE, Candidate(Trained(), "int8")]
    assert list_candidates(only_int8, Trained(3)) == [Candidate(Trained(3), "int8")]


@pytest.mark.parametrize(("gate", "chosen"), [(0.99, INT8), (0.98, THREE_INT8), (0.9, PRUNED), (0.999, None)])
def test_the_smallest_that_passes_is_chosen(gate, chosen):
    assert front(INT8, THREE, THREE_INT8, PRUNED, gate=gate).chosen is chosen


def test_the_original_itself_is_no_choice():
    assert front(gate=0.9).chosen is None and front(artifact(3, 0.0, "fp32", 0.9, 1000, 1.0), gate=0.9).chosen is None


def test_the_pareto_front_leaves_out_what_another_beats_everywhere():
    results = front(INT8, THREE, THREE_INT8, PRUNED, gate=0.98)
    assert [results.is_optimal(one) for one in results.artifacts] == [True, True, False, True, True]
    assert results.speedup(THREE_INT8) == pytest.approx(4) and results.shrinkage(INT8) == pytest.approx(1000 / 260)


def test_errors_are_kept_the_other_way_round():
    assert share_kept(0.8, 0.9, False) == pytest.approx(8 / 9)
    assert share_kept(0.5, 0.4, True) == pytest.approx(0.8) and share_kept(0.0, 0.4, True) == 1


def test_the_page_says_what_was_chosen_or_that_nothing_was():
    page = render_page(front(INT8, THREE_INT8, gate=0.98), "out/mood").decode()
    assert "3 layers, int8" in page and "the smallest that keeps 98.0%" in page and "<script" not in page
    assert page.count("<svg") >= 2
    refused = render_page(front(PRUNED, gate=0.98), "out/mood").decode()
    assert "no model was written" in refused and "3 layers, 50% pruned, int8, keeps 93.3%" in refused
