"""A barely pretrained model, for the tasks of journeys, which are easy."""

import pytest

from tests.support.cli import SMALL, run_cli


@pytest.fixture(scope="session")
def bert(corpus, tmp_path_factory):
    """A barely pretrained model; the tasks here are easy."""
    out = tmp_path_factory.mktemp("bert") / "bert"
    words = [word for word in SMALL if "max_position_embeddings" not in word]
    run_cli(
        "pretrain", f"corpus={corpus}", f"out={out}", *words, "model.initializer_range=0.1", "model.norm=pre", "train.steps=5"
    )
    return out
