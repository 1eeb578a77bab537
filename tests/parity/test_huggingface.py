"""Hugging Face folders come in with transformers' answers, and go out again bit for bit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch.testing import assert_close

from bertsmith.cli import main
from bertsmith.config import parse
from bertsmith.convert import huggingface
from bertsmith.errors import BadInput
from bertsmith.model import checkpoint
from bertsmith.model.layout import Layout
from bertsmith.model.types import Inputs
from bertsmith.stages import stage
from tests.conftest import PIECES, prose

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS, LENGTHS = len(PIECES), (17, 5, 40, 1, 23)
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": WORDS}
ROBERTA = (
    BERT
    | {"max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
    | {"bos_token_id": 2, "eos_token_id": 3}
)
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": WORDS, "max_position_embeddings": 64}
CLASSES = {
    "BertForPreTraining": BERT, "BertForMaskedLM": BERT, "BertForNextSentencePrediction": BERT, "BertModel": BERT,
    "RobertaForMaskedLM": ROBERTA, "RobertaModel": ROBERTA, "DistilBertForMaskedLM": DISTIL, "DistilBertModel": DISTIL,
}  # fmt: skip
every_class = pytest.mark.parametrize("name", CLASSES)


def theirs(name, folder, **settings):
    """A small random model of a class, saved with a vocabulary beside it."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**{**CLASSES[name], **settings}))
    for weight in model.parameters():  # biases, norms and padding's rows, too, must matter
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return model.eval()


def run(name, **recipe):
    module = stage(name)
    return module.run(parse(module.Recipe, {key: str(v) if key != "check" else v for key, v in recipe.items()}), True)


def imported(source, out, **more):
    return run("import", source=source, out=out, **more), *checkpoint.load(out)[:2]


def renamed(folder, change):
    path = folder / "model.safetensors"
    weights = change(load_file(path))
    save_file(weights, path)
    return weights


@every_class
def test_answers_are_those_of_transformers(name, tmp_path):
    original = theirs(name, tmp_path / "hf")
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert result["unmatched"] == []
    layout = Layout.of(LENGTHS)
    tokens = torch.randint(5, WORDS, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    grid, segments = {"input_ids": layout.grid(tokens), "attention_mask": layout.real().long()}, None
    if model.config.encoder.segments > 1:
        segments = (layout.place > 8).long()
        grid["token_type_ids"] = layout.grid(segments)
    hidden, want = model(Inputs(tokens, layout, segments)), original(**grid, output_hidden_states=True)
    assert_close(hidden, want.hidden_states[-1][layout.real()], atol=1e-5, rtol=1e-5)
    if "words" in model.config.heads:
        logits = want.prediction_logits if "prediction_logits" in want else want.logits
        assert_close(model.scores("words", hidden), logits[layout.real()], atol=1e-5, rtol=1e-5)
    if "next" in model.config.heads:
        logits = want.seq_relationship_logits if "seq_relationship_logits" in want else want.logits
        assert_close(model.scores("next", hidden[layout.firsts]), logits, atol=1e-5, rtol=1e-5)
    if name in ("BertModel", "RobertaModel"):
        assert_close(model.encoder.pool(hidden[layout.firsts]), want.pooler_output, atol=1e-5, rtol=1e-5)


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
    assert {key: value for key, value in back.items() if key not in own and given.get(key) != value} == {}


def test_a_large_model_goes_out_in_several_files(tmp_path):
    original = theirs("BertForMaskedLM", tmp_path / "hf")
    _, model, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "back").mkdir()
    huggingface.write(tmp_path / "back", model, tokenizer, None, {}, limit=20_000)
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 2
    huggingface.identical(tmp_path / "back", model, "BertForMaskedLM")
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "back")
    assert all(torch.equal(weight, again.state_dict()[key]) for key, weight in original.state_dict().items())


