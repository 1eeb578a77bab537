"""One server with a tiny model of every task, and one browser, for all tests of the page."""

import pytest

from bertsmith.model import checkpoint
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from tests.support.models import CAUSAL_ENCODER, TASKS, TOKENIZER, save_model
from tests.support.servers import run_server


@pytest.fixture(scope="package")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    gpt = build_model(ModelConfig(encoder=CAUSAL_ENCODER, vocab_size=len(TOKENIZER), heads={"lm": LMHeadConfig()}), 0)
    checkpoint.save(root / "gpt", gpt, TOKENIZER, {}, {})
    return {kind: save_model(root / kind, task) for kind, task in [("bert", None), *TASKS.items()]} | {"gpt": root / "gpt"}


@pytest.fixture(scope="package")
def client(folders):
    with run_server(folders.values()) as client:
        yield client


@pytest.fixture(scope="package")
def driver():
    from tests.support.browser import open_browser

    with open_browser() as driver:
        yield driver


@pytest.fixture
def page(driver, client):
    from tests.support.browser import Page

    driver.get_log("browser")
    page = Page(driver, f"http://127.0.0.1:{client.port}")
    yield page
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [error for error in errors if "status of 4" not in error], errors
