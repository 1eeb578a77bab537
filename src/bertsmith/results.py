"""What the functions of `bertsmith.api` return: the result of a stage as a dictionary that also prints and renders well."""

from base64 import b64encode
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .reading import read_bytes

if TYPE_CHECKING:
    from .inference.predictor import Predictor

MAX_PICTURE_BYTES = 1 << 28
MAX_ITEMS = 8  # of a list in a table


class StageResult(dict[str, Any]):
    """The values that `bertsmith STAGE --json` prints, by name; a notebook shows them as a table.

    >>> result = bertsmith.evaluate(model="out/mood", data="test.tsv")
    >>> result["num_examples"], result.scores["accuracy"]
    """

    @property
    def folder(self) -> Path | None:
        """The folder or file that the stage wrote; None if it wrote nothing."""
        return Path(self["out"]) if self.get("out") else None

    @property
    def scores(self) -> dict[str, float]:
        """Metrics on the dev file (`finetune`) or on the evaluated file (`evaluate`)."""
        return self.get("scores") or self.get("dev") or {}

    def __repr__(self) -> str:
        rows = flatten_values(self)
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([f"{type(self).__name__}:", *(f"  {name.ljust(width)}  {value}" for name, value in rows)])

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in flatten_values(self)
        )
        return f"<table>{cells}</table>"


class ModelResult(StageResult):
    """The result of a stage that writes a checkpoint folder; `model` loads it.

    >>> run = bertsmith.finetune(task="classify", model="mini-en", data={"train": "train.tsv"}, out="out/mood")
    >>> run.model("a fine film")
    """

    @cached_property
    def model(self) -> "Predictor":
        """The checkpoint of `folder`, loaded on first use as by `bertsmith.load`."""
        from .inference.predictor import load

        return load(str(self.folder))


class ShowResult(StageResult):
    """The result of `show`: a notebook shows its page or picture.

    >>> bertsmith.show(kind="attention", model="mini-en", texts=["The bank of the river was steep."])
    """

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({name: value for name, value in values.items() if name != "page"})
        self._page: str | None = values.get("page")

    @property
    def page(self) -> bytes:
        """The HTML page, or the file that was written."""
        if self._page is not None:
            return self._page.encode()
        assert self.folder is not None
        return read_bytes(self.folder, MAX_PICTURE_BYTES)

    def _repr_html_(self) -> str:
        from .reports.html import frame_page

        kind = self.folder.suffix if self.folder else ".html"
        if kind == ".png":
            return f'<img style="max-width:100%" src="data:image/png;base64,{b64encode(self.page).decode()}">'
        return self.page.decode() if kind == ".svg" else frame_page(self.page.decode())


def pass_through(result: Any) -> Any:
    """The result of a stage that returns answers or arrays as it is; a `StageResult` if it wrote them to a file."""
    return StageResult(result) if isinstance(result, dict) and result.get("out") else result


def flatten_values(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as (dotted name, text) rows; numbers with four significant digits, long lists cut."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += flatten_values(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", _format_value(value)))
    return rows


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        items = ", ".join(_format_value(item) for item in value[:MAX_ITEMS])
        return items + (f", ... ({len(value)})" if len(value) > MAX_ITEMS else "")
    return str(value)
