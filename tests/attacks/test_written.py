"""The fast part of the attacks on what is written, for stages without torch."""

import pytest

from tests.attacks import deaths, disks, kills, links, places, resources
from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import run_case
from tests.attacks.stages import list_stages
from tests.support.cli import run_cli
from tests.support.texts import make_english_text

STAGES = ("tokenizer", "prepare", "prepare drop", "show corpus")
FAMILIES = {"deaths": deaths, "resources": resources, "links": links, "places": places, "kills": kills, "disks": disks}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """Text, tokenizer and corpus; the other paths are absent."""
    root = tmp_path_factory.mktemp("artifacts")
    (root / "text.txt").write_text(make_english_text(5), encoding="utf-8")
    paths = {name: root / name for name in Artifacts.__dataclass_fields__ if name not in ("root", "text")}
    run_cli("tokenizer", f"texts={root}/text.txt", "vocab_size=150", f"out={paths['tokenizer']}", "--quiet")
    inputs = (f"texts={root}/text.txt", f"tokenizer={paths['tokenizer']}")
    run_cli("prepare", *inputs, f"out={paths['corpus']}", "workers=1", "--quiet")
    return Artifacts(root, root / "text.txt", **paths)


@pytest.mark.parametrize(
    ("family", "count"), [("deaths", 12), ("resources", 12), ("links", 30), ("places", 40), ("kills", 4), ("disks", 4)]
)
def test_nothing_is_lost(artifacts, tmp_path, family, count):
    stages = [stage for stage in list_stages(artifacts) if stage.name in STAGES]
    given = (artifacts,) if family == "places" else ()
    cases = FAMILIES[family].cases_of(stages, *given, tmp_path, count, 0)
    problems = {case.name: found for case in cases if (found := run_case(case)[1])}
    assert not problems
