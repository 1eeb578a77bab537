"""What is known of a run besides its log: the settings that decide what is too much and what too little."""

from dataclasses import dataclass
from typing import Any

ADAMS = ("adamw", "bert-adam")
DEVIATION = 0.02  # of new weights, where nothing says otherwise


@dataclass(frozen=True)
class Run:
    stage: str | None = None  # pretrain, finetune, import; none while it is not written down
    recipe: dict[str, Any] | None = None
    deviation: float = DEVIATION

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Run":
        """From what config.json says."""
        deviation = record.get("model", {}).get("encoder", {}).get("deviation", DEVIATION)
        return cls(record.get("stage"), record.get("recipe"), deviation)

    @property
    def fresh(self) -> bool:
        """It began with random weights."""
        told = self.recipe or {}
        return bool(told.get("scratch")) if self.stage == "finetune" else not told.get("init")

    @property
    def words(self) -> bool:
        """It learnt hidden words, as far as is known."""
        return self.stage in (None, "pretrain")

    def train(self, name: str) -> Any:
        return (self.recipe or {}).get("train", {}).get(name)

    @property
    def optimizer(self) -> str:
        return str((self.train("optimizer") or {}).get("kind", "adamw"))

    @property
    def objective(self) -> str | None:
        return (self.recipe or {}).get("objective", {}).get("kind") if self.stage == "pretrain" else None
