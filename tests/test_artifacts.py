"""Atomic files and folders, manifests, content hashes, locks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith import artifacts, writing
from bertsmith.artifacts import MANIFEST, atomic_folder, checksum, fingerprint, read_json, verify_manifest, write_manifest
from bertsmith.config import Config
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.model import build_model
from bertsmith.runs import Run
from bertsmith.tokenization.tokenizer import Tokenizer
from bertsmith.word_vectors.models import bag_of_vectors
from bertsmith.writing import write_atomic, write_json
from tests.support.texts import VOCAB


def list_paths(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def raise_no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest and a subfolder."""
    with atomic_folder(tmp_path / "made") as part:
        (part / "tokens.bin").write_bytes(bytes(1000))
        (part / "inner").mkdir()
        (part / "inner" / "card.json").write_text("{}")
        (part / "inner" / MANIFEST).write_text("the manifest of a folder that was put in this one")
    return tmp_path / "made"


def test_write_atomic_replaces_the_file(tmp_path):
    write_atomic(tmp_path / "a.json", b"old")
    write_atomic(tmp_path / "a.json", b"new")
    assert list_paths(tmp_path) == ["a.json"] and (tmp_path / "a.json").read_bytes() == b"new"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_write_atomic_failure_keeps_the_old_file(tmp_path, monkeypatch, failing):
    write_atomic(tmp_path / "a.json", b"old")
    monkeypatch.setattr(os if failing == "fsync" else Path, failing, raise_no_space)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "a.json", b"new, and longer than before")
    assert list_paths(tmp_path) == ["a.json"] and (tmp_path / "a.json").read_bytes() == b"old"


