"""Tiny models of every task, and a server of them."""

import pytest

from tests.support.models import TASKS, save_model
from tests.support.servers import run_server


@pytest.fixture(scope="package")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    return {kind: save_model(root / kind, task) for kind, task in [("bert", None), *TASKS.items()]}


@pytest.fixture(scope="package")
def client(folders):
    with run_server(folders.values()) as client:
        yield client
