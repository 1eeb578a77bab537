"""The lists of files at the head of docs/tour.md are what a run calls: none twice, none that it does not need."""

import re
import sys
from pathlib import Path

import pytest

import bertsmith
from bertsmith import cli
from bertsmith.commands import load_stage

PACKAGE = Path(bertsmith.__file__).parent
TOUR = PACKAGE.parent.parent / "docs" / "tour.md"
SMALL = [
    "model.num_hidden_layers=1", "model.hidden_size=32", "model.mixer.num_attention_heads=2",
    "model.feedforward.intermediate_size=64", "objective=mlm", "max_length=32", "train.batch_tokens=256", "train.steps=1",
    "train.device=cpu", "--quiet",
]  # fmt: skip


def read_list(start):
    """The files of the paragraph that starts like this, up to its first full stop after a name."""
    paragraph = next(text for text in TOUR.read_text(encoding="utf-8").split("\n\n") if text.startswith(start))
    return re.findall(r"`([a-z0-9_/]+)`", re.split(r"`\.", paragraph.split(": ", 1)[1])[0] + "`")


def run_traced(*words):
    """The files of which the command calls a function, without what happens when they are imported."""
    load_stage(words[0])
    called = set()

    def on_event(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_flags & 1 and not code.co_name.startswith("<"):  # not the body of a module or class
            called.add(code.co_filename)

    sys.setprofile(on_event)
    try:
        assert cli.main(list(words)) in (0, None)
    finally:
        sys.setprofile(None)
    return {Path(name).relative_to(PACKAGE) for name in called if name.startswith(str(PACKAGE))}


def check_list(names, called, imported_only=()):
    assert len(names) == len(set(names)) > 10
    for name in names:
        path = PACKAGE / name
        assert path.is_dir() or path.with_suffix(".py").is_file(), name
        files = {file for file in called if str(file.with_suffix("")) == name or file.is_relative_to(name)}
        assert files or name in imported_only, f"{name} is listed in docs/tour.md and not called"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("tour")
    rows = "".join(f"the king {i}\t{'ab'[i % 2]}\n" for i in range(20))
    (folder / "train.tsv").write_text("text\tlabel\n" + rows, encoding="utf-8")
    return folder


def test_tour_lists_the_files_of_pretraining_finetuning_and_prediction(folder, corpus, capsys):
    names = read_list("One pre-training step")
    called = run_traced("pretrain", f"corpus={corpus}", f"out={folder / 'bert'}", *SMALL)
    assert len(names) <= 18
    check_list(names, called, ["commands/pretrain"])  # names the function of pretraining/run
    called = run_traced("finetune", "task=classify", f"model={folder / 'bert'}", f"data.train={folder / 'train.tsv'}",
                        f"out={folder / 'mood'}", "train.epochs=1", "train.device=cpu", "--quiet")  # fmt: skip
    check_list(read_list("One fine-tuning"), called, ["commands/finetune"])
    called = run_traced("predict", str(folder / "mood"), "the king", "--quiet")
    check_list(read_list("One prediction"), called)
