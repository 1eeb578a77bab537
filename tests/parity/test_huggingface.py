"""Hugging Face folders come in with transformers' answers, and go out again bit for bit: every family, every head."""

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
from tests.parity.huggingface_models import CLASSES, WORDS, imported, renamed, run, theirs, transformers

LENGTHS = (17, 5, 40, 1, 23)
MASKED = FAMILY.find_architecture(("words",), None)
every_class = pytest.mark.parametrize("name", CLASSES)


@every_class
def test_answers_are_those_of_transformers(name, tmp_path):
    original = theirs(name, tmp_path / "hf")
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert result["unmatched"] == []
    layout = Layout.from_lengths(LENGTHS)
    tokens = torch.randint(5, WORDS, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    grid, segments = {"input_ids": layout.pad(tokens), "attention_mask": layout.padding_mask().long()}, None
    if model.config.encoder.segments > 1:
        segments = (layout.position > 8).long()
        grid["token_type_ids"] = layout.pad(segments)
    if name.startswith("Longformer"):
        grid["global_attention_mask"] = (layout.pad(layout.position) == 0).long()
    if name.endswith("MultipleChoice"):
        grid = {key: rows[None] for key, rows in grid.items()}
    kept = []
    hidden, want = model(Inputs(tokens, layout, segments), kept), original(**grid, output_hidden_states=True)
    for ours, peer in zip(kept, want.hidden_states, strict=True):  # of every layer, however often a block is called
        assert_close(ours, peer[layout.padding_mask()], atol=1e-5, rtol=1e-5)
    heads = set(model.config.heads)
    assert (heads == set()) == name.endswith("Model")
    for head in heads:
        rows, scores = expected(want, head, name, layout)
        assert_close(model.compute_logits(head, hidden[rows]), scores, atol=1e-5, rtol=1e-5)
    if name in ("BertModel", "RobertaModel", "AlbertModel"):
        assert_close(model.encoder.apply_pooler(hidden[layout.first_token]), want.pooler_output, atol=1e-5, rtol=1e-5)


def expected(want, head, name, layout):
    """Which rows a head scores, and what transformers' class says of them."""
    real, every = layout.real(), slice(None)
    if name.endswith("QuestionAnswering"):
        return every, torch.stack([want.start_logits, want.end_logits], -1)[real]
    if name.endswith("MultipleChoice"):
        return layout.first_token, want.logits.T
    if head == "next" or name.endswith("SequenceClassification"):
        return layout.first_token, next(want[key] for key in ("seq_relationship_logits", "sop_logits", "logits") if key in want)
    logits = want.prediction_logits if "prediction_logits" in want else want.logits
    return every, logits[real][:, None] if head == "replaced" else logits[real]


@every_class
def test_there_and_back_is_bit_for_bit_the_same(name, tmp_path):
    original = theirs(name, tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "ours")
    result = run("export", model=tmp_path / "ours", out=tmp_path / "back", check=True)
    assert result["class"] == name and max(result["differences"].values()) < 1e-5
    assert load_file(tmp_path / "back/model.safetensors").keys() == load_file(tmp_path / "hf/model.safetensors").keys()
    again, told = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told[fault] for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for key, weight in original.state_dict().items():
        assert torch.equal(weight, again.state_dict()[key]), key
    given, back = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("hf", "back"))
    own = ("attention_probs_dropout_prob", "attention_dropout", "torch_dtype")  # no dropout on attention unless asked for
    own += ("problem_type", "id2label", "label2id")  # said where transformers leaves them to be guessed
    assert {key: value for key, value in back.items() if key not in own and given.get(key) != value} == {}


def test_a_large_model_goes_out_in_several_files(tmp_path):
    original = theirs("BertForMaskedLM", tmp_path / "hf")
    _, model, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "back").mkdir()
    huggingface.write(tmp_path / "back", model, tokenizer, huggingface.CheckpointRecord(), max_shard_size=20_000)
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 2
    huggingface.verify_roundtrip(tmp_path / "back", model, MASKED)
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back")
    assert all(torch.equal(weight, again.state_dict()[key]) for key, weight in original.state_dict().items())


