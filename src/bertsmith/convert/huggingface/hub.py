"""Download of models from a Hugging Face hub by repository id, with the optional package huggingface_hub."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import UserError
from .weights import WEIGHT_FILES

REPO_ID = re.compile(r"(?!\.+/)[\w.-]+/(?!\.+$)[\w.-]+")
CONFIG_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt")


def is_repo_id(source: str) -> bool:
    """Whether a string has the form `org/name`."""
    return REPO_ID.fullmatch(source) is not None


def download(repo_id: str, quiet: bool = False) -> Path:
    """Local folder with the files that an import needs, downloaded from HF_ENDPOINT, or cached by an earlier call."""
    try:
        import huggingface_hub as hub
        from huggingface_hub import constants, errors
    except ImportError:
        raise UserError(
            f"there is no folder {repo_id}; to fetch a model of that name, `pip install 'bertsmith[hub]'`"
        ) from None
    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    try:
        names = [file.rfilename for file in hub.HfApi(endpoint=endpoint).model_info(repo_id).siblings or ()]
        needed = _select_files(names)
        if "config.json" not in needed:
            raise UserError(f"{repo_id} at {endpoint} holds no config.json; it is not a model that transformers loads")
        with _progress_bars(hub, quiet):
            return Path(hub.snapshot_download(repo_id, allow_patterns=needed, endpoint=endpoint))
    except errors.GatedRepoError:
        raise UserError(f"{repo_id} at {endpoint} is given to those who accept its terms; do so on its page, then "
                       "`hf auth login`") from None  # fmt: skip
    except errors.RepositoryNotFoundError:
        raise UserError(f"there is no folder {repo_id}, and {endpoint} has no model of that name, or it is private: correct "
                       "the name, or `hf auth login`") from None  # fmt: skip
    except UserError:
        raise
    except Exception as error:  # network errors differ between versions
        return _find_cached(hub, repo_id, endpoint, error)


def _select_files(names: Iterable[str]) -> list[str]:
    """Config, tokenizer and one format of weights, in the order of WEIGHT_FILES; top-level files only."""
    names = set(names)
    weights_file = next((weights_file for weights_file in WEIGHT_FILES if weights_file in names), None)
    weights = [] if weights_file is None else [weights_file]
    if weights_file is not None and weights_file.endswith(".index.json"):
        stem, suffix = weights_file.removesuffix(".index.json").rsplit(".", 1)
        weights += [name for name in names if re.fullmatch(rf"{stem}-\d+-of-\d+\.{suffix}", name)]
    return sorted([*weights, *names.intersection(CONFIG_FILES)])


def _find_cached(hub: Any, repo_id: str, endpoint: str, error: Exception) -> Path:
    """The cached folder of an earlier download, for when the hub cannot be reached."""
    config_path = hub.try_to_load_from_cache(repo_id, "config.json")
    if isinstance(config_path, str):
        return Path(config_path).parent
    cause = str(error).strip().split("\n")[0][:200] or type(error).__name__
    raise UserError(f"there is no folder {repo_id}, and {endpoint} did not give a model of that name: {cause}; try again with "
                   "the network, or give a folder") from None  # fmt: skip


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
