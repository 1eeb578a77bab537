"""The workshop pages: runs, batches, corpora, races and compressions of one folder, which is only read."""

import base64
import hashlib
import json
import os
import re
import time
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from bertsmith.artifacts import read_object
from bertsmith.cli import main
from bertsmith.config import from_dict
from bertsmith.corpus.loader import Prefetcher
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.reports.masking import restore_tokens
from bertsmith.serving.app import Access, build_app
from bertsmith.serving.models import ModelStore
from bertsmith.serving.requests import Limits
from bertsmith.serving.service import Service
from bertsmith.serving.workshop import folder as folder_module
from bertsmith.serving.workshop import pages, workshop_routes
from bertsmith.serving.workshop.folder import Workshop
from bertsmith.serving.workshop.language import CHINESE
from bertsmith.serving.workshop.runs import RunReader
from tests.support.html import PageParser
from tests.support.workshop import build_workshop

ADDRESSES = [
    "/workshop", "/workshop/run?path=bert", "/workshop/run?path=group/roberta", "/workshop/batch?path=bert&k=2",
    "/workshop/compare?run=bert&run=group/roberta", "/workshop/corpus?path=corpus", "/workshop/corpus?path=corpus&document=40",
    "/workshop/race?path=race", "/workshop/compress?path=small",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return build_workshop(tmp_path_factory.mktemp("workshop"))


def open_client(root, access=None):
    service = Service(ModelStore((), None), 256, 100, Limits(10_000, 10, 10))
    return TestClient(build_app(service, access or Access(), (), workshop_routes(root)), follow_redirects=False)


@pytest.fixture(scope="module")
def client(root):
    with open_client(root) as client:
        yield client


def hash_folder(root):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.rglob("*") if path.is_file()}


def test_workshop_pages_are_well_formed_load_nothing_else_and_change_nothing(root, client):
    before = hash_folder(root)
    for address in ADDRESSES:
        for language in ("en", "zh"):
            response = client.get(address, headers={"accept-language": f"{language},en;q=0.5"})
            assert response.status_code == 200, address
            parser = PageParser()
            parser.feed(response.text.replace("<br>", ""))
            assert not parser.open and f'lang="{language}"' in response.text
            assert all(link.startswith(("/workshop", "data:")) for link in parser.links) and "://" not in response.text
            assert "<b>bert" not in response.text and "<script>" not in response.text.replace("<script src", "")
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy
            assert client.post(address).status_code == 405
    assert client.get("/workshop/style.css").headers["content-type"].startswith("text/css")
    assert "reload" in client.get("/workshop/live.js").text
    assert client.get("/").headers["location"] == "/workshop" and client.get("/models").json() == []
    assert hash_folder(root) == before


def test_every_word_of_the_pages_has_a_translation(client, monkeypatch):
    shown = set()
    monkeypatch.setattr(pages, "translate", lambda text, language: shown.add(text) or text)
    for address in ADDRESSES:
        client.get(address)
    missing = {text for text in shown if text not in CHINESE and text not in ("tuned", "frozen")}
    assert len(shown) > 70 and not missing


def test_language_follows_the_link_then_the_cookie_then_the_browser(client):
    chinese = client.get("/workshop?lang=zh")
    assert "训练" in chinese.text and chinese.cookies["lang"] == "zh"
    assert "训练" in client.get("/workshop", headers={"accept-language": "en"}).text  # the cookie
    client.cookies.clear()
    assert "训练" in client.get("/workshop", headers={"accept-language": "zh-CN,zh;q=0.9"}).text
    assert ">Runs<" in client.get("/workshop?lang=xx", headers={"accept-language": "fr"}).text


