"""Metrics of training: sums that do not depend on how they are split, and the file they are written to."""

import json
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.train.logging import DeviceMetricSums, MetricsLogger, MetricSums

pairs = st.tuples(st.integers(-1000, 1000).map(float), st.integers(0, 50).map(float))  # whose sums are exact
sums = st.dictionaries(st.sampled_from(["mlm_loss", "nsp_loss", "accuracy"]), pairs)


@given(st.lists(sums, max_size=6), st.integers(0, 6))
def test_metric_sums_do_not_depend_on_their_split(all_sums, cut):
    whole, left, right = MetricSums(), MetricSums(), MetricSums()
    for index, some in enumerate(all_sums):
        whole.add(MetricSums(some))
        (left if index < cut else right).add(MetricSums(some))
    left.add(right)
    assert left.sums == whole.sums
    for name, (total, count) in whole.sums.items():
        assert (total, count) == tuple(map(sum, zip(*(some[name] for some in all_sums if name in some), strict=True)))


def test_metric_means_have_loss_as_sum_of_its_parts_first():
    means = MetricSums(
        {"accuracy": (3.0, 4.0), "mlm_loss": (6.0, 3.0), "nsp_loss": (1.0, 2.0), "empty_loss": (0.0, 0.0)}
    ).means()
    assert list(means) == ["loss", "accuracy", "mlm_loss", "nsp_loss"]
    assert means == {"loss": 2.5, "accuracy": 0.75, "mlm_loss": 2.0, "nsp_loss": 0.5}
    assert MetricSums({"accuracy": (1.0, 2.0)}).means() == {"accuracy": 0.5}


def test_metric_sums_drop_nonfinite_pairs_only():
    values = MetricSums({"a": (math.nan, 1.0), "b": (math.inf, 1.0), "c": (1.0, 2.0)})
    assert values.drop_nonfinite().sums == {"c": (1.0, 2.0)}


def test_device_metric_sums_add_in_float64():
    values = DeviceMetricSums()
    for _ in range(10_000):
        values.add("mlm_loss", torch.tensor(0.1), torch.tensor(1))  # in float32 the sum would be off by 1e-4
    total, count = values.to_host().sums["mlm_loss"]
    assert count == 10_000 and math.isclose(total, 10_000 * float(torch.tensor(0.1)), rel_tol=1e-12)


def test_metrics_logger_writes_json_and_truncates_to_whole_rows(tmp_path):
    logger = MetricsLogger(tmp_path)
    logger.log(1, loss=0.5, note="a–b")
    size = logger.flush()
    logger.log(2, loss=math.nan, grad_norm=math.inf)
    first, second = map(json.loads, logger.path.read_text(encoding="utf-8").splitlines())
    assert first == {"step": 1, "loss": 0.5, "note": "a–b"} and second == {"step": 2, "loss": None, "grad_norm": None}
    for cut in (size, size + 5):  # a killed run may have written half of the next row
        logger.truncate(cut, 1)
        assert [json.loads(line)["step"] for line in logger.path.read_text(encoding="utf-8").splitlines()] == [1]


def test_metrics_logger_of_other_ranks_writes_nothing(tmp_path):
    logger = MetricsLogger(tmp_path, enabled=False)
    logger.log(1, loss=0.5)
    assert logger.flush() == 0 and not list(tmp_path.iterdir())
