"""The routes of the workshop: HTML made of templates/, read in a thread so that no page holds up an answer of a model."""

import json
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from ... import __version__
from ...console import logger
from ...corpus.store import Corpus
from ...errors import UserError
from ...reading import read_text
from ...reports.charts import FlowToken, TokenFlow, bar_chart
from ...reports.corpus import histogram_bins
from ...reports.html import TEMPLATES as REPORT_TEMPLATES
from ...reports.html import build_environment
from ...reports.masking import LEGEND
from .charts import BatchSample, describe_batch, draw_comparison, draw_front, draw_race, draw_run, loss_column, split_rows
from .folder import Workshop, read_record
from .language import LANGUAGES, choose_language, translate
from .runs import RunReader, RunView

TEMPLATES = Path(__file__).parent / "templates"
MAX_ASSET_BYTES = 1 << 20
MAX_RUNS = 200  # of the first page
MAX_COMPARED = 8
SAMPLES_NOW, SAMPLES_PER_PAGE, DOCUMENTS_PER_PAGE, MAX_SENTENCES = 3, 20, 25, 200
MAX_TOKENS = 5000  # of a document
MAX_NUMBER = 10**12  # of a batch or document in an address
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store",
}  # fmt: skip


class View(NamedTuple):
    """A page: its title, the part that live.js replaces, and whether something in it still changes."""

    title: str
    body: Markup
    is_live: bool = False
    links: Sequence[tuple[str, str]] = ()  # (address, name) beside the home page


class Visit(NamedTuple):
    """One request: the parameters of its address, and the words of its language."""

    parameters: Any
    language: str

    def t(self, text: str) -> str:
        return translate(text, self.language)

    def text(self, name: str) -> str:
        return str(self.parameters.get(name, ""))

    def number(self, name: str, default: int = 0) -> int:
        value = self.text(name).strip()
        if not value:
            return default
        if not (value.isascii() and value.isdecimal()) or int(value) > MAX_NUMBER:
            raise UserError(f"{name}={value[:40]} is not a number from 0 to {MAX_NUMBER:,}")
        return int(value)


def workshop_routes(root: Path) -> list[Route]:
    """Pages of the folder `root`."""
    pages = _Pages(Workshop(root))
    views: dict[str, Callable[[Visit], View]] = {
        "/workshop": pages.index, "/workshop/run": pages.run, "/workshop/batch": pages.batch,
        "/workshop/compare": pages.compare, "/workshop/corpus": pages.corpus, "/workshop/race": pages.race,
        "/workshop/compress": pages.compress,
    }  # fmt: skip
    css = read_text(REPORT_TEMPLATES / "style.css", MAX_ASSET_BYTES) + read_text(TEMPLATES / "workshop.css", MAX_ASSET_BYTES)
    files = {"/workshop/style.css": (css, "text/css"),
             "/workshop/live.js": (read_text(TEMPLATES / "live.js", MAX_ASSET_BYTES), "text/javascript")}  # fmt: skip
    routes = [Route(path, _respond(pages, view), methods=["GET"]) for path, view in views.items()]
    return routes + [Route(path, _respond_file(*file), methods=["GET"]) for path, file in files.items()]


def redirect_home(request: Request) -> Response:
    """For a server without models, whose first page is the workshop."""
    return RedirectResponse("/workshop", 307, HEADERS)


def _respond(pages: "_Pages", view: Callable[[Visit], View]) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        wanted = request.query_params.get("lang")
        language = choose_language(wanted, request.cookies.get("lang"), request.headers.get("accept-language", ""))
        visit, status = Visit(request.query_params, language), 200
        try:
            page = await run_in_threadpool(view, visit)
        except UserError as error:
            page, status = View(visit.t("Workshop"), pages.render("problem", text=str(error))), 404
        except Exception as error:  # a file that changed under the reader, for instance
            logger.error(f"{request.url.path}: {type(error).__name__}: {error}")
            text = (
                "This page could not be made: a file of it changed or is damaged. Reload it; the log of the server says more."
            )
            page, status = View(visit.t("Workshop"), pages.render("problem", text=text)), 500
        headers = HEADERS | {"x-live": "1" if page.is_live else "0"}
        if request.query_params.get("part") == "1":
            return HTMLResponse(page.body, status, headers)
        response = HTMLResponse(pages.render_page(page, visit, request), status, headers)
        if wanted in LANGUAGES:
            response.set_cookie("lang", str(wanted), max_age=31_536_000, samesite="strict", httponly=True)
        return response

    return handle