def test_run_page_has_the_numbers_of_its_log(root, client):
    rows = [json.loads(line) for line in (root / "bert" / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if "split" not in row]
    valid = [row for row in rows if row.get("split") == "valid"]
    text = client.get("/workshop/run?path=bert").text
    for value in (train[-1]["mlm_loss"], valid[-1]["mlm_loss"]):
        assert f"<b>{value:.4g}</b>" in text
    entropy = read_object(root / "bert" / "card.json")["result"]["unigram_entropy"]
    assert f"unigram baseline of {entropy:.3f}" in text and 'class="level"' in text
    assert "finished" in text and 'data-live="0"' in text
    comparison = client.get("/workshop/compare?run=bert&run=group/roberta").text
    assert "Settings that differ" in comparison and "objective.kind" in comparison
    assert "&#34;mlm&#34;" in comparison and "seed" in comparison


@pytest.mark.parametrize("path", ["bert", "group/roberta"])
def test_batch_page_shows_what_the_run_read(root, client, path, monkeypatch, tmp_path):
    """Every micro-batch of a training is recorded while it is read, and compared with the page of the finished run."""
    read, call = {}, Prefetcher.__call__

    def record(prefetcher, k, select_samples):
        read[k] = call(prefetcher, k, select_samples)
        return read[k]

    monkeypatch.setattr(Prefetcher, "__call__", record)
    recipe = read_object(root / path / "config.json")["recipe"]
    pretrain(from_dict(PretrainRecipe, {**recipe, "out": str(tmp_path / "again")}), quiet=True)
    assert len(read) == recipe["train"]["steps"] * recipe["train"]["gradient_accumulation_steps"]
    names = Corpus.open(root / "corpus").tokenizer.id_to_token
    for k, batch in read.items():
        page = client.get(f"/workshop/batch?path={path}&k={k}").text
        flows = re.findall(r'<div class="flow">(.*?)</div>', page, re.S)
        ends = np.cumsum(batch.lengths)
        assert len(flows) == len(ends)
        originals, targets = restore_tokens(batch), set(batch.output_indices.tolist())
        for flow, end, length in zip(flows, ends, batch.lengths, strict=True):
            tokens = re.findall(r"<mark([^>]*)>(.*?)</mark>(?:<small>(.*?)</small>)?", flow)
            assert len(tokens) == length
            for position, (attributes, text, below) in zip(range(end - length, end), tokens, strict=True):
                unescape = lambda value: value.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
                assert unescape(text) == names[batch.input_ids[position]]
                assert ("class=" in attributes) == (position in targets)
                if below:
                    assert unescape(below) == names[originals[position]]


def test_run_that_trains_is_live_and_leaves_no_status(root, tmp_path):
    out, seen = root / "live", []
    recipe = read_object(root / "bert" / "config.json")["recipe"]
    reader = RunReader(Workshop(root))

    def look(step, row):
        if step == 2:
            run = reader.read_run("live")
            with open_client(root) as client:
                page = client.get("/workshop/run?path=live")
                part = client.get("/workshop/run?path=live&part=1")
            seen.append((run.state, run.status["step"], page.headers["x-live"], part.text))

    pretrain(from_dict(PretrainRecipe, {**recipe, "seed": 5, "out": str(out)}), True, look)
    state, step, live, part = seen[0]
    assert state == "running" and step >= 1 and live == "1" and "<html" not in part
    for word in ("tokens per second", "memory", "time left", "Samples of the next batch", '<div class="flow">'):
        assert word in part
    assert not (out / "state").exists() and reader.read_run("live").state == "finished"


def test_stopped_run_is_told_from_a_running_one(tmp_path):
    (tmp_path / "run" / "state").mkdir(parents=True)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
    (tmp_path / "run" / "state" / "run.json").write_text(json.dumps({"stage": "finetune", "recipe": {}}))
    reader, status = RunReader(Workshop(tmp_path)), {"step": 2, "steps": 10, "fraction_done": 0.2}
    for age, state in ((0, "running"), (3600, "stopped")):
        (tmp_path / "run" / "state" / "status.json").write_text(json.dumps({**status, "time": time.time() - age}))
        run = reader.read_run("run")
        assert (run.state, run.step, run.stage) == (state, 2, "finetune")
    (tmp_path / "run" / "state" / "status.json").write_text("{damaged")
    assert reader.read_run("run").state == "stopped"


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "link", "/", "corpus", "\0", "\\"])).map("/".join))
def test_no_path_leads_out_of_the_folder(path):
    workshop = test_no_path_leads_out_of_the_folder.workshop
    try:
        folder = workshop.resolve(path)
    except UserError:
        return
    assert folder == workshop.root or workshop.root in folder.resolve().parents


