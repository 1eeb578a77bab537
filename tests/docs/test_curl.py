"""Every documented curl line works as it is written, against the server that the page starts."""

import json
import shlex
import shutil
import subprocess

import pytest

from tests.support.doc_pages import find_commands, find_run_pages
from tests.support.servers import run_server

LINES = [shlex.join(arguments) for page in find_run_pages() for _, arguments in find_commands(page) if arguments[0] == "curl"]


@pytest.fixture(scope="module")
def client():
    with run_server(["mini-en", "mini-zh"], batch_tokens=2048) as client:
        yield client


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", LINES)
def test_curl_lines_work_as_written(client, line):
    command = shlex.split(line.replace("localhost:8000", f"127.0.0.1:{client.port}"))
    assert command != shlex.split(line), "not the address of the page's server"
    result = subprocess.run([*command, "-sS", "--fail-with-body"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and json.loads(result.stdout), result.stdout + result.stderr


def test_there_are_curl_lines_in_the_readme_and_the_guide():
    assert len(LINES) >= 6
