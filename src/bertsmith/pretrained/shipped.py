"""Shipped models by name: which there are, where they lie, and what their cards say first."""

from pathlib import Path

CARD = "card.md"
ROOT = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("*/config.json"))


def folder(name: str) -> Path | None:
    """The checkpoint folder of a shipped model; None if there is none of that name."""
    return ROOT / name if name in names() else None


def models() -> dict[str, str]:
    """Each name with the first line of its card; nothing, where no model was shipped."""
    return {name: _first_line(ROOT / name / CARD, name) for name in names()}


def listed() -> str:
    """For the end of an error: the names there are."""
    return f"those that do: {', '.join(there)}" if (there := names()) else "none does"


def _first_line(card: Path, name: str) -> str:
    line = card.read_text(encoding="utf-8").partition("\n")[0] if card.exists() else ""
    return line.removeprefix("# ").removeprefix(f"{name}: ").strip()