def test_a_folder_written_wrong_is_found_out(tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    _, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    renamed(tmp_path / "hf", lambda held: {**held, "cls.predictions.bias": held["cls.predictions.bias"] + 1e-6})
    with pytest.raises(BadInput, match=r"heads\.words\.bias came back changed"):
        huggingface.identical(tmp_path / "hf", model, "BertForMaskedLM")


def test_attention_dropout_is_kept_when_asked_for(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    run("import", source=tmp_path / "hf", out=tmp_path / "none")
    module = stage("import")
    module.run(module.Recipe(source=str(tmp_path / "hf"), out=str(tmp_path / "some"), attention_dropout=0.1), True)
    kept = {name: checkpoint.load(tmp_path / name)[0].config.encoder.mixer.dropout for name in ("none", "some")}
    assert kept == {"none": 0.0, "some": 0.1}


@pytest.mark.parametrize("way", ["sharded", "bin", "sharded bin", "old names", "no prefix", "tied twice", "half"])
def test_every_way_of_keeping_weights_gives_the_same_model(way, tmp_path):
    original = theirs("BertForPreTraining", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "plain")
    folder = tmp_path / "other"
    shutil.copytree(tmp_path / "hf", folder)
    single = folder / "model.safetensors"
    weights = load_file(single)
    if way == "sharded":
        single.unlink()
        original.save_pretrained(folder, max_shard_size="20KB")
        assert (folder / "model.safetensors.index.json").exists()
    elif way == "bin":
        single.unlink()
        torch.save(original.state_dict(), folder / "pytorch_model.bin")
    elif way == "sharded bin":
        single.unlink()
        names = list(weights)
        for number, some in enumerate((names[:9], names[9:])):
            torch.save({key: weights[key] for key in some}, folder / f"part-{number}.bin")
        index = {key: f"part-{int(at >= 9)}.bin" for at, key in enumerate(names)}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    elif way == "old names":
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        new = {key: next((key.replace(a, b) for a, b in old.items() if a in key), key) for key in weights}
        save_file({new[key]: weight for key, weight in weights.items()}, single)
    elif way == "no prefix":
        save_file({key.removeprefix("bert."): weight for key, weight in weights.items()}, single)
    elif way == "tied twice":
        table = weights["bert.embeddings.word_embeddings.weight"].clone()
        save_file({**weights, "cls.predictions.decoder.weight": table, "bert.embeddings.position_ids": torch.arange(9)}, single)
    elif way == "half":
        save_file({key: weight.bfloat16() for key, weight in weights.items()}, single)
    _, model, _ = imported(folder, tmp_path / "ours")
    for key, weight in checkpoint.load(tmp_path / "plain")[0].state_dict().items():
        assert torch.equal(weight.bfloat16().float() if way == "half" else weight, model.state_dict()[key]), key


def test_a_head_without_a_place_is_named_and_an_encoders_part_is_refused(tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    renamed(tmp_path / "hf", lambda held: {**held, "classifier.weight": torch.ones(3, 32), "classifier.bias": torch.ones(3)})
    result, _, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert result["unmatched"] == ["classifier.bias", "classifier.weight"]
    assert result["initialised"] == ["encoder.pooler.weight", "encoder.pooler.bias"]
    renamed(tmp_path / "hf", lambda held: {**held, "bert.encoder.layer.1.adapter.weight": torch.ones(3, 32)})
    with pytest.raises(BadInput, match=r"no place for: bert\.encoder\.layer\.1\.adapter\.weight"):
        imported(tmp_path / "hf", tmp_path / "again")
    assert not (tmp_path / "again").exists()


FAULTS = {
    "missing": (lambda held: {key: w for key, w in held.items() if "layer.1.output.dense" not in key}, "lacks what"),
    "half a head": (
        lambda held: {key: w for key, w in held.items() if key != "cls.predictions.bias"},
        r"cls\.predictions\.bias",
    ),
    "depth": (lambda held: {key: w for key, w in held.items() if ".layer.1." not in key}, "holds 1 blocks"),
    "shape": (lambda held: {**held, "bert.embeddings.LayerNorm.bias": torch.ones(31)}, r"LayerNorm\.bias is \[31\]"),
    "untied": (lambda held: {**held, "cls.predictions.decoder.weight": torch.ones(WORDS, 32)}, "a table of its own"),
    "twice": (lambda held: {**held, "bert.embeddings.LayerNorm.beta": torch.ones(32)}, "twice"),
    "integers": (lambda held: {**held, "bert.embeddings.LayerNorm.bias": torch.ones(32, dtype=torch.int8)}, "not real numbers"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_refused_by_name(fault, tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    change, words = FAULTS[fault]
    renamed(tmp_path / "hf", change)
    with pytest.raises(BadInput, match=words):
        imported(tmp_path / "hf", tmp_path / "ours")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "albert"}, "share their weights"),
        ({"model_type": "electra"}, "replaced words"),
        ({"model_type": "gpt2"}, "known: bert, roberta, distilbert"),
        ({"embedding_size": 16}, "factorised"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_hidden_layers": 10**9}, "holds 2 blocks"),
        ({"hidden_size": 10**12, "num_attention_heads": 1}, "cannot be built"),
        ({"max_position_embeddings": 0}, "positions is their max_position_embeddings"),
        ({"num_attention_heads": 5}, "does not divide"),
        ({"hidden_size": "wide"}, "width is their hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"intermediate_size": None}, "does not say intermediate_size"),
    ],
)
def test_models_this_one_cannot_be_are_refused_by_name(settings, words, tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    path = tmp_path / "hf/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(BadInput, match=words):
        imported(tmp_path / "hf", tmp_path / "ours")


class Trap:
    def __reduce__(self):
        return print, ("a pickle ran code",)


@pytest.mark.parametrize("held", [Trap(), {"x": 1}, b"cut"], ids=["code", "no tensors", "cut off"])
def test_a_bin_gives_nothing_but_tensors(held, tmp_path, capsys):
    theirs("BertModel", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    path = tmp_path / "pytorch_model.bin"
    torch.save(held, path)
    if held == b"cut":
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match=r"pytorch_model\.bin"):
        imported(tmp_path, tmp_path / "ours")
    assert "ran code" not in capsys.readouterr().out


@pytest.mark.parametrize("names", [{"a": "../model.safetensors"}, {"a": "gone.safetensors"}, {"a": 3}, {}, []])
def test_an_index_that_names_no_files_is_refused(names, tmp_path):
    theirs("BertModel", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(BadInput, match=r"model\.safetensors\.index\.json"):
        imported(tmp_path, tmp_path / "ours")


def test_a_folder_without_weights_config_or_tokenizer_is_refused(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    for name, words in (("vocab.txt", "tokenizer=FILE"), ("model.safetensors", "no weights"), ("config.json", "neither")):
        (tmp_path / "hf" / name).unlink()
        with pytest.raises(BadInput, match=words):
            imported(tmp_path / "hf", tmp_path / "ours")
    with pytest.raises(BadInput, match="there is no folder"):
        imported(tmp_path / "nothing", tmp_path / "ours")


TEXTS = ["The people of a way.", "Naïve 天地, what?", "unheardof WORDS — it's [MASK]", ""]


def agree(folder, other):
    ours, peer = (transformers.AutoTokenizer.from_pretrained(place) for place in (folder, other))
    for text in TEXTS:
        assert dict(ours(text)) == dict(peer(text))
    assert ours(TEXTS[0], TEXTS[1])["input_ids"] == peer(TEXTS[0], TEXTS[1])["input_ids"]
    assert ours.mask_token_id == peer.mask_token_id


@pytest.mark.parametrize("settings", [{"do_lower_case": True}, {"do_lower_case": False}, {"strip_accents": False}])
def test_the_tokenizer_goes_along_and_comes_out_the_same(settings, tmp_path):
    theirs("BertForMaskedLM", tmp_path / "hf")
    told = {"tokenizer_class": "BertTokenizer", **settings}
    (tmp_path / "hf/tokenizer_config.json").write_text(json.dumps(told))
    _, _, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    peer = transformers.BertTokenizerFast(str(tmp_path / "hf/vocab.txt"), **settings)
    peer.save_pretrained(tmp_path / "peer")
    theirs_again = Rust.from_file(str(tmp_path / "peer/tokenizer.json"))
    assert tokenizer.state["normalizer"] == json.loads(theirs_again.to_str())["normalizer"] | {"clean_text": True}
    run("export", model=tmp_path / "ours", out=tmp_path / "back")
    agree(tmp_path / "back", tmp_path / "peer")
    assert (tmp_path / "back/vocab.txt").read_text(encoding="utf-8").split() == PIECES


@pytest.mark.parametrize("kept", ["tokenizer.json", "vocab.json"])
def test_a_byte_level_tokenizer_goes_along_too(kept, tmp_path):
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    rust.train_from_iterator(prose(20).split("\n"), trainer)
    theirs("RobertaForMaskedLM", tmp_path / "hf", vocab_size=rust.get_vocab_size())
    (tmp_path / "hf/vocab.txt").unlink()
    if kept == "tokenizer.json":
        rust.save(str(tmp_path / "hf/tokenizer.json"))
    else:
        rust.model.save(str(tmp_path / "hf"))
    _, _, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    assert (tokenizer.cls, tokenizer.pad, tokenizer.sep, tokenizer.unk, tokenizer.mask) == (0, 1, 2, 3, 4)
    for text in TEXTS[:2]:
        assert tokenizer.encode(text).ids == rust.encode(text, add_special_tokens=False).ids
    run("export", model=tmp_path / "ours", out=tmp_path / "back")
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert back(TEXTS[0])["input_ids"] == [0, *rust.encode(TEXTS[0]).ids, 2]


def test_a_tokenizer_from_elsewhere_is_taken_as_told(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    (tmp_path / "hf/vocab.txt").rename(tmp_path / "words.txt")
    module = stage("import")
    take = lambda **more: module.run(module.Recipe(source=str(tmp_path / "hf"), **more), True)
    take(out=str(tmp_path / "cased"), tokenizer=str(tmp_path / "words.txt"), lowercase=False)
    assert checkpoint.load(tmp_path / "cased")[1].state["normalizer"]["lowercase"] is False
    with pytest.raises(BadInput, match="says itself"):
        take(out=str(tmp_path / "no"), tokenizer=str(tmp_path / "cased"), lowercase=True)


def test_a_tokenizer_larger_than_the_table_is_refused(tmp_path):
    theirs("BertModel", tmp_path / "hf", vocab_size=WORDS - 1)
    with pytest.raises(BadInput, match="another model's tokenizer"):
        imported(tmp_path / "hf", tmp_path / "ours")


def test_the_check_finds_a_model_that_answers_otherwise(tmp_path):
    """A norm of another eps has the same weights: only answers tell it."""
    from bertsmith.convert.agreement import differences
    from bertsmith.convert.names import BERT as FAMILY

    theirs("BertForPreTraining", tmp_path / "hf")
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours", check=True)
    assert set(result["differences"]) == {"hidden", "words", "next"} and max(result["differences"].values()) < 1e-5
    model.encoder.norm.eps = 0.1
    found = differences(model, tmp_path / "hf", FAMILY, "BertForPreTraining")
    assert min(found.values()) > 1e-3


def test_the_same_import_again_does_nothing_and_another_is_refused(tmp_path):
    theirs("BertModel", tmp_path / "hf")
    assert imported(tmp_path / "hf", tmp_path / "ours")[0]["made"]
    assert not run("import", source=tmp_path / "hf", out=tmp_path / "ours")["made"]
    renamed(tmp_path / "hf", lambda held: {key: w + 1 for key, w in held.items()})
    with pytest.raises(BadInput, match="another model"):
        run("import", source=tmp_path / "hf", out=tmp_path / "ours")


def test_our_own_models_go_out_and_others_are_refused(tmp_path, vocabulary, capsys):
    from bertsmith.model.encoder import EncoderConfig
    from bertsmith.model.heads import LabelHead, WordHead
    from bertsmith.model.model import ModelConfig, built
    from bertsmith.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(vocabulary)

    def saved(folder, heads, **encoder):
        table = {"layers": 1, "width": 32, "mixer": {"kind": "dense", "heads": 4}, "feedforward": {"inner": 40}, **encoder}
        config = ModelConfig(encoder=parse(EncoderConfig, table), vocabulary=len(tokenizer), heads=heads)
        checkpoint.save(folder, built(config, 0), tokenizer, {}, {"stage": "test"})
        return folder

    both = {"words": WordHead(), "next": LabelHead(labels=2)}
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
        ("causal", both, {"mixer": {"kind": "dense", "heads": 4, "causal": True}}, "mixer.causal = True"),
        ("labels", {"labels": LabelHead(labels=3)}, {}, "a place for next, words only"),
        ("three", {"next": LabelHead(labels=3)}, {}, "other than two labels"),
    ):
        folder = saved(tmp_path / name, heads, **encoder)
        assert main(["export", f"model={folder}", f"out={tmp_path / 'no'}"]) == 2
        assert words in capsys.readouterr().err and not (tmp_path / "no").exists()
