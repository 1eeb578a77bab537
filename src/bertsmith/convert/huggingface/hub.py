"""Download of models from a Hugging Face hub by repository id, with the optional package huggingface_hub."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import UserError
from .sentence_transformers import MODULE_FILES, MODULES_FILE, PIPELINE_FILE, TRANSFORMER_FILE
from .weights import WEIGHT_FILES, find_single_safetensors

CONFIG_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt")
SENTENCE_FILES = (MODULES_FILE, TRANSFORMER_FILE, PIPELINE_FILE)
MODULE_FOLDER = re.compile(r"\d+_(Pooling|Dense|Normalize)")


def download(repo_id: str, quiet: bool = False) -> Path:
    """Local folder with the files that an import needs, downloaded from HF_ENDPOINT, or cached by an earlier call."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, errors
    except ImportError:
        raise UserError(
            f"there is no folder {repo_id}; to download the model of that name, run `pip install 'bertsmith[hub]'`, or give "
            "source=FOLDER, downloaded elsewhere"
        ) from None
    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    try:
        names = [file.rfilename for file in hub.HfApi(endpoint=endpoint).model_info(repo_id).siblings or ()]
        needed = _select_files(names)
        if "config.json" not in needed:
            raise UserError(f"{repo_id} at {endpoint} contains no config.json; it is not a model that transformers can load")
        with _progress_bars(hub, quiet):
            return Path(hub.snapshot_download(repo_id, allow_patterns=needed, endpoint=endpoint))
    except errors.GatedRepoError:
        raise UserError(f"{repo_id} at {endpoint} is gated; accept its terms on its page, then run "
                       "`hf auth login`") from None  # fmt: skip
    except errors.RepositoryNotFoundError:
        raise UserError(f"there is no folder {repo_id}, and {endpoint} has no public model of that name; correct the name, "
                       "or run `hf auth login` if the model is private") from None  # fmt: skip
    except UserError:
        raise
    except Exception as error:  # network errors differ between versions
        return _find_cached(hub, repo_id, endpoint, error)


def _select_files(names: Iterable[str]) -> list[str]:
    """Config, tokenizer, one format of weights, in the order of WEIGHT_FILES, and the modules of sentence-transformers."""
    names = set(names)
    weights_file = next((weights_file for weights_file in WEIGHT_FILES if weights_file in names), None)
    weights_file = weights_file or find_single_safetensors([name for name in names if "/" not in name], "the repository")
    weights = [] if weights_file is None else [weights_file]
    if weights_file is not None and weights_file.endswith(".index.json"):
        stem, suffix = weights_file.removesuffix(".index.json").rsplit(".", 1)
        weights += [name for name in names if re.fullmatch(rf"{stem}-\d+-of-\d+\.{suffix}", name)]
    return sorted([*weights, *names.intersection((*CONFIG_FILES, *SENTENCE_FILES)), *_select_module_files(names)])


def _select_module_files(names: Iterable[str]) -> list[str]:
    """Config and one format of weights of each module around the encoder."""
    selected: dict[tuple[str, bool], str] = {}
    for file in reversed(MODULE_FILES):  # the first of a kind that there is
        for name in names:
            folder, _, base = name.rpartition("/")
            if base == file and MODULE_FOLDER.fullmatch(folder):
                selected[folder, file == MODULE_FILES[0]] = name
    return list(selected.values())


def _find_cached(hub: Any, repo_id: str, endpoint: str, error: Exception) -> Path:
    """The cached folder of an earlier download, for when the hub cannot be reached."""
    config_path = hub.try_to_load_from_cache(repo_id, "config.json")
    if isinstance(config_path, str):
        return Path(config_path).parent
    cause = str(error).strip().split("\n")[0][:200] or type(error).__name__
    raise UserError(f"there is no folder {repo_id}, and {endpoint} could not be reached: {cause}; try again with a network "
                   "connection, or give source=FOLDER, downloaded elsewhere") from None  # fmt: skip


@contextmanager
def _progress_bars(hub: Any, quiet: bool) -> Iterator[None]:
    """Disable huggingface_hub's progress bars if quiet."""
    disable = quiet and not hub.utils.are_progress_bars_disabled()
    if disable:
        hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        if disable:
            hub.utils.enable_progress_bars()