def test_a_folder_written_wrong_is_found_out(tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    _, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    renamed(tmp_path / "hf", lambda held: {**held, "cls.predictions.bias": held["cls.predictions.bias"] + 1e-6})
    with pytest.raises(UserError, match=r"heads\.words\.bias came back changed"):
        huggingface.verify_roundtrip(tmp_path / "hf", model, MASKED)


def test_attention_dropout_is_kept_when_asked_for(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    run("import", source=tmp_path / "hf", out=tmp_path / "none")
    module = load_stage("import")
    module.run(module.Recipe(source=str(tmp_path / "hf"), out=str(tmp_path / "some"), attention_dropout=0.1), True)
    kept = {name: checkpoint.load(tmp_path / name)[0].config.encoder.mixer.dropout for name in ("none", "some")}
    assert kept == {"none": 0.0, "some": 0.1}


def test_the_check_finds_a_model_that_answers_otherwise(tmp_path):
    """A norm of another eps has the same weights: only answers tell it."""
    from bertsmith.convert.parity import compute_differences

    theirs("BertForPreTraining", tmp_path / "hf")
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours", check=True)
    assert set(result["differences"]) == {"hidden", "words", "next"} and max(result["differences"].values()) < 1e-5
    model.encoder.norm.eps = 0.1
    found = compute_differences(model, tmp_path / "hf", FAMILY, FAMILY.find_architecture(("next", "words"), None))
    assert min(found.values()) > 1e-3


def test_the_same_import_again_does_nothing_and_another_is_refused(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    assert imported(tmp_path / "hf", tmp_path / "ours")[0]["made"]
    assert not run("import", source=tmp_path / "hf", out=tmp_path / "ours")["made"]
    renamed(tmp_path / "hf", lambda held: {key: w + 1 for key, w in held.items()})
    with pytest.raises(UserError, match="another model"):
        run("import", source=tmp_path / "hf", out=tmp_path / "ours")


def test_our_own_models_go_out_and_others_are_refused(tmp_path, vocabulary, capsys):
    from bertsmith.model.config import EncoderConfig
    from bertsmith.model.heads import LMHeadConfig, PooledHeadConfig
    from bertsmith.model.model import ModelConfig, build_model
    from bertsmith.tokenization.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(vocabulary)

    def saved(folder, heads, **encoder):
        table = {"layers": 1, "width": 32, "mixer": {"kind": "dense", "heads": 4}, "feedforward": {"inner": 40}, **encoder}
        config = ModelConfig(encoder=from_dict(EncoderConfig, table), vocabulary=len(tokenizer), heads=heads)
        checkpoint.save(folder, build_model(config, 0), tokenizer, {}, {"stage": "test"})
        return folder

    both = {"words": LMHeadConfig(), "next": PooledHeadConfig(labels=2)}
    good = saved(tmp_path / "good", both)
    assert main(["export", f"model={good}", f"out={tmp_path / 'hf'}", "check=true", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "BertForPreTraining"
    assert main(["import", f"source={tmp_path / 'hf'}", f"out={tmp_path / 'again'}"]) == 0
    assert torch.equal(
        load_file(good / "model.safetensors")["heads.words.bias"],
        load_file(tmp_path / "again/model.safetensors")["heads.words.bias"],
    )
    for name, heads, encoder, words in (
        ("before", both, {"norm": "before"}, "norm = 'before'"),
        ("causal", both, {"mixer": {"kind": "dense", "heads": 4, "causal": True}}, "openai-gpt has a place for words"),
        ("labels", {"labels": PooledHeadConfig(labels=3)}, {}, "a place for next, task, words"),
        ("three", {"next": PooledHeadConfig(labels=3)}, {}, "other than two labels"),
    ):
        folder = saved(tmp_path / name, heads, **encoder)
        assert main(["export", f"model={folder}", f"out={tmp_path / 'no'}"]) == 2
        assert words in capsys.readouterr().err and not (tmp_path / "no").exists()
