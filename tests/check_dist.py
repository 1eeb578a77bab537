"""`make dist-check`: `python -m tests.check_dist core|train|onnx DIST ENVIRONMENT [FOLDER]`.

Checks the files of wheel and sdist in DIST, and runs the wheel, which is installed in ENVIRONMENT without extras, with `train`
and `export`, or with `onnx` alone, from an empty folder. `train` exports a model to FOLDER, and `onnx` answers from it.
"""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from bertsmith.commands import STAGES
from bertsmith.recipes import list_shipped

ROOT = Path(__file__).parents[1]
PACKAGE_FILES = [
    "py.typed", "schema.json", "cli.py", *(f"pretrained/{name}/{file}" for name in ("mini-en", "mini-zh")
                                         for file in ("model.safetensors", "model.onnx", "lm_head.onnx")),
    *(f"pretrained/mini-en-embed/{file}" for file in ("adapter.safetensors", "model.onnx", "embedding_head.onnx")),
    "reports/templates/base.html.j2", *(f"recipe_files/{name}" for name in list_shipped()),
    *(f"serving/static/{path.name}" for path in (ROOT / "src/bertsmith/serving/static").iterdir()),
    *(f"serving/workshop/templates/{path.name}" for path in (ROOT / "src/bertsmith/serving/workshop/templates").iterdir()),
]  # fmt: skip
SDIST_FILES = [
    "pyproject.toml", "README.md", "README.zh.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "constraints.txt",
    "docs/README.md", "tests/conftest.py", "tests/golden.json", "benchmarks/__main__.py", "recipes/lora.toml",
    *(f"src/bertsmith/{name}" for name in PACKAGE_FILES),
]  # fmt: skip
NEEDS_ENGINE = "to be computed: pip install 'bertsmith[onnx]' or pip install 'bertsmith[openvino]'"
MASKED, FILLED = "Paris is the [MASK] of France.", '"paris is the capital of france."'


def check_files(dist: Path) -> None:
    """Wheel and sdist have their files, as files rather than links."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert not (missing := {f"bertsmith/{name}" for name in PACKAGE_FILES} - names), f"the wheel lacks {missing}"
    strangers = {name.partition("/")[0] for name in names} - {"bertsmith", f"{wheel.name.partition('-py3')[0]}.dist-info"}
    assert not strangers, f"the wheel also has {strangers}"
    root = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as tar:
        members = {member.name: member for member in tar.getmembers()}
    files = {name.removeprefix(f"{root}/") for name, member in members.items() if member.isreg() or member.islnk()}
    assert not (missing := set(SDIST_FILES) - files), f"the sdist lacks {missing}"


class Installation:
    """The installed wheel; commands run in `folder`."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.bin, self.folder = environment.absolute() / "bin", folder

    def run(self, program: str, *args: str, status: int = 0) -> str:
        """Output of a program of the environment; an exit status other than the expected one is an error."""
        print("$", program, *args, flush=True)
        command = [str(self.bin / program), *args]
        completed = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=3600, env={"PATH": "/usr/bin:/bin"}
        )
        assert completed.returncode == status, f"exit status {completed.returncode}\n{completed.stdout}{completed.stderr}"
        return completed.stdout + completed.stderr


def check_core(installation: Installation) -> None:
    """Help, a tokenizer, a corpus and its page without torch; a line that says how to get it from the other stages."""
    overview = installation.run("bertsmith", "--help")
    assert "lora" in overview.partition("recipes")[2]
    for stage in STAGES:
        installation.run("bertsmith", stage, "--help")
    text = "\n".join(f"The {word} of a sentence is number {number}." for number in range(200) for word in ("first", "second"))
    (installation.folder / "text.txt").write_text(text, encoding="utf-8")
    installation.run("bertsmith", "tokenizer", "texts=text.txt", "vocab_size=100", "out=tokenizer")
    installation.run("bertsmith", "prepare", "texts=text.txt", "tokenizer=tokenizer", "out=corpus")
    installation.run("bertsmith", "show", "corpus", "corpus=corpus", "out=corpus.html")
    assert "mini-en" in installation.run("python", "-c", "import bertsmith; print(bertsmith.models())")
    assert NEEDS_ENGINE in installation.run("bertsmith", "predict", "mini-en", "[MASK]", status=2)


def check_onnx(installation: Installation, exported: Path) -> None:
    """Answers without torch: of a shipped model by name, and of an exported folder."""
    installation.run("python", "-c", "import torch", status=1)
    for model in ("mini-en", str(exported)):
        assert FILLED in installation.run("bertsmith", "predict", model, MASKED)
        assert len(installation.run("bertsmith", "embed", model, "a text").split(",")) == 512
    error = installation.run("bertsmith", "predict", "mini-en", MASKED, "backend=torch", status=2)
    assert "pip install 'bertsmith[train]'" in error


def check_train(installation: Installation, exported: Path) -> None:
    """A prediction, a shipped recipe found by name, an ONNX folder, the quickstart."""
    origin = installation.run("python", "-c", "import bertsmith; print(bertsmith.__file__)")
    assert str(installation.bin.parent) in origin, f"{origin} is not the installed wheel"
    assert FILLED in installation.run("bertsmith", "predict", "mini-en", MASKED)
    installation.run("bertsmith", "export", "model=mini-en", "format=onnx", f"out={exported}")
    rows = [f"a {word} film number {number}\t{word}" for number in range(20) for word in ("good", "bad")]
    (installation.folder / "train.tsv").write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    installation.run(
        "bertsmith", "finetune", "recipes/lora.toml", "task=classify", "model=mini-en", "data.train=train.tsv",
        "data.dev=train.tsv", "train.epochs=1", "out=lora",
    )  # fmt: skip
    installation.run("python", "-m", "bertsmith.quickstart", "folder=quickstart", "minutes=0.2")
    assert (installation.folder / "quickstart" / "report.html").exists()


def main(part: str, dist: str, environment: str, exported: str = "") -> None:
    check_files(Path(dist))
    with tempfile.TemporaryDirectory() as folder:
        installation = Installation(Path(environment), Path(folder))
        if part == "core":
            check_core(installation)
        else:
            {"train": check_train, "onnx": check_onnx}[part](installation, Path(exported).absolute())


if __name__ == "__main__":
    main(*sys.argv[1:])
