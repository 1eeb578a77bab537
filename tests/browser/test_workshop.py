"""The workshop pages in a browser: links, forms, both languages, both colour schemes, a phone; a run that trains, live."""

import json
import time

import pytest

pytestmark = pytest.mark.browser
pytest.importorskip("selenium", reason="make test-browser installs it")

from tests.support.servers import run_server  # noqa: E402
from tests.support.workshop import build_workshop  # noqa: E402

LIVE = {"step": 4, "steps": 10, "fraction_done": 0.4, "tokens": 400, "tokens_per_second": 1234.0, "seconds": 5.0,
        "seconds_left": 61.0, "memory": 1 << 30, "device": "cpu", "next_batch": 4}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return build_workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture(scope="module")
def address(root):
    with run_server([], runs=root) as client:
        yield f"http://127.0.0.1:{client.port}"


@pytest.fixture
def page(driver, address):
    from tests.support.browser import Page

    driver.get_log("browser")
    page = Page(driver, address)
    driver.get(f"{address}/workshop?lang=en")
    yield page
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors, errors


def follow(page, text):
    page.driver.find_element("link text", text).click()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_is_reached_by_links_and_forms(page, language):
    words = {"en": ("Batches", "Compare", "bank", "next →", "show"), "zh": ("批次", "比较", "bank", "下一页 →", "显示")}[
        language
    ]
    if language == "zh":
        follow(page, "中文")
    follow(page, "bert")
    assert page.one("h1").text == "bert" and len(page.all("figure > svg")) == 4 and page.all(".flow mark.masked")
    follow(page, words[0])
    number = page.one("input[name=k]")
    number.clear()
    number.send_keys("3")
    page.one("form button").click()
    assert page.one("h1").text.endswith(" 3") and page.all(".flow")
    page.one("header .home").click()
    for box in page.all("input[type=checkbox]"):
        box.click()
    page.one("form button").click()
    assert page.one("h1").text == words[1] and "objective.kind" in page.one("main").text
    page.one("header .home").click()
    follow(page, "corpus")
    follow(page, words[3])
    follow(page, "40")
    assert "script" in page.texts(".flow mark")
    for name in ("race", "small"):
        page.one("header .home").click()
        follow(page, name)
        assert page.all("figure svg")
    assert page.one("html").get_attribute("lang") == language


def test_running_run_is_reloaded_until_it_is_finished(page, root, address):
    folder = root / "now"
    (folder / "state").mkdir(parents=True)
    recipe = json.loads((root / "bert" / "config.json").read_text())["recipe"]
    (folder / "state" / "run.json").write_text(json.dumps({"stage": "pretrain", "recipe": recipe, "unigram_entropy": 2.5}))
    write_status = lambda **values: (folder / "state" / "status.json").write_text(
        json.dumps({**LIVE, **values, "time": time.time()})
    )
    write_status()
    log = '{"step": 2, "loss": 4.0, "mlm_loss": 3.25, "learning_rate": 0.001, "tokens": 200}\n'
    (folder / "metrics.jsonl").write_text(log)
    page.driver.get(f"{address}/workshop/run?path=now")
    assert page.one(".state").text == "running" and "3.25" in page.texts(".tiles b") and page.all(".flow mark.masked")
    page.one("summary").click()
    (folder / "metrics.jsonl").write_text(log + log.replace('"step": 2', '"step": 4').replace("3.25", "2.125"))
    write_status(step=4)
    text_of = lambda selector: page.driver.execute_script(f"return document.querySelector('{selector}').innerText")
    page.wait(lambda: "2.125" in text_of(".tiles"))  # in one script: the elements are replaced meanwhile
    assert page.one("details").get_attribute("open")  # what was opened stays open
    (folder / "config.json").write_text(json.dumps({"model": {}, "stage": "pretrain", "recipe": recipe}))
    for name in ("run.json", "status.json"):
        (folder / "state" / name).unlink()
    page.wait(lambda: text_of(".state") == "finished")


def test_pages_fit_a_phone_in_both_colour_schemes(page, address):
    backgrounds = set()
    for scheme in ("light", "dark"):
        page.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        page.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        )
        for path in ("", "/run?path=bert", "/batch?path=bert", "/compare?run=bert&run=group/roberta", "/corpus?path=corpus",
                     "/race?path=race", "/compress?path=small"):  # fmt: skip
            page.driver.get(f"{address}/workshop{path}")
            width = "return document.styleSheets.length ? document.documentElement.scrollWidth : 1e9"
            page.wait(lambda width=width: page.driver.execute_script(width) <= 390)
        backgrounds.add(page.one("body").value_of_css_property("background-color"))
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len(backgrounds) == 2


def test_pages_of_show_render_without_errors(driver, root, tmp_path):
    from bertsmith import api

    driver.get_log("browser")
    pages = {"attention": {"model": root / "bert", "texts": ["the cat sat"]}, "positions": {"model": root / "bert"},
             "attribution": {"model": root / "bert", "texts": ["the [MASK] sat"]}, "masks": {"corpus": root / "corpus"},
             "tokenization": {"tokenizer": root / "bert", "texts": ["the <script> cat"]}, "curves": {"model": root / "bert"},
             "corpus": {"corpus": root / "corpus"}}  # fmt: skip
    for kind, keys in pages.items():
        for suffix in ("html", "svg"):
            out = tmp_path / f"{kind}.{suffix}"
            api.show(kind=kind, out=out, quiet=True, **keys)
            driver.get(out.as_uri())
            assert (
                driver.execute_script("return document.querySelector('svg, .flow, .text').getBoundingClientRect().height") > 10
            )
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors, errors
