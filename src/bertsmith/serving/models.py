"""`ModelStore`: served models by name; each is loaded when it is first asked for and replaced when its folder changes."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..artifacts import MANIFEST, resolve_path
from ..console import logger
from ..errors import UserError
from ..inference.predictor import Predictor
from .errors import Overloaded, UnknownModel

CHECK_SECONDS = 2.0  # between two looks at whether a folder has changed
BYTES_PER_WEIGHT = 4
WEIGHTS = (".safetensors", ".onnx", ".onnx.data", ".bin")  # files of weights

Load = Callable[[Path], Predictor]
Test = Callable[[Predictor], bool]  # whether a model can do something


class ServedModel:
    """One model and its folder; `predictor` is None until it is loaded."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.predictor: Predictor | None = None
        self.version: Any = None  # of the folder the predictor was loaded from
        self.cannot: set[Test] = set()  # tests that this version of the model did not pass
        self.used_at = self.checked_at = 0.0
        self.lock = asyncio.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory of the weights, about: the size of their files, or more if these are compressed."""
        num_weights = (self.predictor.num_parameters or 0) if self.predictor else 0
        try:
            stored = sum(path.stat().st_size for path in self.folder.iterdir() if path.name.endswith(WEIGHTS))
        except OSError:
            stored = 0
        return max(stored, BYTES_PER_WEIGHT * num_weights)

    def read_version(self) -> Any:
        """Changes when the folder is written anew; None while it is missing."""
        try:
            states = [(self.folder / name).stat() for name in (MANIFEST, "config.json") if (self.folder / name).exists()]
        except OSError:
            return None
        return [(state.st_mtime_ns, state.st_ino, state.st_size) for state in states] or None


class ModelStore:
    """The models of a server. With `memory_limit` (bytes), those that were not used for longest are unloaded to make room."""

    def __init__(self, names: tuple[str, ...], load: Load, memory_limit: int | None = None) -> None:
        self.models: dict[str, ServedModel] = {}
        self._load, self.memory_limit = load, memory_limit
        self._loading = asyncio.Lock()  # one model at a time: each needs the memory that it was given room for
        for name in names:
            folder = resolve_path(name, "model")
            if not folder.is_dir():
                raise UserError(f"there is no folder {folder}; give model=FOLDER or the name of a shipped model")
            if folder.name in self.models:
                raise UserError(
                    f"two models are named {folder.name}, {self.models[folder.name].folder} and {folder}; rename one"
                )
            self.models[folder.name] = model = ServedModel(folder.name, folder.absolute())
            if memory_limit is not None and model.num_bytes > memory_limit:
                needed = -(-model.num_bytes // 1_000_000)
                raise UserError(
                    f"model {model.name} has {needed:,} MB of weights, more than memory_limit; set {needed} or more"
                )

    def find(self, name: str) -> ServedModel:
        try:
            return self.models[name]
        except KeyError:
            raise UnknownModel(f"there is no model {name!r}; served: {', '.join(self.models)}") from None

    async def load(self, model: ServedModel) -> Predictor:
        """The predictor, loaded if it is not, and loaded anew if the folder has changed; until then, the one of before."""
        now = time.monotonic()
        model.used_at = now
        if model.predictor is not None and (now - model.checked_at < CHECK_SECONDS or model.lock.locked()):
            return model.predictor
        async with model.lock:
            model.checked_at = now
            version = model.read_version()
            if model.predictor is not None and version in (None, model.version):
                return model.predictor
            return await self._replace(model, version)

    async def _replace(self, model: ServedModel, version: Any) -> Predictor:
        old = model.predictor
        try:
            async with self._loading:
                self._make_room(model)
                predictor = await asyncio.to_thread(self._load, model.folder)
                model.predictor, model.version, model.cannot = predictor, version, set()
        except Exception as error:  # of whichever engine loads it: the server goes on
            if old is None:
                logger.warning(f"model {model.name} cannot be loaded: {error}")
                raise Overloaded(f"model {model.name} cannot be loaded; the log of the server says why", 60) from None
            logger.warning(f"the new folder of model {model.name} cannot be loaded, the model of before answers: {error}")
            return old
        logger.info(f"model {model.name}: loaded{' anew' if old else ''} from {model.folder}")
        return predictor

    def _make_room(self, newest: ServedModel) -> None:
        """Unload models until `newest` has room."""
        if self.memory_limit is None:
            return
        others = [model for model in self.models.values() if model.predictor is not None and model is not newest]
        total = newest.num_bytes + sum(model.num_bytes for model in others)
        for model in sorted(others, key=lambda model: model.used_at):
            if total <= self.memory_limit:
                return
            total -= model.num_bytes
            model.predictor = None  # requests in progress hold it until they end
            logger.info(f"model {model.name}: unloaded to make room for {newest.name}")
