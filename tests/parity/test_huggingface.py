"""Import and export of Hugging Face folders: same outputs as transformers, bit-identical round trip, every family and head."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from bertsmith.cli import main
from bertsmith.commands import load_stage
from bertsmith.config import from_dict
from bertsmith.convert.huggingface import folder as huggingface
from bertsmith.convert.huggingface.names import BERT as FAMILY
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.support.huggingface_models import (
    CLASSES,
    VOCAB_SIZE,
    import_folder,
    rewrite_weights,
    run_stage,
    save_random_model,
    transformers,
)

LENGTHS = (17, 5, 40, 1, 23)
MASKED_LM = FAMILY.find_architecture(("lm",), None)
every_class = pytest.mark.parametrize("name", CLASSES)


@every_class
def test_huggingface_import_matches_transformers(name, tmp_path):
    original = save_random_model(name, tmp_path / "hf")
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert result["unexpected_keys"] == []
    layout = Layout.from_lengths(LENGTHS)
    tokens = torch.randint(5, VOCAB_SIZE, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    hf_inputs, segments = {"input_ids": layout.pad(tokens), "attention_mask": layout.padding_mask().long()}, None
    if model.config.encoder.type_vocab_size > 1:
        segments = (layout.position > 8).long()
        hf_inputs["token_type_ids"] = layout.pad(segments)
    if name.startswith("Longformer"):
        hf_inputs["global_attention_mask"] = (layout.pad(layout.position) == 0).long()
    if name.endswith("MultipleChoice"):
        hf_inputs = {key: scored[None] for key, scored in hf_inputs.items()}
    hidden_states = []
    hidden, outputs = model(Inputs(tokens, layout, segments), hidden_states), original(**hf_inputs, output_hidden_states=True)
    hidden_states[-1] = hidden  # with the final norm of pre-norm models, as theirs
    for ours, hf_hidden in zip(hidden_states, outputs.hidden_states, strict=True):  # of every layer, also of shared blocks
        assert_close(ours, hf_hidden[layout.padding_mask()], atol=1e-5, rtol=1e-5)
    heads = set(model.config.heads)
    assert (heads == set()) == name.endswith("Model")
    for head in heads:
        scored, hf_logits = expected_logits(outputs, head, name, layout)
        assert_close(model.compute_logits(head, hidden[scored]), hf_logits, atol=1e-5, rtol=1e-5)
    if name in ("BertModel", "RobertaModel", "AlbertModel"):
        assert_close(model.encoder.apply_pooler(hidden[layout.first_token]), outputs.pooler_output, atol=1e-5, rtol=1e-5)


def expected_logits(outputs, head, name, layout):
    """The tokens that a head scores, and transformers' logits for them."""
    mask, all_tokens = layout.padding_mask(), slice(None)
    if name.endswith("QuestionAnswering"):
        return all_tokens, torch.stack([outputs.start_logits, outputs.end_logits], -1)[mask]
    if name.endswith("MultipleChoice"):
        return layout.first_token, outputs.logits.T
    if head in ("nsp", "sop") or name.endswith("SequenceClassification"):
        return layout.first_token, next(
            outputs[key] for key in ("seq_relationship_logits", "sop_logits", "logits") if key in outputs
        )
    logits = outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits
    return all_tokens, logits[mask][:, None] if head == "rtd" else logits[mask]


@every_class
def test_huggingface_roundtrip_is_bit_identical(name, tmp_path):
    original = save_random_model(name, tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "ours")
    result = run_stage("export", model=tmp_path / "ours", out=tmp_path / "back", check=True)
    assert result["class"] == name and max(result["differences"].values()) < 1e-5
    assert load_file(tmp_path / "back/model.safetensors").keys() == load_file(tmp_path / "hf/model.safetensors").keys()
    reloaded, loading_info = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(loading_info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for key, weight in original.state_dict().items():
        assert torch.equal(weight, reloaded.state_dict()[key]), key
    hf_config, exported_config = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("hf", "back"))
    ignored = (
        "attention_probs_dropout_prob",
        "attention_dropout",
        "torch_dtype",
    )  # import sets attention dropout to 0 by default
    ignored += ("problem_type", "id2label", "label2id")  # explicit where transformers leaves them out
    ignored += ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")  # ModernBERT's older spelling, too
    assert {key: value for key, value in exported_config.items() if key not in ignored and hf_config.get(key) != value} == {}


