"""Rows of .parquet files; needs pyarrow, an optional dependency."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError

BUFFER_BYTES = 1 << 20
ROWS_PER_BATCH = 128  # held in memory at a time


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`; errors inside become one UserError that says what to do."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"reading {path} needs pyarrow: pip install bertsmith[data]") from None
    try:
        with parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as table:
            yield table
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as parquet: {error}; is the file complete?") from None


def read_parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Every row by column name, as JSON has it: NaN is null, bytes are UTF-8 text, and dates and decimals are text."""
    with open_parquet(path) as table:
        for batch in table.iter_batches(batch_size=ROWS_PER_BATCH):
            for row in batch.to_pylist():
                yield {name: to_json_value(value) for name, value in row.items()}


def to_json_value(value: Any) -> Any:
    """A value of a data frame or of .parquet as JSON has it."""
    if isinstance(value, dict):
        return {name: to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")  # an invalid row is reported with its number
    if is_missing(value):
        return None
    if hasattr(value, "tolist"):  # a value or an array of NumPy
        return to_json_value(value.tolist())
    return value if isinstance(value, str | int | float) else str(value)


def is_missing(value: Any) -> bool:
    """Whether a value is null: None, NaN, or NaT and NA of pandas."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
