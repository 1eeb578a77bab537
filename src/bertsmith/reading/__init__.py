"""The reader of everything in users' files and folders: regular files only, with limits, checked before memory is allocated.

- `files`: `open_regular`, `require_regular`, `read_bytes`, `read_text`; a pipe or device in place of a file is an error, never
  a wait
- `values`: JSON and TOML, limited in bytes, depth and digits
- `arrays`: memory maps, .npy and the headers of safetensors, whose shapes must fit the size of the file (needs numpy)

`artifacts.read_json` and `artifacts.read_sealed` also compare a file with the manifest of its folder. Texts and task files,
which may be streams, are read by `tokenization.files`.
"""

from .files import open_regular, read_bytes, read_text, require_regular
from .values import MAX_JSON_BYTES, as_object, check_depth, parse_json, parse_toml, read_json_lines, read_toml

__all__ = [
    "MAX_JSON_BYTES", "as_object", "check_depth", "open_regular", "parse_json", "parse_toml", "read_bytes", "read_json_lines",
    "read_text", "read_toml", "require_regular",
]  # fmt: skip
