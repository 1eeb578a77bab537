"""A fine-tuning run: its dev file is encoded once, and scored in the precision that the model is trained in."""

import msgspec
import pytest
import torch

from bertsmith.config import from_dict
from bertsmith.finetuning import run
from bertsmith.finetuning.recipe import FinetuneRecipe
from bertsmith.tasks import TextClassification
from tests.support.models import save_model
from tests.support.rows import write_jsonl

ROWS = [{"text": text, "label": label} for text, label in [("the people", "a"), ("water", "b"), ("now", "a"), ("said", "b")]]


@pytest.fixture
def recipe(tmp_path):
    file = str(write_jsonl(tmp_path / "rows.jsonl", ROWS))
    settings = {
        "task": "classify", "model": str(save_model(tmp_path / "bert")), "out": str(tmp_path / "out"), "max_length": 16,
        "data": {"train": file, "dev": file},
        "train": {"steps": 4, "eval_every": 1, "early_stopping_patience": 4, "batch_tokens": 64},
    }  # fmt: skip
    return from_dict(FinetuneRecipe, settings)


def test_dev_examples_are_encoded_once_for_all_scores(recipe, monkeypatch):
    encoded, scored, encode = [], [], TextClassification.encode
    monkeypatch.setattr(TextClassification, "encode", lambda self, *args: encoded.append(len(args[0])) or encode(self, *args))
    score = run.FinetuneRun.score
    monkeypatch.setattr(run.FinetuneRun, "score", lambda self: scored.append(score(self)) or scored[-1])
    result = run.finetune(recipe, quiet=True)
    assert len(scored) == 4  # one a step; besides: the batches of both files, and the final evaluation
    assert encoded == [4, 4, 4, 4] and max(scored) == pytest.approx(result["dev"]["accuracy"])


@pytest.mark.parametrize(
    ("precision", "expected"), [("fp32", "fp32"), ("bf16", "auto" if torch.cuda.is_available() else "fp32")]
)
def test_dev_examples_are_scored_in_fp32_unless_a_gpu_trains_in_bf16(recipe, monkeypatch, precision, expected):
    precisions, finish = [], run.FinetuneRun.finish
    monkeypatch.setattr(
        run.FinetuneRun, "finish", lambda self: precisions.append(self.predictor.engine.precision) or finish(self)
    )
    run.finetune(msgspec.structs.replace(recipe, train=msgspec.structs.replace(recipe.train, precision=precision)), quiet=True)
    assert precisions == [expected]
