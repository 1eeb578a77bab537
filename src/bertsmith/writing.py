"""The writer of everything that is written: whole or absent, never through a link, never over what is not its own.

- `resolve_output`, `check_output_file`, `check_writable`: what `out` names and whether it may be written, before any work
- `lock_output`: one process at a time; it also removes what a run that died left behind
- `check_work_folders`: no link leads out of the folders that runs work in
- `replace_file`, `write_atomic`, `write_json`: a temporary file beside the target, synced, renamed
- `open_own`, `allocate_file`: files inside a folder that is being written

Temporary names are `.NAME.bertsmith-XXXXXXXX.part`, random and created exclusively. No user's file has such a name, so whoever
holds the lock of NAME may remove them.
"""

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
from filelock import FileLock, Timeout, lock_descriptor

from .errors import NOT_UTF8, UserError
from .reading import MAX_JSON_BYTES, parse_json, read_bytes

MANIFEST = "manifest.json"
MAX_NAME_BYTES = 200  # of an output: file systems allow 255, and temporary names are longer
TEMP_NAME = re.compile(r"\.(?P<name>.+)\.bertsmith-[0-9a-f]{8}(?P<is_old>\.old)?\.part", re.DOTALL)
# Folders in the output of a run: checkpoints, the runs of seeds, those of `suite`, `race` and `compress`.
WORK_FOLDERS = ("state", "seeds", "runs", "members", "search", "model")
NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_output(out: str | Path, key: str = "out") -> Path:
    """The file or folder to write: `~` expanded, a link that it names replaced by its target; impossible names are errors."""
    text = str(out)
    if not text.strip():
        raise UserError(f"{key} is empty; give the path of a folder or file")
    if "\0" in text or not _is_utf8(text):
        raise UserError(f"{key}={text!a} is not a file name in UTF-8; choose another {key}")
    try:
        path = Path(text).expanduser()
        path = path.resolve() if path.is_symlink() or path.name in ("", "..") else path
        is_loop = path.is_symlink()
    except RuntimeError as error:  # no such user; a loop of links
        raise UserError(f"{key}={text}: {error}; choose another {key}") from None
    if is_loop:
        raise UserError(f"{key}={text} is a loop of symbolic links; choose another {key}")
    if not (name := path.absolute().name):
        raise UserError(f"{key}={text} is the root folder; give a folder or file in it")
    if (size := len(os.fsencode(name))) > MAX_NAME_BYTES:
        raise UserError(
            f"{key}: a name of {size} bytes leaves no room for temporary files; choose one of {MAX_NAME_BYTES} bytes"
        )
    _check_parents(path, key)
    return path


def check_output_file(
    out: Path, *inputs: str | Path | None, overwrite: bool | None = False, is_ours: Callable[[Path], bool] = lambda _: False
) -> Path:
    """Return `out` if a file may be written there: nothing exists, or what exists is ours or may be overwritten.

    overwrite: None for a command without that key. Never allowed, whatever it is: an input of the command or a file in it, a
    file that a manifest lists, anything but a regular file.
    """
    if out.is_dir():
        raise UserError(f"out={out} is a folder; give the name of a file in it")
    if not os.path.lexists(out):
        return out
    if not stat.S_ISREG(out.lstat().st_mode):
        raise UserError(f"out={out} is not a regular file, but a device, pipe or link; choose another out")
    for item in inputs:
        path = None if item is None else Path(item).expanduser()
        if path and path.exists() and (out.samefile(path) or (_is_inside(out, path) and not is_ours(out))):
            raise UserError(f"out={out} is also the input file, or in its folder, and would be overwritten; choose another out")
    check_unsealed(out)
    if not overwrite and not is_ours(out):
        way_out = "remove it" if overwrite is None else "set overwrite=true to replace it"
        raise UserError(f"out={out} exists and is no earlier output of this command; choose another out, or {way_out}")
    return out


def check_unsealed(path: Path) -> None:
    """Raise if a manifest in one of the folders above lists this file, or is this file."""
    path = path.absolute()
    for folder in path.parents:
        if (folder / MANIFEST).is_file() and _is_sealed(folder / MANIFEST, path.relative_to(folder).as_posix()):
            raise UserError(f"{path} is a file of {folder}, whose {MANIFEST} lists it; choose another out")


