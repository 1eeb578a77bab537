"""The corpus and the healthy run that every broken one is compared with."""

from pathlib import Path

import pytest

from tests.support.diagnostics import generate_text, prepare_corpus, run_pretraining


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("doctor"), generate_text(500))


@pytest.fixture(scope="session")
def healthy_run(tmp_path_factory: pytest.TempPathFactory, corpus_folder: Path) -> Path:
    """Trained long enough to use context."""
    return run_pretraining(corpus_folder, tmp_path_factory.mktemp("doctor") / "healthy", steps=220, eval_every=55)