def test_write_atomic_keeps_the_old_file_while_writing(tmp_path, monkeypatch):
    contents = []
    write_atomic(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", lambda _: contents.append((tmp_path / "a").read_bytes()))
    write_atomic(tmp_path / "a", b"new")
    assert contents == [b"old"]


def test_json_roundtrip(tmp_path):
    value = {"words": ["猫", "naïve"], "share": 0.1, "none": None, "deep": {"count": 2**60}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "猫" in (tmp_path / "a.json").read_text(encoding="utf-8")  # readable, not escaped


@pytest.mark.parametrize(
    ("data", "message"), [(None, "a.json is missing"), (b'{"a": 1', "a.json is damaged"), (b"\xff{}", "a.json is damaged")]
)
def test_read_json_errors_name_the_file(tmp_path, data, message):
    if data is not None:
        (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_json(tmp_path / "a.json")


def test_atomic_folder_appears_when_complete(tmp_path):
    with atomic_folder(tmp_path / "deep" / "made") as part:
        (part / "a").write_text("a")
        assert not (tmp_path / "deep" / "made").exists()
    assert list_paths(tmp_path / "deep") == ["made", "made/a", f"made/{MANIFEST}"]
    verify_manifest(tmp_path / "deep" / "made")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_atomic_folder_exception_leaves_nothing(tmp_path, error):
    with pytest.raises(error), atomic_folder(tmp_path / "made") as part:
        (part / "a").write_text("a")
        raise error
    assert list_paths(tmp_path) == []


def test_atomic_folder_without_manifest_is_not_created(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", raise_no_space)
    with pytest.raises(OSError, match="No space"), atomic_folder(tmp_path / "made") as part:
        (part / "a").write_text("a")
    assert list_paths(tmp_path) == []


def test_atomic_folder_replaces_an_existing_one_at_the_end(folder):
    with atomic_folder(folder) as part:
        (part / "new").write_text("new")
        verify_manifest(folder)
        assert (folder / "tokens.bin").exists()
    assert list_paths(folder.parent) == ["made", f"made/{MANIFEST}", "made/new"]


def test_atomic_folder_exception_keeps_the_existing_one(folder):
    paths = list_paths(folder.parent)
    with pytest.raises(RuntimeError), atomic_folder(folder) as part:
        (part / "tokens.bin").write_text("half")
        raise RuntimeError
    assert list_paths(folder.parent) == paths
    verify_manifest(folder)


def test_atomic_folder_discards_leftovers_of_a_dead_run(tmp_path):
    stale = writing.make_temp_folder(tmp_path / "made")
    (stale / "stale").write_text("of a run that died")
    with writing.lock_output(tmp_path / "made"), atomic_folder(tmp_path / "made") as part:
        (part / "a").write_text("a")
    assert list_paths(tmp_path) == ["made", "made/a", f"made/{MANIFEST}"]


def test_atomic_folder_refuses_an_existing_file(tmp_path):
    (tmp_path / "made").write_text("precious")
    with pytest.raises(UserError, match="made is a file"), atomic_folder(tmp_path / "made"):
        raise AssertionError("the work was begun")
    assert (tmp_path / "made").read_text() == "precious"


def test_atomic_folder_for_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with atomic_folder(Path(".")) as part:
        (part / "a").write_text("a")
    verify_manifest(tmp_path / "here")


def test_manifest_lists_every_file_with_size_and_checksum(folder):
    files = read_json(folder / MANIFEST)["files"]
    assert list(files) == ["inner/card.json", f"inner/{MANIFEST}", "tokens.bin"]
    assert files["tokens.bin"] == {"bytes": 1000, "sha256": checksum(folder / "tokens.bin")}


def test_manifest_of_named_files(folder):
    write_manifest(folder, ["tokens.bin"])
    (folder / "inner" / "card.json").unlink()
    verify_manifest(folder)
    with pytest.raises(FileNotFoundError, match="absent"):
        write_manifest(folder, ["absent"])


@pytest.mark.parametrize("name", ["tokens.bin", "inner/card.json", f"inner/{MANIFEST}"])
def test_verify_manifest_detects_truncated_damaged_longer_and_missing_files(folder, name):
    original = (folder / name).read_bytes()
    flipped = bytes([original[0] ^ 1]) + original[1:]
    for data, message in [
        (original[:-1], "is truncated"),
        (flipped, "is damaged"),
        (original + b"x", "is too long"),
        (None, "is missing"),
    ]:
        (folder / name).unlink() if data is None else (folder / name).write_bytes(data)
        with pytest.raises(UserError, match=rf"{folder}/{name} {message}.*create {folder} again"):
            verify_manifest(folder)
        (folder / name).write_bytes(original)
    verify_manifest(folder)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"files": 3}', b'{"files": {"a": []}}', b'{"files": {"a": {}}}', b"\xff"]
)
def test_verify_manifest_reports_a_damaged_manifest(folder, data):
    (folder / MANIFEST).write_bytes(data)
    with pytest.raises(UserError, match=rf"{MANIFEST} is damaged"):
        verify_manifest(folder)


def test_verify_manifest_of_a_missing_folder_or_manifest(tmp_path):
    with pytest.raises(UserError, match=r"there is no folder .*absent"):
        verify_manifest(tmp_path / "absent")
    with pytest.raises(UserError, match=rf"{MANIFEST} is missing"):
        verify_manifest(tmp_path)


def test_fingerprint_ignores_key_order():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    values = [{"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": None}, {"b": 1}, [1, 2], [2, 1], "a", {}]
    assert len({fingerprint(value) for value in values}) == len(values)


def test_content_hash_of_files_and_folders(folder, tmp_path):
    hashes = artifacts.content_hash(folder), artifacts.content_hash(folder / "tokens.bin")
    assert hashes == (checksum(folder / MANIFEST), checksum(folder / "tokens.bin"))
    moved = folder.rename(tmp_path / "elsewhere")
    assert (artifacts.content_hash(moved), artifacts.content_hash(moved / "tokens.bin")) == hashes
    (moved / "tokens.bin").write_bytes(bytes(999) + b"x")
    write_manifest(moved)
    assert artifacts.content_hash(moved) != hashes[0] and artifacts.content_hash(moved / "tokens.bin") != hashes[1]


def test_content_hash_is_empty_without_manifest_or_file(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would consume the data, or block
    (folder / MANIFEST).unlink()
    assert [artifacts.content_hash(path) for path in (folder, tmp_path / "pipe", tmp_path / "absent")] == ["", "", ""]


def test_check_writable_accepts_only_empty_or_own_folders(tmp_path):
    assert writing.check_writable(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "state").mkdir()  # left by a run stopped during its first save
    assert writing.check_writable(tmp_path) == tmp_path
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="contains other files; choose another out"):
        writing.check_writable(tmp_path)
    (tmp_path / "state" / "mine").touch()
    with pytest.raises(UserError, match="contains other files"):
        writing.check_writable(tmp_path)
    assert writing.check_writable(tmp_path, "notes.txt") == tmp_path
    with pytest.raises(UserError, match="is a file"):
        writing.check_writable(tmp_path / "notes.txt")
    with pytest.raises(UserError, match="out is empty"):
        artifacts.resolve_path(" ", "out")


def test_atomic_folder_does_not_remove_a_foreign_part_folder(tmp_path):
    (tmp_path / "made.part").mkdir()
    (tmp_path / "made.part" / "thesis.txt").write_text("mine")
    (tmp_path / "made.old.part").mkdir()
    for _ in range(2):
        with writing.lock_output(tmp_path / "made"), atomic_folder(tmp_path / "made"):
            pass
    assert (tmp_path / "made.part" / "thesis.txt").read_text() == "mine" and (tmp_path / "made.old.part").is_dir()


def test_lock_output_is_exclusive(tmp_path):
    with writing.lock_output(tmp_path / "out"):
        with pytest.raises(UserError, match="another run is writing"), writing.lock_output(tmp_path / "out"):
            pass
        with writing.lock_output(tmp_path / "other"):
            pass
    with writing.lock_output(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


HOLD_LOCK = """
import sys, time
from pathlib import Path
from bertsmith.writing import lock_output
with lock_output(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path / "out"."""
    command = [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_lock_output_of_another_process_is_refused_under_every_name(tmp_path, monkeypatch, holder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for name in ("out", "./out", str(tmp_path / "out"), "link"):
        out = artifacts.resolve_path(name, "out")
        message = f"another run is writing {re.escape(str(out))}; wait for it"
        with pytest.raises(UserError, match=message), writing.lock_output(out):
            pass
        assert writing.is_locked(out)
    assert holder.poll() is None


def test_lock_output_ends_with_a_killed_process(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert (tmp_path / ".out.lock").exists() and not writing.is_locked(tmp_path / "out")
    with writing.lock_output(tmp_path / "out"):
        assert writing.is_locked(tmp_path / "out")
    assert not writing.is_locked(tmp_path / "out") and list(tmp_path.iterdir()) == []


def test_lock_output_ends_with_an_exception(tmp_path):
    with pytest.raises(KeyboardInterrupt), writing.lock_output(tmp_path / "out"):
        raise KeyboardInterrupt
    with writing.lock_output(tmp_path / "out"):
        pass


def test_lock_output_admits_one_of_many_processes(tmp_path):
    """Locks are taken and released while others try: never two at once, although the lock file is removed each time."""
    script = """
import os, sys, time
from pathlib import Path
from bertsmith.writing import lock_output
from bertsmith.errors import UserError
folder, taken, deadline = Path(sys.argv[1]), 0, time.monotonic() + 2
while time.monotonic() < deadline:
    try:
        with lock_output(folder / "out"):
            os.close(os.open(folder / "held", os.O_CREAT | os.O_EXCL))  # fails if another process holds the lock
            (folder / "held").unlink()
            taken += 1
    except UserError:
        pass
print(taken)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0] and sum(map(int, outputs)) > 10


def test_is_locked_can_be_asked_of_a_read_only_lock_file(tmp_path, holder):
    (tmp_path / ".out.lock").chmod(0o444)
    assert writing.is_locked(tmp_path / "out") and not writing.is_locked(tmp_path / "other")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664)])
def test_every_file_of_an_artifact_has_the_mode_of_the_umask(tmp_path, umask, mode):
    model = build_model(bag_of_vectors(len(VOCAB), 8), 0)
    old = os.umask(umask)
    try:
        checkpoint.save(tmp_path / "model", model, Tokenizer.from_vocab(VOCAB), {}, {})
        run = Run(tmp_path / "run", "identity")
        run.save_checkpoint(1, {"model": model.state_dict()}, {}, save_total_limit=1)
        state_files = {path.name: path.stat().st_mode & 0o777 for path in run.state.rglob("*") if path.is_file()}
        (run.folder / "metrics.jsonl").touch()
        run.publish(checkpoint.model_writer(model, Tokenizer.from_vocab(VOCAB)), {}, {}, Config())
    finally:
        os.umask(old)
    published = {path.name: path.stat().st_mode & 0o777 for name in ("model", "run") for path in (tmp_path / name).iterdir()}
    assert "model.safetensors" in published and "model.safetensors" in state_files
    assert set(published.values()) == set(state_files.values()) == {mode}