def check_writable(folder: Path, *allowed_patterns: str) -> Path:
    """Return `folder` if it may be written: it does not exist, holds no files, or holds something matching `allowed_patterns`
    (glob), as left by an earlier run of ours."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"{folder} is a file, but the output must be a folder; choose another out, or remove the file")
    if folder.exists() and not _is_empty(folder) and not any(any(folder.glob(name)) for name in allowed_patterns):
        raise UserError(f"{folder} already exists and contains other files; choose another out, or remove it")
    return folder


def check_resumable(folder: Path, results: str, *own: str) -> Path:
    """Return `folder` if it is new, or the output of an earlier `suite` or `race`: `results` says how much is pending.

    Before it is written, only the names `own` may be there.
    """
    check_writable(folder, "*")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if MANIFEST in names or (results not in names and names - set(own)) or not _has_key(folder / results, "num_pending"):
        raise UserError(f"{folder} already exists and contains other files; choose another out, or remove it")
    return folder


def check_only(folder: Path, *own_patterns: str) -> Path:
    """Return `folder` if it does not exist, or holds only files that match `own_patterns`: it may be replaced or removed."""
    check_writable(folder, "*")
    if folder.is_symlink():
        raise UserError(f"{folder} is a symbolic link; remove it, or choose another out")
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_symlink() or not path.is_file() or not any(path.match(pattern) for pattern in own_patterns):
            problem = f"{folder} already exists and contains other files ({path.name})"
            raise UserError(f"{problem}; choose another out, or remove it")
    return folder


def check_work_folders(out: Path) -> None:
    """Raise if a folder inside `out` that runs write to and empty is a symbolic link, or has one."""
    for root in (out / name for name in WORK_FOLDERS):
        inside = (Path(parent, name) for parent, folders, files in os.walk(root) for name in (*folders, *files))
        for path in chain((root,), inside):
            if path.is_symlink():
                raise UserError(f"{path} is a symbolic link, which is not followed to write; remove it, or choose another out")


@contextmanager
def lock_output(out: Path, *beside: Path) -> Iterator[None]:
    """Exclusive lock (`.NAME.lock`) on an output (and files `beside` it), against two processes of this machine writing to it.

    The lock ends with its process, however that ends. Once it is held, what a run that died left is removed.
    """
    check_work_folders(out)
    path = _lock_path(out.absolute())
    missing_parents = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_lock_file(path)
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"another run is writing {out}; wait for it, or choose another out") from None
    try:
        remove_leftovers(out.absolute(), *beside)
        yield
    finally:
        path.unlink(missing_ok=True)  # still locked: a process that has opened it meanwhile finds out that it is removed
        lock.release()
        for folder in missing_parents:
            with suppress(OSError):
                folder.rmdir()  # only if nothing was written


def is_locked(out: Path) -> bool:
    """Whether a process holds the lock of `lock_output` on a folder; does not disturb that process."""
    try:
        descriptor = os.open(_lock_path(out.absolute()), os.O_RDONLY | os.O_NONBLOCK | NO_FOLLOW)
    except OSError:
        return False
    try:
        return not lock_descriptor(descriptor, blocking=False)
    finally:
        os.close(descriptor)


def remove_leftovers(out: Path, *beside: Path) -> None:
    """Remove the temporary files and folders of a run that died, and put back a folder that it was about to replace.

    For whoever holds the lock of `out`. They are beside `out`, in it, in its `state/`, and in the `.part` folder of `prepare`.
    """
    names = {out.name, f"{out.name}.part", f"{out.name}.part.json", f".{out.name}.run.json", *(path.name for path in beside)}
    remove_temps(out.parent, names.__contains__)
    for folder in (out, out / "state", out.with_name(f"{out.name}.part")):
        if folder.is_dir() and not folder.is_symlink():
            remove_temps(folder)


def remove_temps(folder: Path, is_wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Remove the temporary files and folders in a folder that nobody else writes, of the wanted names."""
    with os.scandir(folder) as entries:
        matches = [(Path(entry.path), match) for entry in entries if (match := TEMP_NAME.fullmatch(entry.name))]
    for path, match in matches:
        target = path.with_name(match["name"])
        if not is_wanted(match["name"]) or path.is_symlink():
            continue
        if match["is_old"] and not os.path.lexists(target):
            path.replace(target)  # the run died between the two renames of a replacement
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def temp_path(path: Path, is_old: bool = False) -> Path:
    """A random name beside `path`, which `remove_leftovers` recognizes; is_old: of what `path` was, while it is replaced."""
    return path.with_name(f".{path.name}.bertsmith-{secrets.token_hex(4)}{'.old' if is_old else ''}.part")


def discard(folder: Path) -> None:
    """Remove a folder: renamed first, so that a kill meanwhile leaves no half of it under its name."""
    if folder.exists():
        old = temp_path(folder.absolute())
        folder.replace(old)
        shutil.rmtree(old)


