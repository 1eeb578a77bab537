"""The artifacts that are attacked, one small folder of each kind, made by the stages themselves."""

import shutil
from dataclasses import dataclass, fields
from pathlib import Path

from bertsmith.writing import lock_output
from tests.support.cli import SMALL, kill_cli_when_exists, run_cli
from tests.support.texts import make_english_text


@dataclass(frozen=True)
class Artifacts:
    """Folders and files by kind; never changed: a case that damages one copies it first."""

    root: Path
    text: Path
    tokenizer: Path
    corpus: Path
    model: Path  # pre-trained
    unfinished: Path  # a pre-training run that was interrupted
    classifier: Path
    tagger: Path
    vectors: Path  # word2vec
    huggingface: Path  # exported
    rows: Path  # classify, .tsv
    sentences: Path  # tag, CoNLL

    @property
    def folders(self) -> dict[str, Path]:
        names = ("tokenizer", "corpus", "model", "unfinished", "classifier", "tagger", "vectors", "huggingface")
        return {name: getattr(self, name) for name in names}

    def copy(self, root: Path) -> "Artifacts":
        """The same in another folder."""
        shutil.copytree(self.root, root)
        return Artifacts(**{field.name: root / getattr(self, field.name).relative_to(self.root) for field in fields(self)})


def build_artifacts(root: Path) -> Artifacts:
    """Train and write everything in about ten seconds."""
    root.mkdir(parents=True)
    paths = {name: root / name for name in ("tokenizer", "corpus", "model", "unfinished", "classifier", "tagger", "vectors")}
    text, rows, sentences = root / "text.txt", root / "rows.tsv", root / "sentences.txt"
    text.write_text(make_english_text(60), encoding="utf-8")
    rows.write_text("text\tlabel\n" + "".join(f"a {'good' if i % 2 else 'bad'} film {i}\t{i % 2}\n" for i in range(40)))
    sentences.write_text("".join("Ann B-PER\nlives O\nin O\nRome B-LOC\n\n" for _ in range(20)), encoding="utf-8")
    run_cli("tokenizer", f"texts={text}", "vocab_size=300", f"out={paths['tokenizer']}", "--quiet")
    run_cli("prepare", f"texts={text}", f"tokenizer={paths['tokenizer']}", f"out={paths['corpus']}", "--quiet")
    train = ("train.device=cpu", "--quiet")
    run_cli("pretrain", f"corpus={paths['corpus']}", *SMALL, "train.steps=4", f"out={paths['model']}", *train)
    steps = ("max_length=32", "train.steps=4", "train.batch_tokens=512")
    for name, task, data in (("classifier", "classify", rows), ("tagger", "tag", sentences)):
        run_cli("finetune", f"task={task}", f"model={paths['model']}", f"data.train={data}", f"data.dev={data}", *steps,
                f"out={paths[name]}", *train)  # fmt: skip
    run_cli("pretrain", f"corpus={paths['corpus']}", "objective=skip-gram", "objective.vector_size=16", "train.epochs=1",
            f"out={paths['vectors']}", "--quiet")  # fmt: skip
    run_cli("export", f"model={paths['classifier']}", "format=hf", f"out={root / 'huggingface'}", "--quiet")
    _interrupt_pretraining(root, paths["corpus"])
    return Artifacts(root, text, huggingface=root / "huggingface", rows=rows, sentences=sentences, **paths)


def _interrupt_pretraining(root: Path, corpus: Path) -> Path:
    """A pre-training run in a process of its own, killed after its first checkpoint."""
    folder = root / "unfinished"
    kill_cli_when_exists("pretrain", f"corpus={corpus}", *SMALL, "train.steps=100000", "train.save_every=2", "train.device=cpu",
                         f"out={folder}", "--quiet", until=folder / "state" / "step-4")  # fmt: skip
    with lock_output(folder):  # removes what the next run would remove, whatever it is
        pass
    return folder
