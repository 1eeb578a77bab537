"""A model by its name on a Hugging Face hub, fetched with huggingface_hub where that is installed."""

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
    """It could be one: `org/name`."""
    return REPO_ID.fullmatch(source) is not None


def download(repo_id: str, quiet: bool = False) -> Path:
    """A folder with the files of a model that an import needs, from the hub at HF_ENDPOINT, or kept from the last time."""
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
        wanted = _select_files(names)
        if "config.json" not in wanted:
            raise UserError(f"{repo_id} at {endpoint} holds no config.json; it is not a model that transformers loads")
        with _progress_bars(hub, quiet):
            return Path(hub.snapshot_download(repo_id, allow_patterns=wanted, endpoint=endpoint))
    except errors.GatedRepoError:
        raise UserError(f"{repo_id} at {endpoint} is given to those who accept its terms; do so on its page, then `hf auth login`"
                       ) from None  # fmt: skip
    except errors.RepositoryNotFoundError:
        raise UserError(f"there is no folder {repo_id}, and {endpoint} has no model of that name, or it is private: correct the "
                       "name, or `hf auth login`") from None  # fmt: skip
    except UserError:
        raise
    except Exception as error:  # every version has its own errors of the network
        return _find_cached(hub, repo_id, endpoint, error)


def _select_files(names: Iterable[str]) -> list[str]:
    """Settings, tokenizer and one way of keeping weights, the first that import reads; all at the top of the folder."""
    names = set(names)
    way = next((way for way in WEIGHT_FILES if way in names), None)
    weights = [] if way is None else [way]
    if way is not None and way.endswith(".index.json"):
        stem, suffix = way.removesuffix(".index.json").rsplit(".", 1)
        weights += [name for name in names if re.fullmatch(rf"{stem}-\d+-of-\d+\.{suffix}", name)]
    return sorted([*weights, *names.intersection(CONFIG_FILES)])


def _find_cached(hub: Any, repo_id: str, endpoint: str, error: Exception) -> Path:
    """What was fetched before, where the hub cannot be reached now."""
    held = hub.try_to_load_from_cache(repo_id, "config.json")
    if isinstance(held, str):
        return Path(held).parent
    cause = str(error).strip().split("\n")[0][:200] or type(error).__name__
    raise UserError(f"there is no folder {repo_id}, and {endpoint} did not give a model of that name: {cause}; try again with the "
                   "network, or give a folder") from None  # fmt: skip


@contextmanager
def _progress_bars(hub: Any, quiet: bool) -> Iterator[None]:
    """Without bars of progress, where nobody wants to see them."""
    hide = quiet and not hub.utils.are_progress_bars_disabled()
    if hide:
        hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            hub.utils.enable_progress_bars()
