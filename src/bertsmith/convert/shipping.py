"""Adapter folders in the form in which they are shipped: a model card, graphs for onnxruntime, and no paths of this machine.

`python -m bertsmith.convert.shipping SOURCE OUT CARD.toml` writes OUT from the adapter that `finetune lora.merge=false` wrote.
"""

import shutil
import sys
from pathlib import Path

from ..artifacts import atomic_folder, read_object, write_manifest
from ..config import from_dict
from ..errors import UserError
from ..model.adapter import ADAPTER_FILE, is_adapter
from ..model.folder import read_config
from ..pretrained.card import CardFacts, render_card
from ..pretrained.shipped import CARD_FILE
from ..reading import read_toml
from ..writing import check_writable, write_atomic, write_json
from .int8 import describe_model, strip_folders
from .onnx.shipped import write_graphs

COPIED_FILES = (ADAPTER_FILE, "tokenizer.json", "metrics.jsonl")


def ship_adapter(source: Path, out: Path, facts: CardFacts) -> None:
    """Write the folder; the base model's weights stay where they are."""
    if not is_adapter(source):
        raise UserError(f"{source} is no adapter; train one with lora.merge=false")
    record, card = strip_folders(read_config(source)), strip_folders(read_object(source / "card.json"))
    with atomic_folder(check_writable(out)) as part:
        for name in COPIED_FILES:
            if (source / name).exists():
                shutil.copy(source / name, part / name)
        write_json(part / "config.json", record)
        write_json(part / "card.json", {name: value for name, value in card.items() if name != "identity"})
        write_manifest(part)  # which is compared when the folder is loaded for its graphs
        write_graphs(part)
        size = (part / ADAPTER_FILE).stat().st_size / 1e6
        rows = describe_model(part) | {"weights": f"{size:.1f} MB, merged into those of {record['adapter']['base']} at load"}
        write_atomic(part / CARD_FILE, render_card(out.absolute().name, facts, rows).encode())


if __name__ == "__main__":
    source, out, card = map(Path, sys.argv[1:])
    ship_adapter(source, out, from_dict(CardFacts, read_toml(card), str(card)))
