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
    if value is None or (isinstance(value, float) and value != value):
        return None
    return value if isinstance(value, str | int | float) else str(value)
