"""The guarded writer: what `out` may name, links, users' files beside an output, leftovers of dead runs, full disks."""

import os
import resource
from pathlib import Path

import pytest

from bertsmith import writing
from bertsmith.artifacts import atomic_folder
from bertsmith.errors import UserError
from tests.support.cli import run_cli, run_cli_error


@pytest.fixture
def sealed(tmp_path):
    """A folder whose manifest lists `tokens.bin`."""
    with atomic_folder(tmp_path / "sealed") as part:
        (part / "tokens.bin").write_bytes(b"precious")
    return tmp_path / "sealed"


@pytest.mark.parametrize(
    ("out", "message"),
    [("", "empty"), ("/", "root folder"), ("/..", "root folder"), ("loop", "[Ll]oop"), ("file/x", "not a folder"),
     ("n" * 201, "201 bytes"), ("a\0b", "not a file name"), ("a\udcffb", "not a file name"),
     ("~nobody-here/x", "home directory")],
)  # fmt: skip
def test_impossible_outputs_are_refused_in_one_line(tmp_path, monkeypatch, out, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=message):
        writing.resolve_output(out)


def test_link_named_by_out_is_replaced_at_its_target(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    writing.write_atomic(writing.resolve_output(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_bytes() == b"new"


def test_file_of_a_sealed_folder_is_never_overwritten(sealed):
    for name in ("tokens.bin", "manifest.json"):
        with pytest.raises(UserError, match="lists it"):
            writing.check_output_file(sealed / name, overwrite=True)
    assert writing.check_output_file(sealed / "new.html") == sealed / "new.html"
    (sealed / "notes.txt").touch()
    assert writing.check_output_file(sealed / "notes.txt", overwrite=True)
    (sealed / "manifest.json").write_text("damaged")
    with pytest.raises(UserError, match="lists it"):
        writing.check_output_file(sealed / "notes.txt", overwrite=True)


def test_inputs_are_never_overwritten(tmp_path):
    data, folder = tmp_path / "rows.tsv", tmp_path / "model"
    data.write_text("rows")
    folder.mkdir()
    (folder / "weights").touch()
    os.link(data, tmp_path / "same")
    for out, given in ((data, data), (tmp_path / "same", data), (folder / "weights", folder)):
        with pytest.raises(UserError, match="input file"):
            writing.check_output_file(out, given, overwrite=True)
    assert writing.check_output_file(data, folder, overwrite=True) == data


def test_other_files_need_overwrite_and_devices_are_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="overwrite=true"):
        writing.check_output_file(tmp_path / "thesis.txt")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(UserError, match="not a regular file"):
            writing.check_output_file(path, overwrite=True)


def test_write_atomic_replaces_a_link_and_follows_none(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("page.html", "page.html.part"):
        (tmp_path / name).symlink_to(victim)
    writing.write_atomic(tmp_path / "page.html", b"page")
    assert victim.read_text() == "precious" and (tmp_path / "page.html").read_bytes() == b"page"
    assert (tmp_path / "page.html.part").is_symlink()
    with pytest.raises(UserError, match="symbolic link"):
        writing.open_own(tmp_path / "page.html.part", "ab")


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "pipe", "folder"])
def test_lock_never_touches_what_is_not_a_lock(tmp_path, kind):
    victim, lock = tmp_path / "victim", tmp_path / ".o.lock"
    victim.write_text("precious")
    if kind == "link":
        lock.symlink_to(victim)
    elif kind == "dangling":
        lock.symlink_to(tmp_path / "absent")
    elif kind == "file":
        lock.write_text("precious")
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with pytest.raises(UserError, match="not a lock"), writing.lock_output(tmp_path / "o"):
        pass
    assert victim.read_text() == "precious" and os.path.lexists(lock) and not (tmp_path / "absent").exists()


@pytest.mark.parametrize("name", ["state", "state/step-2", "seeds", "seeds/seed-0", "runs/m"])
def test_no_run_works_in_a_folder_that_is_a_link(tmp_path, name):
    """A finished run emptied `state/`, wherever it led."""
    checkpoint = tmp_path / "victim" / "step-2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "thesis.txt").write_text("precious")
    link = tmp_path / "o" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=f"{name} is a symbolic link"), writing.lock_output(tmp_path / "o"):
        pass
    assert (checkpoint / "thesis.txt").read_text() == "precious" and link.is_symlink()


