"""A few cases of the families that need no processes of their own; `make test-attacks` runs all."""

import pytest

from tests.attacks import damage, escapes, folders, keys, texts
from tests.attacks.artifacts import build_artifacts
from tests.attacks.harness import run_case


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return build_artifacts(tmp_path_factory.mktemp("attacks") / "artifacts")


@pytest.mark.parametrize(("family", "count"), [(keys, 40), (texts, 30), (escapes, 30), (damage, 17), (folders, 34)])
def test_no_case_of_a_family_finds_a_problem(family, count, artifacts, tmp_path):
    for case in family.build_cases(artifacts, tmp_path, count, seed=7):
        _, problems = run_case(case)
        assert not problems, case.name
