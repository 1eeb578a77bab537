"""`check=true` compares with transformers, and writes nothing if outputs differ."""

import pytest
import torch

from bertsmith.convert import parity
from bertsmith.errors import UserError
from tests.support.huggingface_models import run_stage, save_random_model


@pytest.mark.parametrize("name", ["BertForMaskedLM", "ElectraForSequenceClassification", "AlbertForQuestionAnswering"])
def test_import_check_reports_differences_of_every_head(name, tmp_path):
    save_random_model(name, tmp_path / "hf")
    differences = run_stage("import", source=tmp_path / "hf", out=tmp_path / "out", check=True)["differences"]
    assert len(differences) == 2 and "hidden" in differences and max(differences.values()) < 1e-4


@pytest.mark.parametrize("weight", ["layer.1.output.dense.weight", "predictions.bias"])
def test_import_check_refuses_other_weights_and_writes_nothing(weight, tmp_path, monkeypatch):
    save_random_model("BertForMaskedLM", tmp_path / "hf")
    load_hf_model = parity.load_hf_model

    def load_changed(folder, class_name):
        model = load_hf_model(folder, class_name)
        with torch.no_grad():
            next(value for name, value in model.named_parameters() if name.endswith(weight)).mul_(1.1)
        return model

    monkeypatch.setattr(parity, "load_hf_model", load_changed)
    with pytest.raises(UserError, match=r"transformers' BertForMaskedLM gives different outputs \(.*'lm'.*nothing was written"):
        run_stage("import", source=tmp_path / "hf", out=tmp_path / "out", check=True)
    assert not (tmp_path / "out").exists()


def test_import_check_refuses_nan(tmp_path, monkeypatch):
    save_random_model("BertModel", tmp_path / "hf")
    monkeypatch.setattr(parity, "compute_differences", lambda *_: {"hidden": float("nan")})
    with pytest.raises(UserError, match="gives different outputs"):
        run_stage("import", source=tmp_path / "hf", out=tmp_path / "out", check=True)
