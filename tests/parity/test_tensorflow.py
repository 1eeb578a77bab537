"""Import of Google's TensorFlow checkpoints: same outputs as transformers with the same weights."""

import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertsmith.commands import load_stage
from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.support.google_checkpoint import SIZES, to_google_names, write_checkpoint
from tests.support.texts import VOCAB
from tests.support.tf_checkpoint_writer import write_bundle

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def random_hf_model():
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def import_checkpoint(source, out):
    module = load_stage("import")
    result = module.run(from_dict(module.Recipe, {"source": str(source), "out": str(out)}), True)
    return result, checkpoint.load(out)[0]


@pytest.mark.parametrize("suffix", ["", "bert_model.ckpt", "bert_model.ckpt.index"], ids=["folder", "prefix", "index"])
def test_tensorflow_import_matches_transformers(suffix, tmp_path):
    original = random_hf_model()
    result, model = import_checkpoint(
        write_checkpoint(tmp_path / "tf", to_google_names(original.state_dict())) / suffix, tmp_path / "ours"
    )
    assert (result["unexpected_keys"], result["missing_keys"], result["heads"]) == ([], [], ["lm", "nsp"])
    layout = Layout.from_lengths([9, 24, 2])
    tokens = torch.randint(5, len(VOCAB), (35,), generator=torch.Generator().manual_seed(1))
    segments = (layout.position > 4).long()
    hidden = model(Inputs(tokens, layout, segments))
    hf_inputs = {
        "input_ids": layout.pad(tokens),
        "token_type_ids": layout.pad(segments),
        "attention_mask": layout.padding_mask().long(),
    }
    outputs = original(**hf_inputs)
    assert_close(model.compute_logits("lm", hidden), outputs.prediction_logits[layout.padding_mask()], atol=1e-5, rtol=1e-5)
    assert_close(model.compute_logits("nsp", hidden[layout.first_token]), outputs.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_tensorflow_import_with_embedding_projection_matches_electra(tmp_path):
    """Some Chinese checkpoints have embedding_size < hidden_size, in float64, with ALBERT's name for the projection."""
    torch.manual_seed(0)
    config = transformers.ElectraConfig(**{**SIZES, "embedding_size": 4})
    original = transformers.ElectraForMaskedLM(config).eval()
    for weight in original.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    renames = {
        "electra.embeddings_project": "bert.encoder.embedding_hidden_mapping_in", "electra.": "bert.",
        "generator_predictions.": "cls.predictions.transform.", "generator_lm_head.bias": "cls.predictions.bias",
    }  # fmt: skip
    tensors = {key: weight for key, weight in original.state_dict().items() if key != "generator_lm_head.weight"}
    for old_name, new_name in renames.items():
        tensors = {key.replace(old_name, new_name): weight for key, weight in tensors.items()}
    tensors |= {"bert.pooler.dense.weight": torch.ones(8, 8), "bert.pooler.dense.bias": torch.ones(8)}
    arrays = to_google_names(tensors)
    for name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias"):
        arrays[name] = arrays[name].astype(np.float64)
    result, model = import_checkpoint(write_checkpoint(tmp_path / "tf", arrays, embedding_size=4), tmp_path / "ours")
    assert (result["unexpected_keys"], result["missing_keys"], result["heads"]) == ([], [], ["lm"])
    assert (model.config.encoder.embedding_size, model.config.encoder.num_hidden_groups) == (4, None)
    tokens = torch.arange(5, 25)
    hidden = model(Inputs(tokens, Layout.from_lengths([20])))
    assert_close(model.compute_logits("lm", hidden), original(tokens[None]).logits[0], atol=1e-5, rtol=1e-5)


def test_tensorflow_import_converts_dtypes_to_float32(tmp_path):
    arrays = to_google_names(random_hf_model().state_dict())
    reference = import_checkpoint(write_checkpoint(tmp_path / "plain", arrays), tmp_path / "a")[1]
    float64_arrays = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in arrays.items()}
    converted = import_checkpoint(write_checkpoint(tmp_path / "wide", float64_arrays), tmp_path / "b")[1]
    for name, weight in reference.state_dict().items():
        assert torch.equal(weight, converted.state_dict()[name]), name
    arrays["bert/pooler/dense/bias"] = arrays["bert/pooler/dense/bias"].astype(np.float16)
    half = import_checkpoint(write_checkpoint(tmp_path / "half", arrays), tmp_path / "c")[1]
    assert torch.equal(half.encoder.pooler.bias, reference.encoder.pooler.bias.half().float())


def test_tensorflow_import_lists_unexpected_keys(tmp_path):
    arrays = to_google_names(random_hf_model().state_dict()) | {"output_weights": np.ones((3, 8), dtype=np.float32)}
    assert import_checkpoint(write_checkpoint(tmp_path / "tf", arrays), tmp_path / "ours")[0]["unexpected_keys"] == [
        "output_weights"
    ]
    card = json.loads((tmp_path / "ours/card.json").read_text())
    parts = ("index", "data-00000-of-00002", "data-00001-of-00002")
    assert set(card["files"]) == {"bert_config.json", *(f"bert_model.ckpt.{part}" for part in parts)}


def test_tensorflow_import_refuses_unsupported_checkpoints(tmp_path):
    arrays = to_google_names(random_hf_model().state_dict())
    incomplete = arrays | {"bert/encoder/embedding_hidden_mapping_in/kernel": np.ones((8, 8), dtype=np.float32)}
    with pytest.raises(UserError, match=r"lacks tensors.*embedding_hidden_mapping_in\.bias"):
        import_checkpoint(write_checkpoint(tmp_path / "narrow", incomplete, embedding_size=4), tmp_path / "ours")
    keras = arrays | {"_CHECKPOINTABLE_OBJECT_GRAPH": np.array(1)}
    with pytest.raises(UserError, match=r"object-based \(Keras\) checkpoint"):
        import_checkpoint(write_checkpoint(tmp_path / "keras", keras), tmp_path / "ours")
    unknown = arrays | {"bert/encoder/layer_0/extra/kernel": np.ones((2, 2), dtype=np.float32)}
    with pytest.raises(UserError, match=r"bertsmith does not support: bert\.encoder\.layer\.0\.extra\.weight"):
        import_checkpoint(write_checkpoint(tmp_path / "strange", unknown), tmp_path / "ours")
    integers = arrays | {"bert/pooler/dense/bias": np.arange(8)}
    with pytest.raises(UserError, match="has dtype int64"):
        import_checkpoint(write_checkpoint(tmp_path / "counted", integers), tmp_path / "ours")


def test_tensorflow_import_refuses_ambiguous_or_incomplete_folders(tmp_path):
    folder = write_checkpoint(tmp_path / "tf", to_google_names(random_hf_model().state_dict()))
    write_bundle(folder / "second.ckpt", {"x": np.ones(2, dtype=np.float32)})
    with pytest.raises(UserError, match="several checkpoints"):
        import_checkpoint(folder, tmp_path / "ours")
    (folder / "bert_config.json").unlink()
    with pytest.raises(UserError, match=r"no bert_config\.json"):
        import_checkpoint(folder / "bert_model.ckpt", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
