"""Help pages: they fit a screen, their examples work, and `--help all` lists every key."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertsmith import cli
from bertsmith.commands import STAGES
from bertsmith.config import iter_keys
from bertsmith.help import STAGE_HELP
from bertsmith.schema import load_stage_schema


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def help_page(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(argv) == 0
    return capsys.readouterr().out


def max_columns(page: str) -> int:
    return max(map(len, page.splitlines()))


def unwrap(text: str) -> str:
    return " ".join(text.split())


def test_help_is_written_for_every_stage():
    assert list(STAGE_HELP) == list(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_help_of_a_stage_fits_a_screen(capsys, stage):
    page = help_page(capsys, stage, "--help")
    assert max_columns(page) <= 100 and len(page.splitlines()) <= 40
    for key in STAGE_HELP[stage].keys:
        assert re.search(rf"^  {re.escape(key)} ", page, re.MULTILINE), key


@pytest.mark.parametrize("stage", STAGES)
def test_help_all_lists_every_key(capsys, stage):
    page = help_page(capsys, stage, "--help", "all")
    assert max_columns(page) <= 100
    flat = unwrap(page)
    for key in iter_keys(load_stage_schema(stage)):
        name = re.sub(r"\[.*?\]", "", key.name)
        default, long_default = (key.default, "") if len(key.default) <= 12 else ("", f", default {key.default}")
        assert unwrap(f" {name} {default} {key.description} (") in flat
        if key.type_name.count("|") < 12:
            assert unwrap(f"{key.description} ({key.type_name}{long_default})") in flat


@pytest.mark.parametrize("example", [example for content in STAGE_HELP.values() for example in content.examples])
def test_help_examples_can_be_run(monkeypatch, example):
    program, stage, *args = shlex.split(example)
    recipe = load_stage_schema(stage)
    monkeypatch.chdir(Path(__file__).parents[1])  # recipes/
    monkeypatch.setattr(cli, "load_stage", lambda name: SimpleNamespace(Recipe=recipe, run=lambda recipe, quiet: {}))
    assert program == "bertsmith" and cli.main([stage, *args]) == 0


def test_help_of_a_kind_lists_its_keys_only(capsys):
    page = help_page(capsys, "finetune", "task=tag", "--help")
    assert (
        "\ntask=tag:\n" in page
        and "  task.crf " in page
        and "task.multi_label" not in page
        and "train.learning_rate" not in page
    )
    assert help_page(capsys, "finetune", "task.kind=tag", "--help") == page
    page = help_page(capsys, "pretrain", "objective=clm", "--help")
    assert "\nobjective=clm:\n" in page and "objective.masking" not in page
    page = help_page(capsys, "pretrain", "objective=clm", "model.mixer=longformer", "--help")
    assert "\nobjective=clm:\n" in page and "  model.mixer.attention_window " in page and "model.mixer.mem_len" not in page


def test_help_of_a_kind_inside_another_is_listed_once(capsys):
    page = help_page(capsys, "pretrain", "objective.masking=span", "--help")
    assert page.count("objective.masking=span:") == 1 and page.count("objective.masking.max_span_length ") == 1


def test_help_of_a_kind_without_keys(capsys):
    assert "objective.masking=token has no keys" in help_page(capsys, "pretrain", "objective.masking=token", "--help")


def test_help_of_a_table_lists_its_keys_only(capsys):
    page = help_page(capsys, "pretrain", "--help", "train")
    assert "  train.steps " in page and "train.optimizer=muon:" in page and "model.num_hidden_layers" not in page
    assert "train.optimizer=lamb:" not in help_page(capsys, "pretrain", "train.optimizer=muon", "--help", "train")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["finetune", "task=tga", "--help"], "task = 'tga' is not valid; did you mean 'tag'?"),
        (["pretrain", "--help", "trian"], "--help trian: unknown table; did you mean 'train'?"),
    ],
)
def test_help_of_unknown_kind_or_table_is_an_error(capsys, argv, message):
    assert cli.main(argv) == 2 and message in capsys.readouterr().err


def test_help_ignores_arguments_that_choose_no_kind(capsys):
    page = help_page(capsys, "finetune", "--help")
    for args in (["out=o", "--help"], ["a.toml", "nonsense=1", "--help"], ["decoder=none", "--help"], ["--help", "--json"]):
        assert help_page(capsys, "finetune", *args) == page


def test_help_writes_presets_by_family(capsys):
    page = unwrap(help_page(capsys, "pretrain", "--help"))
    assert "bert-tiny, -mini, -small, -medium, -base, -large; albert-base, -large" in page and "; gpt2, -medium" in page


def test_help_fits_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = help_page(capsys, "pretrain", "--help", "all")
    assert max_columns(page) <= 80


def test_help_of_a_table_lists_its_presets_by_family(capsys):
    page = help_page(capsys, "finetune", "--help", "model")
    assert "presets (model=NAME; " in page and "\n  bert-tiny bert-mini bert-small bert-medium bert-base bert-large\n" in page
    assert "presets" not in help_page(capsys, "finetune", "--help", "train")


def test_help_writes_small_and_large_defaults_in_scientific_notation(capsys):
    assert re.search(r"  budget.flops +1e15 ", help_page(capsys, "race", "--help"))
