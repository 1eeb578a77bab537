"""The core installation, without torch: what it can do, and what the rest answers. Torch is blocked in a new interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.commands import STAGES
from tests.support.texts import make_english_text

BLOCK_TORCH = """
import sys

class BlockTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, BlockTorch())
"""
NEEDS_TORCH = "needs PyTorch: pip install 'bertsmith[train]'"


def run_python(code: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK_TORCH + code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def run_cli(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return run_python("from bertsmith.cli import main; sys.exit(main())", *args)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A corpus made from raw text without torch."""
    folder = tmp_path_factory.mktemp("without_torch")
    (folder / "text.txt").write_text(make_english_text(40), encoding="utf-8")
    texts, tokenizer = f"texts={folder / 'text.txt'}", folder / "tokenizer"
    for command in (
        ["tokenizer", texts, "vocab_size=200", f"out={tokenizer}"],
        ["prepare", texts, f"tokenizer={tokenizer}", "workers=2", f"out={folder / 'corpus'}"],
    ):
        completed = run_cli(*command)
        assert completed.returncode == 0, completed.stderr
    return folder / "corpus"


def test_corpus_page_without_torch(corpus, tmp_path):
    completed = run_cli("show", "corpus", f"corpus={corpus}", f"out={tmp_path / 'corpus.html'}", "--json")
    assert completed.returncode == 0, completed.stderr
    assert "Corpus statistics" in (tmp_path / "corpus.html").read_text(encoding="utf-8")


def test_corpus_functions_without_torch(corpus, tmp_path):
    completed = run_python(
        "import bertsmith\n"
        "assert 'mini-en' in bertsmith.models()\n"
        "bertsmith.prepare(texts=sys.argv[1], tokenizer=sys.argv[2], out=sys.argv[3], quiet=True)\n"
        "bertsmith.show(kind='corpus', corpus=sys.argv[3], out=sys.argv[3] + '.html')\n"
        "assert 'torch' not in sys.modules",
        corpus.with_name("text.txt"), corpus, tmp_path / "corpus",
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr


def test_help_and_usage_errors_without_torch():
    pages = "; ".join(f"assert main([{stage!r}, '--help']) == 0" for stage in STAGES)
    completed = run_python(f"from bertsmith.cli import main; assert main(['--help']) == 0; {pages}")
    assert completed.returncode == 0, completed.stderr
    completed = run_cli("pretrain", "corpus=c", "out=o", "train.stps=3")
    assert completed.returncode == 2 and "did you mean 'train.steps'" in completed.stderr


@pytest.mark.parametrize(
    "command",
    [
        "pretrain corpus=c out=o",
        "plan model=bert-mini",
        "import source=s out=o",
        "convert-long model=mini-en out=o",
        "export model=mini-en out=o",
        "finetune task=classify model=mini-en data.train=t.tsv out=o",
        "doctor o",
        "show masks corpus=c out=o.html",
        "show run corpus=c model=mini-en out=o.html",
    ],
)
def test_stages_without_torch_say_how_to_install_it(command):
    completed = run_cli(*command.split())
    assert (completed.returncode, completed.stderr) == (2, f"error: this stage {NEEDS_TORCH}\n")


def test_suite_and_race_without_torch_say_how_to_install_it(tmp_path):
    for stage, recipe in {"suite": "suite.toml", "race": "race.toml"}.items():
        completed = run_cli(stage, recipe)
        assert (completed.returncode, completed.stderr) == (2, f"error: this stage {NEEDS_TORCH}\n")


def test_functions_without_torch_say_how_to_install_it():
    for call, caller in {
        "pretrain(corpus='c', out='o')": "this stage",
    }.items():
        code = (
            "import bertsmith\nfrom bertsmith.errors import UserError\n"
            f"try:\n    bertsmith.{call}\nexcept UserError as error:\n    print(error)"
        )
        completed = run_python(code)
        assert completed.stdout == f"{caller} {NEEDS_TORCH}\n", completed.stderr


def test_prediction_without_any_engine_says_how_to_install_one(tmp_path):
    hide_engines = BLOCK_TORCH.replace('== "torch"', 'in ("torch", "onnxruntime", "openvino")')
    for call in ("predict(model='mini-en', text='[MASK]')", "embed(model='mini-en', text='a')", "load('mini-en')"):
        code = (
            f"{hide_engines}\nimport bertsmith\nfrom bertsmith.errors import UserError\n"
            f"try:\n    bertsmith.{call}\nexcept UserError as error:\n    print(error)"
        )
        completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert "needs one of onnxruntime, openvino, torch to be computed: pip install 'bertsmith[onnx]'" in completed.stdout


def test_backend_torch_without_torch_says_how_to_install_it():
    completed = run_cli("predict", "mini-en", "[MASK]", "backend=torch")
    assert completed.returncode == 2
    assert completed.stderr == "error: backend=torch needs the package torch: pip install 'bertsmith[train]'\n"


def test_shipped_models_answer_without_torch():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")
    completed = run_cli("predict", "mini-en", "Paris is the [MASK] of France.", "backend=onnx")
    assert completed.returncode == 0 and '"paris is the capital of france."' in completed.stdout, completed.stderr
    completed = run_cli("embed", "mini-en", "a text", "backend=onnx")
    assert completed.returncode == 0 and completed.stdout.startswith("["), completed.stderr


def test_other_missing_modules_are_not_hidden():
    from bertsmith.errors import explain_missing_torch

    with pytest.raises(ModuleNotFoundError, match="torchvision_"), explain_missing_torch():
        import torchvision_  # noqa: F401


def test_quickstart_without_torch_says_how_to_install_it(tmp_path):
    completed = run_python(
        "from bertsmith.quickstart.run import main; sys.exit(main())", f"folder={tmp_path / 'out'}", "minutes=0.1"
    )
    assert (completed.returncode, completed.stderr.splitlines()[-1]) == (2, f"error: the quickstart {NEEDS_TORCH}")


def test_what_needs_torch_of_a_shipped_model_says_how_to_install_it():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")
    code = (
        "import bertsmith\nfrom bertsmith.errors import UserError\nmodel = bertsmith.load('mini-en', backend='onnx')\n"
        "for call in (lambda: model.attentions('a'), lambda: model.model, lambda: model.to('cpu'), lambda: model.save('x')):\n"
        "    try:\n        call()\n    except UserError as error:\n        print(error)"
    )
    completed = run_python(code)
    needed = "needs torch, and it is not installed: pip install 'bertsmith[train]'"
    assert completed.stdout.splitlines() == [f"attentions {needed}", *[f"model {needed}"] * 3], completed.stderr
