"""Files and folders appear whole or not at all, and what happened to them since is noticed."""

import os
from pathlib import Path

import pytest

from bertsmith import artifacts
from bertsmith.artifacts import (
    MANIFEST,
    atomic_folder,
    checksum,
    fingerprint,
    read_json,
    verify_manifest,
    write_atomic,
    write_json,
    write_manifest,
)
from bertsmith.errors import UserError


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sealed folder with a file in a folder within."""
    with atomic_folder(tmp_path / "made") as part:
        (part / "tokens.bin").write_bytes(bytes(1000))
        (part / "inner").mkdir()
        (part / "inner" / "card.json").write_text("{}")
        (part / "inner" / MANIFEST).write_text("the manifest of a folder that was put in this one")
    return tmp_path / "made"


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    write_atomic(tmp_path / "a.json", b"old")
    write_atomic(tmp_path / "a.json", b"new")
    assert listing(tmp_path) == ["a.json"] and (tmp_path / "a.json").read_bytes() == b"new"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, failing):
    write_atomic(tmp_path / "a.json", b"old")
    monkeypatch.setattr(os if failing == "fsync" else Path, failing, no_space)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "a.json", b"new, and longer than before")
    assert listing(tmp_path) == ["a.json"] and (tmp_path / "a.json").read_bytes() == b"old"


def test_the_old_file_is_whole_while_the_new_one_is_being_written(tmp_path, monkeypatch):
    seen = []
    write_atomic(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", lambda _: seen.append((tmp_path / "a").read_bytes()))
    write_atomic(tmp_path / "a", b"new")
    assert seen == [b"old"]


def test_json_comes_back_as_it_was(tmp_path):
    value = {"words": ["猫", "naïve"], "share": 0.1, "none": None, "deep": {"count": 2**60}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "猫" in (tmp_path / "a.json").read_text(encoding="utf-8")  # a person can read it


@pytest.mark.parametrize(
    ("data", "told"), [(None, "a.json is missing"), (b'{"a": 1', "a.json is damaged"), (b"\xff{}", "a.json is damaged")]
)
def test_json_that_cannot_be_read_names_the_file(tmp_path, data, told):
    if data is not None:
        (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(UserError, match=told):
        read_json(tmp_path / "a.json")


def test_a_new_folder_is_not_there_before_it_is_whole(tmp_path):
    with atomic_folder(tmp_path / "deep" / "made") as part:
        (part / "a").write_text("a")
        assert not (tmp_path / "deep" / "made").exists()
    assert listing(tmp_path / "deep") == ["made", "made/a", f"made/{MANIFEST}"]
    verify_manifest(tmp_path / "deep" / "made")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_nothing(tmp_path, error):
    with pytest.raises(error), atomic_folder(tmp_path / "made") as part:
        (part / "a").write_text("a")
        raise error
    assert listing(tmp_path) == []


def test_a_folder_that_cannot_be_sealed_is_not_made(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"), atomic_folder(tmp_path / "made") as part:
        (part / "a").write_text("a")
    assert listing(tmp_path) == []


def test_an_existing_folder_is_replaced_at_the_end_only(folder):
    with atomic_folder(folder) as part:
        (part / "new").write_text("new")
        verify_manifest(folder)
        assert (folder / "tokens.bin").exists()
    assert listing(folder.parent) == ["made", f"made/{MANIFEST}", "made/new"]


def test_an_exception_leaves_the_existing_folder_as_it_was(folder):
    before = listing(folder.parent)
    with pytest.raises(RuntimeError), atomic_folder(folder) as part:
        (part / "tokens.bin").write_text("half")
        raise RuntimeError
    assert listing(folder.parent) == before
    verify_manifest(folder)


def test_what_a_dead_run_left_is_not_taken_over(tmp_path):
    (tmp_path / "made.part").mkdir()
    (tmp_path / "made.part" / "stale").write_text("of a run that died")
    (tmp_path / "made.part" / artifacts.IN_PROGRESS).touch()
    with atomic_folder(tmp_path / "made") as part:
        (part / "a").write_text("a")
    assert listing(tmp_path) == ["made", "made/a", f"made/{MANIFEST}"]


def test_a_file_in_the_place_of_a_folder_is_refused_before_the_work(tmp_path):
    (tmp_path / "made").write_text("precious")
    with pytest.raises(UserError, match="made is a file"), atomic_folder(tmp_path / "made"):
        raise AssertionError("the work was begun")
    assert (tmp_path / "made").read_text() == "precious"


def test_the_current_folder_has_a_name_too(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with atomic_folder(Path(".")) as part:
        (part / "a").write_text("a")
    verify_manifest(tmp_path / "here")


def test_the_manifest_names_every_file_below_with_size_and_checksum(folder):
    files = read_json(folder / MANIFEST)["files"]
    assert list(files) == ["inner/card.json", f"inner/{MANIFEST}", "tokens.bin"]
    assert files["tokens.bin"] == {"bytes": 1000, "sha256": checksum(folder / "tokens.bin")}


def test_only_named_files_are_sealed_if_some_are_named(folder):
    write_manifest(folder, ["tokens.bin"])
    (folder / "inner" / "card.json").unlink()
    verify_manifest(folder)
    with pytest.raises(FileNotFoundError, match="absent"):
        write_manifest(folder, ["absent"])


@pytest.mark.parametrize("name", ["tokens.bin", "inner/card.json", f"inner/{MANIFEST}"])
def test_truncation_a_flipped_bit_growth_and_loss_are_found_and_the_file_is_named(folder, name):
    whole = (folder / name).read_bytes()
    flipped = bytes([whole[0] ^ 1]) + whole[1:]
    for data, told in [
        (whole[:-1], "is truncated"),
        (flipped, "is damaged"),
        (whole + b"x", "is longer"),
        (None, "is missing"),
    ]:
        (folder / name).unlink() if data is None else (folder / name).write_bytes(data)
        with pytest.raises(UserError, match=rf"{folder}/{name} {told}.*make {folder} again"):
            verify_manifest(folder)
        (folder / name).write_bytes(whole)
    verify_manifest(folder)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"files": 3}', b'{"files": {"a": []}}', b'{"files": {"a": {}}}', b"\xff"]
)
def test_a_damaged_manifest_is_named(folder, data):
    (folder / MANIFEST).write_bytes(data)
    with pytest.raises(UserError, match=rf"{MANIFEST} is damaged"):
        verify_manifest(folder)


def test_a_folder_that_is_not_there_or_not_sealed_is_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no folder .*absent"):
        verify_manifest(tmp_path / "absent")
    with pytest.raises(UserError, match=rf"{MANIFEST} is missing"):
        verify_manifest(tmp_path)


def test_equal_values_have_equal_fingerprints_whatever_the_order_of_their_keys():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    values = [{"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": None}, {"b": 1}, [1, 2], [2, 1], "a", {}]
    assert len({fingerprint(value) for value in values}) == len(values)


def test_a_file_is_known_by_what_it_holds_and_a_sealed_folder_by_its_manifest(folder, tmp_path):
    before = artifacts.content_hash(folder), artifacts.content_hash(folder / "tokens.bin")
    assert before == (checksum(folder / MANIFEST), checksum(folder / "tokens.bin"))
    moved = folder.rename(tmp_path / "elsewhere")
    assert (artifacts.content_hash(moved), artifacts.content_hash(moved / "tokens.bin")) == before
    (moved / "tokens.bin").write_bytes(bytes(999) + b"x")
    write_manifest(moved)
    assert artifacts.content_hash(moved) != before[0] and artifacts.content_hash(moved / "tokens.bin") != before[1]


def test_what_holds_nothing_that_is_settled_has_no_content(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would take it from whoever is to read it, or wait for ever
    (folder / MANIFEST).unlink()
    assert [artifacts.content_hash(path) for path in (folder, tmp_path / "pipe", tmp_path / "absent")] == ["", "", ""]


def test_only_a_vacant_place_is_taken(tmp_path):
    assert artifacts.check_writable(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "state").mkdir()  # what a run leaves that was stopped while it saved for the first time
    assert artifacts.check_writable(tmp_path) == tmp_path
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other things; choose another out"):
        artifacts.check_writable(tmp_path)
    (tmp_path / "state" / "mine").touch()
    with pytest.raises(UserError, match="holds other things"):
        artifacts.check_writable(tmp_path)
    assert artifacts.check_writable(tmp_path, "notes.txt") == tmp_path
    with pytest.raises(UserError, match="is a file"):
        artifacts.check_writable(tmp_path / "notes.txt")
    with pytest.raises(UserError, match="out is empty"):
        artifacts.resolve_path(" ", "out")


def test_somebodys_folder_of_the_working_name_is_not_removed(tmp_path):
    (tmp_path / "made.part").mkdir()
    (tmp_path / "made.part" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match=r"made\.part exists and holds other things"), atomic_folder(tmp_path / "made"):
        pass
    assert (tmp_path / "made.part" / "thesis.txt").read_text() == "mine"


def test_a_folder_is_claimed_by_one_at_a_time(tmp_path):
    with artifacts.lock_output(tmp_path / "out"):
        with pytest.raises(UserError, match="another run is writing"), artifacts.lock_output(tmp_path / "out"):
            pass
        with artifacts.lock_output(tmp_path / "other"):
            pass
    with artifacts.lock_output(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []
