"""facts.toml of a shipped model."""

import json
from pathlib import Path
from typing import Any

FACTS = {
    "summary": "a tiny English BERT",
    "language": "English",
    "data": {"Letters": {"licence": "CC0", "about": "all 26 of them"}},
    "recipe": "bertsmith pretrain recipes/tiny.toml",
    "minutes": 0.5,
    "machine": "one core",
    "scores": {"SST-2": {"tiny-en": 51.0, "a coin": 50}, "RTE": {"a coin": 50}},
    "scored": "Dev sets, 3 seeds.",
    "limits": ["It knows nothing."],
    "licence": "Apache-2.0",
}


def write_facts(folder: Path, **other: Any) -> Path:
    """Write facts.toml: FACTS with some values replaced."""
    lines = [f"{name} = {_toml(value)}" for name, value in {**FACTS, **other}.items()]
    (folder / "facts.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "facts.toml"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())}}}"
    return json.dumps(value)
