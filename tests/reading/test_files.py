"""Only regular files are read, up to a limit, and never waited for."""

import os
import socket
import threading

import pytest

from bertsmith.errors import UserError
from bertsmith.reading import open_regular, read_bytes, read_text, require_regular


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_regular_files_and_links_to_them_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfabc")
    (tmp_path / "link").symlink_to("file")
    assert read_bytes(tmp_path / "link", 6) == b"\xef\xbb\xbfabc" and read_text(tmp_path / "file", 6) == "abc"


def test_pipe_device_socket_and_folder_are_refused_at_once(tmp_path, pipe):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        cases = {pipe: "a named pipe", tmp_path: "a folder", tmp_path / "socket": "a socket"}
        for path, kind in cases.items() | {(type(tmp_path)("/dev/zero"), "a device")}:
            for read in (open_regular, require_regular, lambda path: read_bytes(path, 9), lambda path: read_text(path, 9)):
                with pytest.raises(UserError, match=f"is {kind}, but must be a regular file"):
                    read(path)


def test_pipe_that_replaces_the_file_between_check_and_open_is_refused(tmp_path, pipe, monkeypatch):
    monkeypatch.setattr("bertsmith.reading.files.require_regular", lambda path: path)
    done = threading.Event()

    def read():
        with pytest.raises(UserError, match="a named pipe"):
            open_regular(pipe)
        done.set()

    threading.Thread(target=read, daemon=True).start()
    assert done.wait(10)


def test_file_above_the_limit_is_not_read(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(UserError, match="has 1,099,511,627,776 bytes, more than the 1,000 that such a file may have"):
        read_bytes(tmp_path / "file", 1000)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"a\xff")
    with pytest.raises(UserError, match=r"is damaged.*: 'utf-8' codec can't decode byte 0xff in position 1"):
        read_text(tmp_path / "file", 9)
