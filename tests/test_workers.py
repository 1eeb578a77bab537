"""Worker processes of a script without a guard do the work, and not the script."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import prose


def test_a_plain_script_may_use_workers(tmp_path, vocabulary):
    (tmp_path / "text.txt").write_text(prose(30), encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(
        "import bertsmith\n"
        f"print('once', bertsmith.prepare(texts={str(tmp_path / 'text.txt')!r}, tokenizer={str(vocabulary)!r}, "
        f"out={str(tmp_path / 'corpus')!r}, workers=2, quiet=True)['documents'])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120)
    assert (done.returncode, done.stdout) == (0, "once 30\n"), done.stderr
