"""Tokenizers, corpora and batches equal, byte for byte, those whose hashes are committed in golden.json."""

import json

import pytest

from tests import golden


@pytest.mark.slow
def test_golden_files_and_batches_match_committed_hashes(tmp_path):
    failed = golden.record(tmp_path, golden.COMMITTED)
    assert not failed
    committed = json.loads(golden.COMMITTED_FILE.read_text(encoding="utf-8"))
    for section in golden.COMMITTED:
        hashes = golden.summarize(json.loads((tmp_path / f"{section}.json").read_text(encoding="utf-8")))
        assert hashes.keys() == committed[section].keys()
        differing = [name for name in hashes if hashes[name] != committed[section][name]]
        assert not differing, f"{section}: {', '.join(differing)}"