def _respond_file(text: str, media_type: str) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        return Response(text, 200, HEADERS, media_type)

    return handle


class _Pages:
    """What each address shows."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop, self.reader = workshop, RunReader(workshop)
        self._environment = build_environment(TEMPLATES, REPORT_TEMPLATES)

    def render(self, macro: str, **context: Any) -> Markup:
        return Markup(getattr(self._environment.get_template("parts.html.j2").module, macro)(**context))

    def render_page(self, page: View, visit: Visit, request: Request) -> str:
        parameters = [(name, value) for name, value in request.query_params.multi_items() if name != "lang"]
        languages = [(f"{request.url.path}?{urlencode([*parameters, ('lang', name)])}", title)
                     for name, title in LANGUAGES.items() if name != visit.language]  # fmt: skip
        template = self._environment.get_template("layout.html.j2")
        return template.render(title=page.title, body=page.body, is_live=page.is_live, links=page.links, languages=languages,
                               language=visit.language, t=visit.t, version=__version__)  # fmt: skip

    def index(self, visit: Visit) -> View:
        t, entries = visit.t, self.workshop.find_entries()
        runs = [self._run_row(entry.path, entry.modified) for entry in entries if entry.kind == "run"][:MAX_RUNS]
        groups = [(t("Runs"), runs)]
        for kind, title in (("corpus", "Corpora"), ("race", "Races"), ("compress", "Compressions")):
            rows = [{"path": entry.path, "url": _address(kind, path=entry.path), "changed": _format_time(entry.modified),
                     "state": ""} for entry in entries if entry.kind == kind]  # fmt: skip
            groups.append((t(title), rows[:MAX_RUNS]))
        is_live = any(row["state"] == "running" for row in runs)
        body = self.render("index", t=t, groups=[(title, rows) for title, rows in groups if rows])
        return View(f"{t('Workshop')}: {self.workshop.root.name}", body, is_live)

    def run(self, visit: Visit) -> View:
        t, run = visit.t, self.reader.read_run(visit.text("path"))
        wide, small = draw_run(run, t)
        next_batch = int(run.status.get("next_batch") or 0)
        samples, note = self._next_samples(run, next_batch, t)
        title = t("Samples of the next batch") if run.state == "running" else f"{t('Samples of batch')} {next_batch:,}"
        body = self.render(
            "run", t=t, state=run.state, fraction=_fraction_done(run), facts=_run_facts(run, t), wide=wide, small=small,
            samples_title=title, samples=samples, samples_note=note,
            samples_url=_address("batch", path=run.path, k=next_batch) if samples else "",
            recipe=json.dumps(run.recipe, indent=2, ensure_ascii=False),
        )  # fmt: skip
        links = [(_address("batch", path=run.path), t("Batches"))] if samples else []
        return View(run.path, body, run.state == "running", links)

    def batch(self, visit: Visit) -> View:
        t, run = visit.t, self.reader.read_run(visit.text("path"))
        k, first = visit.number("k", int(run.status.get("next_batch") or 0)), visit.number("from")
        corpus, loader, step = self._loader_of(run, k)
        samples, count = describe_batch(corpus, loader, k, first, SAMPLES_PER_PAGE, t)
        if not samples and first:
            raise UserError(f"batch {k:,} has {count:,} samples, numbered from 1")
        link = lambda start: _address("batch", path=run.path, k=k, **{"from": start})
        pager = {"previous": link(max(0, first - SAMPLES_PER_PAGE)) if first else "",
                 "next": link(first + SAMPLES_PER_PAGE) if first + SAMPLES_PER_PAGE < count else ""}  # fmt: skip
        facts = [(t("samples"), count, f"{first + 1:,} – {min(first + SAMPLES_PER_PAGE, count):,}"),
                 (t("read by step"), step + 1, f"max_length {loader.max_length:,}"),
                 (t("batch"), k, f"{loader.batches_per_epoch:,} / epoch")]  # fmt: skip
        body = self.render("batches", t=t, path=run.path, k=k, last_k=None, facts=facts, legend=LEGEND.items(), samples=samples,
                           pager=pager)  # fmt: skip
        return View(f"{run.path}: {t('batch')} {k:,}", body, links=[(_address("run", path=run.path), run.path)])

    def compare(self, visit: Visit) -> View:
        t, paths = visit.t, list(dict.fromkeys(visit.parameters.getlist("run")))
        if not paths:
            raise UserError(t("Choose at least one run."))
        if len(paths) > MAX_COMPARED:
            raise UserError(f"{len(paths)} runs are more than the {MAX_COMPARED} that one page compares")
        runs = [self.reader.read_run(path) for path in paths]
        header = (t("run"), t("state"), t("step"), t("tokens"), t("last training loss"), t("last validation loss"),
                  t("tokens per second"), t("parameters"))  # fmt: skip
        rows = [_comparison_row(run, t) for run in runs]
        body = self.render("compare", t=t, charts=draw_comparison(runs, t), header=header, rows=rows,
                           differences=_differences(runs), difference_header=(t("setting"), *paths))  # fmt: skip
        return View(t("Compare"), body, any(run.state == "running" for run in runs))

    def corpus(self, visit: Visit) -> View:
        t, path = visit.t, visit.text("path")
        corpus = self.reader.open_corpus(path)
        count = len(corpus.document_offsets) - 1
        links = [(_address("corpus", path=path), path)]
        if visit.text("document"):
            number = visit.number("document")
            if number >= count:
                raise UserError(f"{path} has the documents 0 to {count - 1:,}")
            return View(f"{path}: {t('document')} {number:,}", self._document(corpus, path, number, t), links=links)
        first, card = visit.number("from"), corpus.card
        documents = [_document_row(corpus, path, number) for number in range(first, min(first + DOCUMENTS_PER_PAGE, count))]
        link = lambda start: _address("corpus", path=path, **{"from": start})
        pager = {"previous": link(max(0, first - DOCUMENTS_PER_PAGE)) if first else "",
                 "next": link(first + DOCUMENTS_PER_PAGE) if first + DOCUMENTS_PER_PAGE < count else ""}  # fmt: skip
        facts = [(t("documents"), count, ""),
                 (t("sentences"), card["sentences"], f"{card['sentences'] / max(count, 1):.1f} {t('each')}"),
                 (t("tokens"), card["tokens"], f"{t('vocabulary')}: {card['vocab_size']:,}"),
                 (t("unigram entropy"), card["unigram_entropy"], t("nats per token"))]  # fmt: skip
        histograms = [bar_chart(t("Sentences by length"), histogram_bins(card["sentence_lengths"]), t("tokens")),
                      bar_chart(t("Documents by length"), histogram_bins(card["document_lengths"]),
                                t("sentences"))]  # fmt: skip
        body = self.render("corpus", t=t, facts=facts, histograms=histograms, path=path, documents=documents, pager=pager)
        return View(path, body)

    def race(self, visit: Visit) -> View:
        t, path = visit.t, visit.text("path")
        record = read_record(self.workshop.resolve(path) / "race.json")
        pending = record.get("num_pending")
        warnings = [f"{pending} {t('jobs are not finished')}"] if pending else []
        failed = [(str(member.get("name")), "; ".join(map(str, member["errors"]))) for member in record.get("members", [])
                  if isinstance(member, dict) and isinstance(member.get("errors"), list) and member["errors"]]  # fmt: skip
        body = self.render("charts", t=t, warnings=warnings, charts=draw_race(record, t), header=(t("member"), t("failed")),
                           rows=failed)  # fmt: skip
        return View(path, body, bool(pending))

    def compress(self, visit: Visit) -> View:
        t, path = visit.t, visit.text("path")
        record = read_record(self.workshop.resolve(path) / "front.json")
        header = (t("artifact"), t("score"), t("kept"), "MB", t("latency p50 ms"), t("texts per second"), "")
        rows = [_artifact_row(artifact, record.get("chosen"), t) for artifact in record.get("artifacts", [])
                if isinstance(artifact, dict)]  # fmt: skip
        return View(path, self.render("charts", t=t, warnings=[], charts=draw_front(record, t), header=header, rows=rows))

    # -- parts of the pages

    def _run_row(self, path: str, modified: float) -> dict[str, Any]:
        row = {
            "path": path,
            "url": _address("run", path=path),
            "changed": _format_time(modified),
            "stage": "",
            "step": "",
            "loss": "",
        }
        try:
            run = self.reader.read_run(path)
        except UserError:
            return row | {"state": "stopped"}
        loss = _last(run, None, loss_column(run))
        return row | {
            "state": run.state,
            "stage": run.stage,
            "step": f"{run.step:,}",
            "loss": "" if loss is None else f"{loss:.3f}",
        }

    def _next_samples(self, run: RunView, k: int, t: Callable[[str], str]) -> tuple[list[BatchSample], str]:
        """The first samples of a batch, or why there are none."""
        if not isinstance(run.recipe.get("corpus"), str):
            return [], t("No samples are shown") + f": {run.stage}"
        try:
            corpus, loader, _ = self._loader_of(run, k)
            return describe_batch(corpus, loader, k, 0, SAMPLES_NOW, t)[0], ""
        except UserError as error:
            return [], f"{t('No samples are shown')}: {error}"

    def _loader_of(self, run: RunView, k: int) -> tuple[Corpus, Any, int]:
        """The corpus, the loader that draws micro-batch k, and the step that reads it, counted from 0."""
        train = run.recipe.get("train") if isinstance(run.recipe.get("train"), dict) else {}
        accumulation = run.status.get("gradient_accumulation_steps") or (train or {}).get("gradient_accumulation_steps") or 1
        steps = run.status.get("steps") or run.result.get("step") or (train or {}).get("steps")
        step = k // int(accumulation)
        fraction = min(step / int(steps), 1.0) if steps else float(run.status.get("fraction_done") or 0.0)
        return *self.reader.build_loader(run, fraction), step

    def _document(self, corpus: Corpus, path: str, number: int, t: Callable[[str], str]) -> Markup:
        begin, end = (int(corpus.document_offsets[number + i]) for i in (0, 1))
        names, flows, shown = corpus.tokenizer.id_to_token, [], 0
        for sentence in range(begin, min(end, begin + MAX_SENTENCES)):
            ids = corpus.tokens[corpus.sentence_offsets[sentence] : corpus.sentence_offsets[sentence + 1]].tolist()
            ids, shown = ids[: max(0, MAX_TOKENS - shown)], shown + len(ids)
            flows.append(TokenFlow("", [
                FlowToken(names[token_id], str(token_id), joins=index > 0 and bool(corpus.tokenizer.is_continuation[token_id]))
                for index, token_id in enumerate(ids)
            ]))  # fmt: skip
        tokens = int(corpus.sentence_offsets[end] - corpus.sentence_offsets[begin])
        count = len(corpus.document_offsets) - 1
        pager = {"previous": _address("corpus", path=path, document=number - 1) if number else "",
                 "next": _address("corpus", path=path, document=number + 1) if number + 1 < count else ""}  # fmt: skip
        facts = [(t("sentences"), end - begin, ""), (t("tokens"), tokens, "" if tokens <= shown else f"{shown:,} {t('show')}")]
        return self.render("document", t=t, facts=facts, flows=flows, pager=pager)


def _address(page: str, **parameters: Any) -> str:
    return f"/workshop/{page}?{urlencode(parameters)}"


def _fraction_done(run: RunView) -> float | None:
    if run.state == "finished":
        return 1.0
    fraction = run.status.get("fraction_done")
    return min(max(float(fraction), 0.0), 1.0) if isinstance(fraction, int | float) else None


def _run_facts(run: RunView, t: Callable[[str], str]) -> list[tuple[str, Any, str]]:
    status, column = run.status, loss_column(run)
    steps = status.get("steps")
    facts: list[tuple[str, Any, str]] = [(t("step"), run.step, f"{t('of')} {int(steps):,}" if steps else "")]
    loss = _last(run, None, column)
    if loss is not None:
        note = t("nats per token")
        if run.unigram_entropy is not None and column != "loss":
            side = t("below the unigram baseline of") if loss < run.unigram_entropy else t("above the unigram baseline of")
            note = f"{side} {run.unigram_entropy:.3f}"
        facts.append((t("last training loss"), loss, note))
    split = next((split for split in split_rows(run) if split not in (None, "pseudo_perplexity")), None)
    if split is not None and (valid := _last(run, split, column)) is not None:
        facts.append((t("last validation loss"), valid, ""))
    if (rate := _last(run, None, "learning_rate")) is not None:
        facts.append((t("Learning rate"), f"{rate:.3g}", t("of the last step")))
    tokens = max((row["tokens"] for row in run.rows if isinstance(row.get("tokens"), int)), default=0)
    speed = status.get("tokens_per_second") or run.result.get("tokens_per_second")
    facts.append((t("tokens"), tokens, f"{speed:,.0f} {t('tokens per second')}" if isinstance(speed, int | float) else ""))
    if isinstance(status.get("memory"), int):
        facts.append((t("memory"), f"{status['memory'] / 2**30:.2f} GiB", f"{t('largest so far')}, {status.get('device', '')}"))
    if run.state == "running" and isinstance(status.get("seconds_left"), int | float):
        facts.append(
            (
                t("time left"),
                _format_seconds(status["seconds_left"]),
                f"{t('elapsed')} {_format_seconds(status.get('seconds'))}",
            )
        )
    elif isinstance(run.result.get("seconds"), int | float):
        facts.append((t("elapsed"), _format_seconds(run.result["seconds"]), ""))
    if run.skipped:
        facts.append((t("updates skipped"), run.skipped, ""))
    return facts


def _last(run: RunView, split: str | None, column: str) -> float | None:
    """The value of the last row of a split that has the column."""
    rows = split_rows(run).get(split, [])
    value = next((row[column] for row in reversed(rows) if isinstance(row.get(column), int | float)), None)
    return None if value is None or not math.isfinite(value) else float(value)


def _comparison_row(run: RunView, t: Callable[[str], str]) -> tuple[Any, ...]:
    column = loss_column(run)
    split = next((split for split in split_rows(run) if split not in (None, "pseudo_perplexity")), None)
    tokens = max((row["tokens"] for row in run.rows if isinstance(row.get("tokens"), int)), default=0)
    speed = run.status.get("tokens_per_second") or run.result.get("tokens_per_second")
    return (run.path, t(run.state), run.step, tokens, _last(run, None, column),
            None if split is None else _last(run, split, column),
            round(speed) if isinstance(speed, int | float) else None, run.result.get("parameters"))  # fmt: skip


def _differences(runs: Sequence[RunView]) -> list[tuple[str, ...]]:
    """(dotted key, value of each run) of settings that are not the same."""
    flat = [_flatten(run.recipe) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = [(key, *(values.get(key, "–") for values in flat)) for key in keys if key != "out"]
    return [row for row in rows if len(set(row[1:])) > 1]


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False)
    return flat


def _document_row(corpus: Corpus, path: str, number: int) -> dict[str, Any]:
    begin, end = (int(corpus.document_offsets[number + i]) for i in (0, 1))
    first, last = int(corpus.sentence_offsets[begin]), int(corpus.sentence_offsets[end])
    text = corpus.tokenizer.decode(corpus.tokens[first : min(last, first + 24)].tolist())
    return {"number": number, "url": _address("corpus", path=path, document=number), "sentences": f"{end - begin:,}",
            "tokens": f"{last - first:,}", "text": text + ("…" if last - first > 24 else "")}  # fmt: skip


def _artifact_row(artifact: dict[str, Any], chosen: Any, t: Callable[[str], str]) -> tuple[Any, ...]:
    score = artifact.get("score") if isinstance(artifact.get("score"), dict) else {}
    number = lambda value, scale=1.0: scale * value if isinstance(value, int | float) else None
    kept = number(artifact.get("kept"))
    marks = [t("Front")] * bool(artifact.get("pareto")) + [t("chosen")] * (
        chosen is not None and artifact.get("folder") == chosen
    )
    return (str(artifact.get("name")), number((score or {}).get("value")), None if kept is None else f"{kept:.1%}",
            number(artifact.get("bytes"), 1e-6), number(artifact.get("latency_p50"), 1e3), number(artifact.get("throughput")),
            ", ".join(marks))  # fmt: skip


def _format_time(seconds: float) -> str:
    age = time.time() - seconds
    if 0 <= age < 86_400:
        return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _format_seconds(seconds: Any) -> str:
    return str(timedelta(seconds=round(min(max(float(seconds or 0.0), 0.0), 1e8))))