def test_lock_removes_leftovers_of_its_output_only(tmp_path):
    made, other = tmp_path / "made", tmp_path / "made.npy"
    leftovers = [writing.temp_path(made), writing.temp_path(tmp_path / "made.part.json")]
    kept = [writing.temp_path(other), tmp_path / "made.old.part", tmp_path / ".made.bertsmith-thesis.part"]
    for path in (*leftovers, *kept):
        path.write_text("x")
    writing.make_temp_folder(made)
    (made / "state").mkdir(parents=True)
    writing.temp_path(made / "state" / "step-2").mkdir()
    with writing.lock_output(made):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["made", *(path.name for path in kept)])
    assert not any((made / "state").iterdir())


def test_folder_is_put_back_after_a_death_in_its_replacement(sealed):
    sealed.replace(writing.temp_path(sealed, is_old=True))
    with writing.lock_output(sealed):
        assert (sealed / "tokens.bin").read_bytes() == b"precious"


def test_lock_leaves_no_parents_behind(tmp_path):
    with pytest.raises(UserError, match="no"), writing.lock_output(tmp_path / "deep" / "er" / "out"):
        raise UserError("no")
    assert not (tmp_path / "deep").exists()


def test_allocated_file_has_blocks_and_a_full_disk_is_an_error(tmp_path):
    writing.allocate_file(tmp_path / "a", 1 << 16, b"head")
    assert (tmp_path / "a").read_bytes() == b"head" + bytes(1 << 16)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 16
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as error:
            writing.allocate_file(tmp_path / "b", 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(tmp_path / "b")


def test_show_replaces_only_its_own_pages(tmp_path, make_corpus):
    corpus, page = make_corpus(), tmp_path / "page.html"
    run_cli("show", "corpus", f"corpus={corpus}", f"out={page}", "--quiet")
    run_cli("show", "corpus", f"corpus={corpus}", f"out={page}", "--quiet")
    page.write_text("<html>mine</html>")
    assert "overwrite=true" in run_cli_error("show", "corpus", f"corpus={corpus}", f"out={page}")
    assert "input" in run_cli_error("show", "corpus", f"corpus={corpus}", f"out={corpus}/card.json", "overwrite=true")
    sealed_file = f"out={tmp_path}/t/tokenizer.json"
    assert "lists it" in run_cli_error("show", "corpus", f"corpus={corpus}", sealed_file, "overwrite=true")
    run_cli("show", "corpus", f"corpus={corpus}", f"out={page}", "overwrite=true", "--quiet")


@pytest.fixture
def make_corpus(tmp_path):
    def make():
        (tmp_path / "a.txt").write_text("one text\nand another\n\nof two documents\nwith lines\n" * 5)
        run_cli("tokenizer", f"texts={tmp_path}/a.txt", "vocab_size=60", f"out={tmp_path}/t", "--quiet")
        run_cli("prepare", f"texts={tmp_path}/a.txt", f"tokenizer={tmp_path}/t", f"out={tmp_path}/c", "workers=1", "--quiet")
        return tmp_path / "c"

    return make


def test_refused_input_leaves_nothing(tmp_path, make_corpus):
    make_corpus()
    (tmp_path / "short.txt").write_text("alone\n")
    before = sorted(tmp_path.iterdir())
    run_cli_error("prepare", f"texts={tmp_path}/short.txt", f"tokenizer={tmp_path}/t", f"out={tmp_path}/x", "workers=1")
    assert sorted(tmp_path.iterdir()) == before


def test_prepare_leaves_a_users_part_folder(tmp_path, make_corpus):
    corpus = make_corpus()
    (tmp_path / "x.part").mkdir()
    (tmp_path / "x.part" / "journal.json").write_text("{}")
    (tmp_path / "x.part" / "diary.txt").write_text("mine")
    corpus.rename(tmp_path / "y.part")
    settings = (f"texts={tmp_path}/a.txt", f"tokenizer={tmp_path}/t", "drop=lines", "--quiet")
    for name in ("x", "y"):
        run_cli_error("prepare", *settings, f"out={tmp_path}/{name}")
    assert (tmp_path / "x.part" / "diary.txt").exists() and (tmp_path / "y.part" / "tokens.bin").exists()
