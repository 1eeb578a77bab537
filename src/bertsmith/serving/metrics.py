"""Counters and histograms of the server, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """What the server has counted since it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = defaultdict[Labels, int](int)
        self._latencies = defaultdict[str, list[int]](lambda: [0] * (len(BUCKETS) + 1))
        self._seconds = defaultdict[str, float](float)
        self._batches = self._texts = self._tokens = 0

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """`path` as in the routes, with names of parameters instead of values."""
        with self._lock:
            self._requests[(("path", path), ("status", str(status)))] += 1
            self._latencies[path][bisect_left(BUCKETS, seconds)] += 1
            self._seconds[path] += seconds

    def count_batch(self, num_texts: int, num_tokens: int) -> None:
        with self._lock:
            self._batches += 1
            self._texts += num_texts
            self._tokens += num_tokens

    def render(self, num_pending: int, loaded: Iterable[tuple[str, bool]]) -> str:
        with self._lock:
            lines = _header("bertsmith_requests_total", "counter", "requests answered")
            lines += [_line("bertsmith_requests_total", labels, count) for labels, count in sorted(self._requests.items())]
            lines += _header("bertsmith_request_seconds", "histogram", "time from request to answer")
            for path, counts in sorted(self._latencies.items()):
                total = 0
                for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                    total += count
                    lines.append(_line("bertsmith_request_seconds_bucket", (("path", path), ("le", bound)), total))
                lines.append(_line("bertsmith_request_seconds_sum", (("path", path),), round(self._seconds[path], 6)))
                lines.append(_line("bertsmith_request_seconds_count", (("path", path),), total))
            totals = (("batches", self._batches, "batches computed"), ("texts", self._texts, "texts computed"),
                      ("tokens", self._tokens, "tokens computed"))  # fmt: skip
            for name, value, meaning in totals:
                lines += [*_header(f"bertsmith_{name}_total", "counter", meaning), _line(f"bertsmith_{name}_total", (), value)]
        lines += [*_header("bertsmith_pending_texts", "gauge", "texts waiting or being computed"),
                  _line("bertsmith_pending_texts", (), num_pending),
                  *_header("bertsmith_model_loaded", "gauge", "1 if the model is in memory")]  # fmt: skip
        lines += [_line("bertsmith_model_loaded", (("model", name),), int(is_loaded)) for name, is_loaded in loaded]
        return "\n".join(lines) + "\n"


def _header(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Labels, value: float) -> str:
    escaped = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for _, value in labels)
    body = ",".join(f'{key}="{value}"' for (key, _), value in zip(labels, escaped, strict=True))
    return f"{name}{{{body}}} {value}" if body else f"{name} {value}"