def make_temp_folder(path: Path) -> Path:
    """An empty folder of such a name."""
    folder = temp_path(path)
    folder.mkdir(parents=True)
    return folder


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A temporary file to write to, which becomes `path`: readers see the old file or the new one, never a partial one.

    A link at `path` is replaced, not followed.
    """
    with replace_files(path) as (file,):
        yield file


@contextmanager
def replace_files(*paths: Path) -> Iterator[list[BinaryIO]]:
    """`replace_file` for several, renamed when all are written."""
    parts = [temp_path(path) for path in paths]
    try:
        with name_in_errors(paths[0]):
            with ExitStack() as stack:
                files: list[BinaryIO] = [stack.enter_context(open(part, "xb", opener=_open_no_follow)) for part in parts]
                yield files
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
            for part, path in zip(parts, paths, strict=True):
                part.replace(path)
    except BaseException:
        for part in parts:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file as in `replace_file`."""
    with replace_file(path) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, msgspec.json.format(encode_json(value), indent=2) + b"\n")


def encode_json(value: Any, order: Literal["deterministic"] | None = None) -> bytes:
    """JSON in UTF-8; a file name or text that UTF-8 cannot encode is an error that shows it."""
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError as error:
        raise UserError(f"{error.object[:200]!a} {NOT_UTF8}") from None


def open_own(path: Path, mode: str, **options: Any) -> Any:
    """`open` for a file inside a folder that is being written; a link is an error instead of being followed."""
    return open(path, mode, opener=_open_no_follow, **options)


def allocate_file(path: Path, num_bytes: int, header: bytes = b"") -> None:
    """Create a file of `header` and zeros whose blocks exist: in a sparse one, a full disk ends a memory map with SIGBUS."""
    with name_in_errors(path), open(path, "wb", opener=_open_no_follow) as file:
        file.write(header)
        file.flush()
        if num_bytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, len(header) + num_bytes)
        else:
            for start in range(0, num_bytes, 1 << 20):
                file.write(bytes(min(1 << 20, num_bytes - start)))


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Errors of writing, such as a full disk, that do not say for which file get its name."""
    try:
        yield
    except OSError as error:
        if not error.filename or TEMP_NAME.fullmatch(Path(os.fsdecode(error.filename)).name):
            error.filename, error.filename2 = str(path), None
        raise


def sync_file(path: Path) -> None:
    """Make the contents of a file durable: after a power cut it has them."""
    with name_in_errors(path), path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _open_no_follow(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | NO_FOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link, which is not followed to write; remove it, and run again") from None
        raise


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _check_parents(path: Path, key: str) -> None:
    """Raise if the nearest folder above that exists is not one, or cannot be written."""
    parent = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise UserError(f"{key}={path}: {parent} is not a folder; choose another {key}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{key}={path}: {parent} cannot be written; choose another {key}, or change its permissions")


def _is_inside(path: Path, item: Path) -> bool:
    """Whether a file belongs to an input folder: any file there, or those that its manifest lists."""
    path, item = path.resolve(), item.resolve()
    if not item.is_dir() or not path.is_relative_to(item):
        return False
    return not (item / MANIFEST).is_file() or _is_sealed(item / MANIFEST, path.relative_to(item).as_posix())


def _is_sealed(manifest: Path, name: str) -> bool:
    """Whether a manifest lists a file or is it; a manifest that cannot be read seals everything."""
    if name == MANIFEST:
        return True
    try:
        files = parse_json(read_bytes(manifest, MAX_JSON_BYTES), str(manifest))["files"]
        return not isinstance(files, dict) or name in files
    except (OSError, ValueError, KeyError, TypeError):  # UserError is a ValueError
        return True


def _has_key(path: Path, key: str) -> bool:
    """Whether a JSON file has this key; true if there is none."""
    try:
        return not os.path.lexists(path) or key in dict(parse_json(read_bytes(path, MAX_JSON_BYTES), str(path)))
    except (OSError, ValueError, TypeError):
        return False


def _check_lock_file(path: Path) -> None:
    """Raise if the name of the lock is taken by something else; locks of ours are empty, or hold a process number."""
    try:
        is_small_file = stat.S_ISREG((status := path.lstat()).st_mode) and status.st_size <= 256
        is_ours = is_small_file and re.fullmatch(rb"(\d+\n.*)?", read_bytes(path, 256), re.DOTALL)
    except FileNotFoundError:
        return  # none, or one that was just released
    if not is_ours:
        raise UserError(f"{path} is not a lock of bertsmith; remove it, or choose another out")


def _lock_path(out: Path) -> Path:
    return out.with_name(f".{out.name}.lock")


def _is_empty(folder: Path) -> bool:
    """Empty but for empty subfolders, which a run stopped during its first save leaves behind."""
    return all(child.is_dir() and not any(child.iterdir()) for child in folder.iterdir())