@pytest.fixture(autouse=True, scope="module")
def _workshop_with_links(tmp_path_factory):
    root = tmp_path_factory.mktemp("links")
    (root / "outside" / "secret").mkdir(parents=True)
    (root / "inside" / "a" / "corpus").mkdir(parents=True)
    os.symlink(root / "outside", root / "inside" / "link")
    test_no_path_leads_out_of_the_folder.workshop = Workshop(root / "inside")


def test_links_and_parents_are_refused(root, client, tmp_path):
    workshop = test_no_path_leads_out_of_the_folder.workshop
    assert workshop.resolve("a/corpus").name == "corpus"
    assert workshop.relative(workshop.root / "link" / "secret") is None and workshop.relative(tmp_path) is None
    for path in ("link", "link/secret", "../outside", "a/../../outside", "/etc", "a\0", "x" * 2000):
        with pytest.raises(UserError):
            workshop.resolve(path)
        for page in ("run", "batch", "corpus", "race", "compress"):
            assert client.get(f"/workshop/{page}?path={quote(path)}").status_code == 404
    folder = tmp_path / "w" / "run"
    folder.mkdir(parents=True)
    (tmp_path / "secret.jsonl").write_text('{"step": 1, "loss": 42.0}\n')
    os.symlink(tmp_path / "secret.jsonl", folder / "metrics.jsonl")
    with open_client(tmp_path / "w") as linked:
        answer = linked.get("/workshop/run?path=run")
        assert answer.status_code == 404 and "42" not in answer.text


def test_pages_of_what_is_damaged_large_or_elsewhere_say_so(root, tmp_path, monkeypatch):
    workshop = tmp_path / "w"
    (workshop / "run").mkdir(parents=True)
    log = workshop / "run" / "metrics.jsonl"
    with open_client(workshop) as client:
        log.write_text("[1]\n")
        assert "not a row of metrics" in client.get("/workshop/run?path=run").text
        assert client.get("/workshop").status_code == 200
        log.write_text('{"step": 1, "loss": 3.0}\n')
        (workshop / "run" / "config.json").write_text(
            json.dumps({"model": {}, "stage": "pretrain", "recipe": {"corpus": str(root / "corpus")}})
        )
        assert "which is not below the folder" in client.get("/workshop/run?path=run").text
        monkeypatch.setattr(folder_module, "MAX_LOG_BYTES", 10)
        answer = client.get("/workshop/run?path=run")
        assert answer.status_code == 404 and "more than the 10 that are read" in answer.text
        for name, content in (("race", "{"), ("front", '{"artifacts": [1, {"name": 3, "score": "x"}], "metric": []}')):
            (workshop / f"{name}.json").write_text(content)
        assert client.get("/workshop/race?path=.").status_code == client.get("/workshop/compress?path=.").status_code == 200
    with open_client(root) as client:
        many = "&".join("run=bert" + "/" * i for i in range(9))
        numbers = (
            "batch?path=bert&k=-1",
            "batch?path=bert&k=1e9",
            f"batch?path=bert&k={10**30}",
            "corpus?path=corpus&document=99",
        )
        for address in (*numbers, "compare", "run?path=nothing", "batch?path=race", f"compare?{many}"):
            assert client.get(f"/workshop/{address}").status_code == 404, address
    with pytest.raises(UserError, match="is no folder"):
        workshop_routes(tmp_path / "none")


def test_workshop_asks_browsers_for_the_key(root):
    with open_client(root, Access(("secret",))) as client:
        refused = client.get("/workshop")
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic")
        assert "www-authenticate" not in client.get("/models").headers
        for credentials, status in (("anyone:secret", 200), ("anyone:wrong", 401), ("secret", 401)):
            header = {"authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}
            assert client.get("/workshop", headers=header).status_code == status
        assert client.get("/workshop", headers={"authorization": "Basic *"}).status_code == 401
        assert client.get("/workshop", headers={"authorization": "Bearer secret"}).status_code == 200


def test_serve_needs_models_or_runs(capsys, tmp_path):
    assert main(["serve"]) == 2 and "serve needs model=" in capsys.readouterr().err
    assert main(["serve", f"runs={tmp_path / 'none'}"]) == 2 and "is no folder" in capsys.readouterr().err
