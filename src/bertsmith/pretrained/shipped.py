"""Shipped models: their names, folders and one-line summaries."""

from pathlib import Path

CARD_FILE = "card.md"
ROOT = Path(__file__).parent


def list_names() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("*/config.json"))


def find_folder(name: str) -> Path | None:
    """Checkpoint folder of a shipped model, None if there is no model of that name."""
    return ROOT / name if name in list_names() else None


def list_models() -> dict[str, str]:
    """{name: summary}, the summary being the first line of the card."""
    return {name: _first_line(ROOT / name / CARD_FILE, name) for name in list_names()}


def format_known_names() -> str:
    """The known names, as a part of an error message."""
    return f"shipped: {', '.join(list_names()) or 'none'}"


def _first_line(card: Path, name: str) -> str:
    line = card.read_text(encoding="utf-8").partition("\n")[0] if card.exists() else ""
    return line.removeprefix("# ").removeprefix(f"{name}: ").strip()
