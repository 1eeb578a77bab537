"""The corpus and the healthy run that every broken one is compared with."""

from pathlib import Path

import pytest

from tests.diagnostics import builders as made


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.corpus(tmp_path_factory.mktemp("doctor"), made.chained(500))


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """Long enough to use context."""
    return made.trained(text, tmp_path_factory.mktemp("doctor") / "healthy", steps=220, eval_every=55)
