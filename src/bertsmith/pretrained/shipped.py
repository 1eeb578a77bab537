"""Shipped models by name: which there are, where they lie, and what their cards say first."""

from pathlib import Path

CARD_FILE = "card.md"
ROOT = Path(__file__).parent


def list_names() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("*/config.json"))


def find_folder(name: str) -> Path | None:
    """The checkpoint folder of a shipped model; None if there is none of that name."""
    return ROOT / name if name in list_names() else None


def list_models() -> dict[str, str]:
    """Each name with the first line of its card; nothing, where no model was shipped."""
    return {name: _first_line(ROOT / name / CARD_FILE, name) for name in list_names()}


def format_known_names() -> str:
    """For the end of an error: the names there are."""
    return f"those that do: {', '.join(there)}" if (there := list_names()) else "none does"


def _first_line(card: Path, name: str) -> str:
    line = card.read_text(encoding="utf-8").partition("\n")[0] if card.exists() else ""
    return line.removeprefix("# ").removeprefix(f"{name}: ").strip()