def test_huggingface_export_in_shards(tmp_path):
    original = save_random_model("BertForMaskedLM", tmp_path / "hf")
    _, model, tokenizer = import_folder(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "back").mkdir()
    huggingface.write(tmp_path / "back", model, tokenizer, huggingface.CheckpointRecord(), max_shard_size=20_000)
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 2
    huggingface.verify_roundtrip(tmp_path / "back", model, MASKED_LM)
    reloaded = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back")
    assert all(torch.equal(weight, reloaded.state_dict()[key]) for key, weight in original.state_dict().items())


def test_huggingface_verify_roundtrip_detects_changed_weights(tmp_path):
    save_random_model("BertForMaskedLM", tmp_path / "hf")
    _, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    rewrite_weights(
        tmp_path / "hf", lambda weights: {**weights, "cls.predictions.bias": weights["cls.predictions.bias"] + 1e-6}
    )
    with pytest.raises(UserError, match=r"heads\.lm\.bias changed in the round trip"):
        huggingface.verify_roundtrip(tmp_path / "hf", model, MASKED_LM)


def test_huggingface_import_attention_dropout(tmp_path):
    save_random_model("BertModel", tmp_path / "hf")
    run_stage("import", source=tmp_path / "hf", out=tmp_path / "none")
    module = load_stage("import")
    module.run(module.Recipe(source=str(tmp_path / "hf"), out=str(tmp_path / "some"), attention_dropout=0.1), True)
    dropouts = {name: checkpoint.load(tmp_path / name)[0].config.encoder.mixer.attention_dropout for name in ("none", "some")}
    assert dropouts == {"none": 0.0, "some": 0.1}


def test_huggingface_parity_check_detects_a_different_model(tmp_path):
    """LayerNorm with another eps has the same weights, but not the same outputs."""
    from bertsmith.convert.parity import compute_differences

    save_random_model("BertForPreTraining", tmp_path / "hf")
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert set(result["differences"]) == {"hidden", "lm", "nsp"} and max(result["differences"].values()) < 1e-5
    model.encoder.embedding_norm.eps = 0.1
    differences = compute_differences(model, tmp_path / "hf", FAMILY, FAMILY.find_architecture(("lm", "nsp"), None))
    assert min(differences.values()) > 1e-3


def test_huggingface_import_again_does_nothing(tmp_path):
    save_random_model("BertModel", tmp_path / "hf")
    assert import_folder(tmp_path / "hf", tmp_path / "ours")[0]["created"]
    assert not run_stage("import", source=tmp_path / "hf", out=tmp_path / "ours")["created"]
    rewrite_weights(tmp_path / "hf", lambda weights: {key: w + 1 for key, w in weights.items()})
    with pytest.raises(UserError, match="another model"):
        run_stage("import", source=tmp_path / "hf", out=tmp_path / "ours")


def test_huggingface_export_of_own_models(tmp_path, vocabulary, capsys):
    from bertsmith.model.config import EncoderConfig
    from bertsmith.model.heads import LMHeadConfig, PooledHeadConfig
    from bertsmith.model.model import ModelConfig, build_model
    from bertsmith.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(vocabulary)

    def save(folder, heads, **encoder):
        values = {
            "num_hidden_layers": 1,
            "hidden_size": 32,
            "mixer": {"kind": "attention", "num_attention_heads": 4},
            "feedforward": {"intermediate_size": 40},
            **encoder,
        }
        config = ModelConfig(encoder=from_dict(EncoderConfig, values), vocab_size=len(tokenizer), heads=heads)
        checkpoint.save(folder, build_model(config, 0), tokenizer, {}, {"stage": "test"})
        return folder

    heads_of_bert = {"lm": LMHeadConfig(), "nsp": PooledHeadConfig(labels=2)}
    exportable = save(tmp_path / "good", heads_of_bert)
    assert main(["export", f"model={exportable}", f"out={tmp_path / 'hf'}", "check=true", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "BertForPreTraining"
    assert main(["import", f"source={tmp_path / 'hf'}", f"out={tmp_path / 'again'}"]) == 0
    assert torch.equal(
        load_file(exportable / "model.safetensors")["heads.lm.bias"],
        load_file(tmp_path / "again/model.safetensors")["heads.lm.bias"],
    )
    for name, heads, encoder, message in (
        ("reversible", heads_of_bert, {"norm": "pre", "reversible": True}, "does not support model.reversible"),
        ("labels", {"labels": PooledHeadConfig(labels=3)}, {}, "the head `labels` of kind pooled"),
        ("three", {"nsp": PooledHeadConfig(labels=3)}, {}, "the head `nsp` of kind pooled"),
    ):
        folder = save(tmp_path / name, heads, **encoder)
        assert main(["export", f"model={folder}", f"out={tmp_path / 'no'}"]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "no").exists()
