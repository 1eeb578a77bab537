"""Tensors on disk: errors of the system name the file and a way out."""

import errno
import os
import resource
import signal

import pytest
import torch
from safetensors import SafetensorError

from bertsmith import tensors
from bertsmith.errors import UserError


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), SafetensorError("I/O error: (os error 24)")])
def test_a_file_that_cannot_be_written_is_named_with_a_way_out(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(tensors, "save_file", fail)
    with pytest.raises(UserError, match=r"a\.safetensors cannot be written: Too many open files; raise the limit"):
        tensors.save_tensors({"x": torch.zeros(3)}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_limit_on_the_size_of_files_is_an_error_that_leaves_nothing(tmp_path):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            tensors.save_tensors({"x": torch.zeros(300)}, tmp_path / "a.safetensors")
        except UserError as error:
            os._exit("cannot be written: File too large; the file system or `ulimit -f`" in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1 and not list(tmp_path.iterdir())


def test_a_damaged_file_is_named_with_a_way_out(tmp_path, monkeypatch):
    tensors.save_tensors({"x": torch.zeros(3)}, tmp_path / "a.safetensors")
    monkeypatch.setattr(tensors, "load_file", lambda path: (_ for _ in ()).throw(KeyError("F4")))
    with pytest.raises(UserError, match=r"a\.safetensors cannot be read: 'F4'; copy or create it again"):
        tensors.load_tensors(tmp_path / "a.safetensors")
