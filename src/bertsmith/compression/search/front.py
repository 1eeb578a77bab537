"""The measured artifacts: what each keeps of the score, which pass the gate, the Pareto front, and the smallest that passes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...evaluation.metric_names import display_name, format_score
from ...metrics.intervals import ConfidenceInterval
from .candidates import REFERENCE, Candidate
from .measure import Measured


@dataclass(frozen=True)
class Artifact:
    """A candidate that was exported, evaluated on the runtime, and measured."""

    candidate: Candidate
    score: ConfidenceInterval
    kept: float  # share of the original's score, or of its error where lower is better
    cost: Measured

    @property
    def name(self) -> str:
        return self.candidate.describe()


@dataclass(frozen=True)
class Omitted:
    """A candidate that was not exported, or a model that was not trained, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Front:
    """All artifacts, the original in fp32 first."""

    metric: str
    gate: float
    artifacts: Sequence[Artifact]
    omitted: Sequence[Omitted] = ()

    @property
    def reference(self) -> Artifact:
        return next(artifact for artifact in self.artifacts if artifact.candidate == REFERENCE)

    @property
    def gate_score(self) -> float:
        """The score at the gate, for metrics where higher is better."""
        return self.gate * self.reference.score.value

    def passes(self, artifact: Artifact) -> bool:
        return artifact.kept >= self.gate

    @property
    def chosen(self) -> Artifact | None:
        """The smallest artifact that passes the gate and is smaller than the original; None: none does."""
        usable = [
            artifact for artifact in self.artifacts
            if self.passes(artifact) and artifact.cost.bytes < self.reference.cost.bytes
        ]  # fmt: skip
        return min(usable, key=lambda artifact: (artifact.cost.bytes, artifact.cost.latency_p50), default=None)

    @property
    def best_smaller(self) -> Artifact | None:
        """The artifact other than the original in fp32 that keeps most of the score."""
        others = [artifact for artifact in self.artifacts if artifact is not self.reference]
        return max(others, key=lambda artifact: artifact.kept, default=None)

    def is_optimal(self, artifact: Artifact) -> bool:
        """Whether it is on the Pareto front: no other is as good in score, bytes and median latency, and better in one."""
        return not any(_dominates(other, artifact) for other in self.artifacts)

    def speedup(self, artifact: Artifact) -> float:
        return self.reference.cost.latency_p50 / artifact.cost.latency_p50

    def shrinkage(self, artifact: Artifact) -> float:
        """How many times smaller than the original."""
        return self.reference.cost.bytes / artifact.cost.bytes

    def header(self) -> tuple[str, ...]:
        score = display_name(self.metric)
        return (
            "",
            score,
            "95% interval",
            "kept",
            "MB",
            "RAM MB",
            "p50 ms",
            "p99 ms",
            "examples/s",
            "smaller",
            "faster",
            "front",
            "gate",
        )

    def row(self, artifact: Artifact) -> tuple[str, ...]:
        """Cells of a table."""
        cost, score = artifact.cost, artifact.score
        gate = "chosen" if artifact is self.chosen else "passes" if self.passes(artifact) else "below"
        low, high = (format_score(self.metric, bound).removesuffix("%") for bound in (score.low, score.high))
        return (
            artifact.name, format_score(self.metric, score.value), f"{low} – {high}", f"{artifact.kept:.1%}",
            f"{cost.bytes / 1e6:.1f}", f"{cost.peak_memory / 1e6:.0f}", f"{1000 * cost.latency_p50:.2f}",
            f"{1000 * cost.latency_p99:.2f}", f"{cost.throughput:,.0f}", f"{self.shrinkage(artifact):.1f}x",
            f"{self.speedup(artifact):.1f}x", "yes" if self.is_optimal(artifact) else "", gate,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For front.json and the result of the stage."""
        return {
            "metric": self.metric, "gate": self.gate, "chosen": self.chosen and self.chosen.candidate.folder,
            "artifacts": [self.describe(artifact) for artifact in self.artifacts],
            "omitted": [asdict(omitted) for omitted in self.omitted],
        }  # fmt: skip

    def describe(self, artifact: Artifact) -> dict[str, Any]:
        """An artifact as JSON."""
        candidate, score = artifact.candidate, artifact.score
        return {
            "name": artifact.name, "folder": candidate.folder, "num_hidden_layers": candidate.trained.num_hidden_layers,
            "amount": candidate.trained.amount, "precision": candidate.precision,
            "score": {"value": score.value, "confidence_interval": [score.low, score.high]}, "kept": artifact.kept,
            **asdict(artifact.cost), "smaller": self.shrinkage(artifact), "faster": self.speedup(artifact),
            "passes": self.passes(artifact), "pareto": self.is_optimal(artifact),
        }  # fmt: skip


def _dominates(other: Artifact, artifact: Artifact) -> bool:
    pairs = [(other.kept, artifact.kept), (-other.cost.bytes, -artifact.cost.bytes),
             (-other.cost.latency_p50, -artifact.cost.latency_p50)]  # fmt: skip
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
