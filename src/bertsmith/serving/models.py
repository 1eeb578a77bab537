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

Load = Callable[[Path], Predictor]


class ServedModel:
    """One model and its folder; `predictor` is None until it is loaded."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.predictor: Predictor | None = None
        self.version: Any = None  # of the folder the predictor was loaded from
        self.used_at = self.checked_at = 0.0
        self.lock = asyncio.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory of the weights, about."""
        return 0 if self.predictor is None else BYTES_PER_WEIGHT * (self.predictor.num_parameters or 0)

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
        for name in names:
            folder = resolve_path(name, "model")
            if not folder.is_dir():
                raise UserError(f"there is no folder {folder}; give model=FOLDER or the name of a shipped model")
            if folder.name in self.models:
                raise UserError(f"two models are named {folder.name}, {self.models[folder.name].folder} and {folder}; rename one")
            self.models[folder.name] = ServedModel(folder.name, folder.absolute())

    def find(self, name: str) -> ServedModel:
        try:
            return self.models[name]
        except KeyError:
            raise UnknownModel(f"there is no model {name!r}; served: {', '.join(self.models)}") from None

    async def load(self, model: ServedModel) -> Predictor:
        """The predictor, loaded if it is not, and loaded anew if the folder has changed."""
        now = time.monotonic()
        model.used_at = now
        if model.predictor is not None and now - model.checked_at < CHECK_SECONDS:
            return model.predictor
        async with model.lock:
            model.checked_at = now
            version = model.read_version()
            if model.predictor is None or (version is not None and version != model.version):
                await self._replace(model, version)
        assert model.predictor is not None
        return model.predictor

    async def _replace(self, model: ServedModel, version: Any) -> None:
        is_loaded = model.predictor is not None
        try:
            predictor = await asyncio.to_thread(self._load, model.folder)
        except (UserError, OSError) as error:
            if not is_loaded:
                logger.warning(f"model {model.name} cannot be loaded: {error}")
                raise Overloaded(f"model {model.name} cannot be loaded; the log of the server says why", 60) from None
            logger.warning(f"the new folder of model {model.name} cannot be loaded, the model of before answers: {error}")
            return
        model.predictor, model.version = predictor, version
        logger.info(f"model {model.name}: loaded{' anew' if is_loaded else ''} from {model.folder}")
        self._make_room(model)

    def _make_room(self, newest: ServedModel) -> None:
        if self.memory_limit is None:
            return
        loaded = sorted((m for m in self.models.values() if m.predictor is not None), key=lambda m: m.used_at)
        for model in loaded:
            if sum(m.num_bytes for m in loaded) <= self.memory_limit:
                return
            if model is not newest:
                model.predictor = None  # requests in progress hold it until they end
                logger.info(f"model {model.name}: unloaded to make room for {newest.name}")
