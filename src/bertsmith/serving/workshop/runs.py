"""A training run as it is now: its log, its progress, and the training samples of a batch exactly as the run draws them."""

import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from ...artifacts import CORPUS_TOKENS
from ...corpus.loader import BatchLoader
from ...corpus.store import Corpus
from ...errors import UserError
from ...reports.training_curves import MetricRows, read_metrics
from ...runs import RUN_FILE, STATUS_FILE
from .folder import Workshop, check_log, read_record

STALLED_SECONDS = 60.0  # without a new status, after which a run is not called running
MAX_CHECKED_BYTES = 1 << 30  # of a corpus whose checksums are compared when it is opened
MAX_CACHED = 4  # logs, corpora and loaders in memory


class RunView(NamedTuple):
    """What the pages show of a run."""

    path: str
    state: str  # finished, running, stopped
    stage: str
    rows: MetricRows  # without those that a rollback undid
    recipe: dict[str, Any]
    status: dict[str, Any]  # state/status.json of a run that trains
    result: dict[str, Any]  # of card.json of a finished run
    unigram_entropy: float | None
    skipped: int

    @property
    def step(self) -> int:
        return max((row["step"] for row in self.rows), default=0) or int(self.status.get("step") or 0)


class Cache:
    """The last few values by key and version."""

    def __init__(self) -> None:
        self._values: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, version: Any, compute: Any) -> Any:
        with self._lock:
            if key in self._values and self._values[key][0] == version:
                self._values.move_to_end(key)
                return self._values[key][1]
        value = compute()
        with self._lock:
            self._values[key] = version, value
            while len(self._values) > MAX_CACHED:
                self._values.popitem(last=False)
        return value


class RunReader:
    """Reads runs and corpora of a workshop; what did not change is not read again."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop, self._logs, self._corpora, self._loaders = workshop, Cache(), Cache(), Cache()

    def read_run(self, path: str) -> RunView:
        folder = self.workshop.resolve(path)
        config, card = read_record(folder / "config.json"), read_record(folder / "card.json")
        started, status = read_record(folder / "state" / RUN_FILE), read_record(folder / "state" / STATUS_FILE)
        has_log = (folder / "metrics.jsonl").exists()
        if not has_log and not started:
            raise UserError(f"{path} is no run: it has no metrics.jsonl")
        log = check_log(folder) if has_log else None
        version = None if log is None else (log.stat().st_mtime_ns, log.stat().st_size)
        rows = self._logs.get(folder, version, lambda: _read_rows(folder)) if version and version[1] else []
        result: dict[str, Any] = values if isinstance(values := card.get("result"), dict) else {}
        is_live = time.time() - float(status.get("time") or 0) < STALLED_SECONDS
        state = "finished" if config and not started else "running" if is_live else "stopped"
        record = started or config
        entropy = result.get("unigram_entropy", record.get("unigram_entropy"))
        return RunView(
            path, state, str(record.get("stage") or "train"), rows, record.get("recipe") or {}, status if started else {},
            result, float(entropy) if isinstance(entropy, int | float) else None, sum("skip_reason" in row for row in rows),
        )  # fmt: skip

    def open_corpus(self, path: str) -> Corpus:
        folder = self.workshop.resolve(path)
        try:
            state = (folder / CORPUS_TOKENS).lstat()
        except OSError:
            raise UserError(f"{path} is no corpus folder") from None
        version = state.st_mtime_ns, state.st_size, state.st_ino
        return self._corpora.get(folder, version, lambda: Corpus.open(folder, state.st_size <= MAX_CHECKED_BYTES))

    def find_corpus(self, run: RunView) -> str:
        """The path of the corpus that a run reads; UserError if the workshop does not have it."""
        corpus = run.recipe.get("corpus")
        if not isinstance(corpus, str):
            raise UserError(f"{run.path} reads no corpus: batches are shown of `bertsmith pretrain`")
        path = self.workshop.relative(Path(corpus))
        if path is None:
            raise UserError(f"{run.path} reads the corpus {corpus}, which is not below the folder of this workshop; serve a "
                            "folder that has both")  # fmt: skip
        return path

    def build_loader(self, run: RunView, fraction_done: float) -> tuple[Corpus, BatchLoader]:
        """The corpus and the loader of the micro-batches of this run, in the phase it is in after `fraction_done`."""
        from ...config import from_dict
        from ...errors import explain_missing_torch

        with explain_missing_torch("batches"):
            from ...pretraining.setup import PretrainRecipe

        corpus = self.open_corpus(self.find_corpus(run))
        recipe = from_dict(PretrainRecipe, run.recipe, run.path)
        ends = [end for _, end in recipe.phases()]
        lengths = [length for length, _ in recipe.phases()]
        length = lengths[next((i for i, end in enumerate(ends) if fraction_done < end), len(lengths) - 1)]
        batch_tokens = int(run.status.get("batch_tokens") or run.result.get("batch_tokens") or recipe.train.batch_tokens)

        def build() -> BatchLoader:
            """As `pretrain` builds its loader: with the batch size of the recipe, then that of an out-of-memory retry."""
            all_documents = range(len(corpus.document_offsets) - 1)
            objective = recipe.network_objective
            documents = corpus.split(recipe.validation_split, recipe.seed, objective.min_sentences)[0]
            if recipe.valid:
                import numpy as np

                documents = np.array(all_documents)
            loader = objective.build_batches(corpus, documents, length, recipe.train.batch_tokens, recipe.seed)
            return loader.with_batch_tokens(batch_tokens)

        key = (run.path, length, batch_tokens, id(corpus))
        return corpus, self._loaders.get(key, None, build)


def _read_rows(folder: Path) -> MetricRows:
    try:
        return read_metrics(folder)
    except OSError as error:
        raise UserError(f"{folder.name}: {error}") from None
