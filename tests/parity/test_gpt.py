"""GPT and GPT-2: parity with transformers in both directions, tokenizers, and generation."""

import json

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import bertsmith
from bertsmith.convert.huggingface.folder import CheckpointRecord, choose_target
from bertsmith.convert.huggingface.tokenizer import read_tokenizer
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.planning.step import build_meta_model
from bertsmith.tokenization.tokenizer import END_OF_TEXT, Tokenizer
from tests.support.cli import run_cli_json
from tests.support.corpora import prepare_test_corpus
from tests.support.huggingface_models import import_folder, run_stage, transformers
from tests.support.texts import VOCAB, make_english_text

LENGTHS = (17, 5, 40, 1, 23)
SMALL = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
CLASSES = ("GPT2LMHeadModel", "GPT2Model", "OpenAIGPTLMHeadModel", "OpenAIGPTModel")
every_class = pytest.mark.parametrize("name", CLASSES)
TEXTS = ["The cat sat on the mat.", "don't stop,  two spaces", "naïve café 天地 🙂", "\tA tab\nand a line", "", "UPPER 123"]


def write_vocabulary(folder, kind):
    """Write vocab.json and merges.txt as in the first releases, trained on made-up prose; returns the vocabulary size."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    lines = make_english_text(40).splitlines()
    if kind == "gpt2":
        rust = Rust(models.BPE())
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        rust.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=299, initial_alphabet=alphabet, show_progress=False))
        special = END_OF_TEXT
    else:
        rust = Rust(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        rust.normalizer, rust.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        trainer = trainers.BpeTrainer(vocab_size=299, end_of_word_suffix="</w>", show_progress=False)
        rust.train_from_iterator(lines, trainer)
        special = "<unk>"
    folder.mkdir(parents=True, exist_ok=True)
    rust.model.save(str(folder))
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    vocab[special] = len(vocab)
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    return len(vocab)


def save_reference(name, folder, **settings):
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    vocab_size = write_vocabulary(folder, "gpt2" if name.startswith("GPT2") else "gpt")
    model = model_class(model_class.config_class(**{**SMALL, "vocab_size": vocab_size, **settings}))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    return model.eval()


@every_class
@torch.inference_mode()
def test_gpt_hidden_states_and_logits_match_transformers(name, tmp_path):
    reference = save_reference(name, tmp_path / "hf")
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert result["unexpected_keys"] == result["missing_keys"] == [] and max(result["differences"].values()) < 1e-5
    layout = Layout.from_lengths(LENGTHS)
    tokens = torch.randint(0, model.config.vocab_size, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    expected = reference(input_ids=layout.pad(tokens), attention_mask=layout.padding_mask().long(), output_hidden_states=True)
    all_hidden_states = []
    hidden = model(Inputs(tokens, layout), all_hidden_states)
    assert_close(hidden, expected.hidden_states[-1][layout.padding_mask()], atol=1e-5, rtol=1e-5)
    for state, expected_state in zip(all_hidden_states[:-1], expected.hidden_states[:-1], strict=True):
        assert_close(state, expected_state[layout.padding_mask()], atol=1e-5, rtol=1e-5)
    assert set(model.heads) == ({"lm"} if "LMHead" in name else set())
    if "LMHead" in name:
        assert_close(model.compute_logits("lm", hidden), expected.logits[layout.padding_mask()], atol=1e-5, rtol=1e-5)


@every_class
def test_gpt_import_export_round_trip_is_exact(name, tmp_path):
    reference = save_reference(name, tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "ours")
    result = run_stage("export", model=tmp_path / "ours", out=tmp_path / "back", check=True)
    assert result["class"] == name and max(result["differences"].values()) < 1e-5
    reloaded, loading_info = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(loading_info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for key, weight in reference.state_dict().items():
        assert torch.equal(weight, reloaded.state_dict()[key]), key
    original_config, exported_config = (
        json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("hf", "back")
    )
    ignored = ("attn_pdrop", "torch_dtype", "pad_token_id", "bos_token_id", "eos_token_id", "n_inner")
    assert {
        key: value for key, value in exported_config.items() if key not in ignored and original_config.get(key) != value
    } == {}


def test_gpt2_first_release_files_are_imported(tmp_path):
    """Without a name prefix, with the causal mask among the weights, and another intermediate size."""
    reference = save_reference("GPT2LMHeadModel", tmp_path / "hf", n_inner=50)
    path = tmp_path / "hf/model.safetensors"
    weights = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    weights |= {f"h.{layer}.attn.bias": torch.ones(64, 64).tril()[None, None] for layer in range(3)}
    weights |= {f"h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(3)}
    save_file(weights, path)
    _, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert model.config.encoder.feedforward.intermediate_size == 50
    tokens = torch.arange(20)
    hidden = model(Inputs(tokens, Layout.from_lengths([20])))
    assert_close(model.compute_logits("lm", hidden), reference(tokens[None]).logits[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("norm", "expected_class"), [("pre", "GPT2LMHeadModel"), ("post", "OpenAIGPTLMHeadModel")])
def test_gpt_export_chooses_the_huggingface_class(norm, expected_class, tmp_path):
    write_vocabulary(tmp_path, "gpt2")
    tokenizer = read_tokenizer(tmp_path, None, None)
    encoder = EncoderConfig.presets()["gpt2" if norm == "pre" else "gpt"]
    feedforward = msgspec.structs.replace(encoder.feedforward, intermediate_size=128)
    encoder = msgspec.structs.replace(
        encoder,
        num_hidden_layers=2,
        hidden_size=32,
        mixer=Attention(num_attention_heads=2, causal=True),
        feedforward=feedforward,
    )
    config = ModelConfig(encoder=encoder, vocab_size=300, heads={"lm": LMHeadConfig(transform=False, bias=False)})
    checkpoint.save(tmp_path / "ours", build_model(config, 0), tokenizer, {}, {"tokenizer_fingerprint": tokenizer.fingerprint})
    result = run_stage("export", model=tmp_path / "ours", out=tmp_path / "hf", check=True)
    assert result["class"] == expected_class and max(result["differences"].values()) < 1e-5


@pytest.mark.parametrize(("preset", "kind"), [("gpt2", "gpt2"), ("gpt", "openai-gpt")])
def test_gpt_export_with_code_names_the_nearest_class(preset, kind, tmp_path):
    write_vocabulary(tmp_path, "gpt2")
    encoder = msgspec.structs.replace(
        EncoderConfig.presets()[preset],
        num_hidden_layers=1,
        hidden_size=32,
        mixer=Attention(num_attention_heads=2, causal=True),
    )
    config = ModelConfig(encoder=encoder, vocab_size=300, heads={"lm": LMHeadConfig(transform=False, tied=False)})
    target = choose_target(build_model(config, 0), read_tokenizer(tmp_path, None, None), CheckpointRecord())
    assert target.architecture.name == "BertsmithForCausalLM" and f"transformers' {kind}" in target.changes[0]


@pytest.mark.parametrize(("preset", "vocab_size", "num_parameters"), [
    ("gpt", 40_478, 116_534_784), ("gpt2", 50_257, 124_439_808), ("gpt2-medium", 50_257, 354_823_168),
    ("gpt2-large", 50_257, 774_030_080), ("gpt2-xl", 50_257, 1_557_611_200),
])  # fmt: skip
def test_gpt_presets_have_the_published_parameter_count(preset, vocab_size, num_parameters):
    head = LMHeadConfig(transform=False, bias=False)
    model = build_meta_model(ModelConfig(encoder=EncoderConfig.presets()[preset], vocab_size=vocab_size, heads={"lm": head}))
    assert sum(weight.numel() for weight in model.parameters()) == num_parameters


@pytest.mark.parametrize("kind", ["gpt2", "gpt"])
def test_gpt_tokenizers_match_transformers(kind, tmp_path):
    write_vocabulary(tmp_path, kind)
    files = {"vocab": str(tmp_path / "vocab.json"), "merges": str(tmp_path / "merges.txt")}
    reference = transformers.GPT2Tokenizer(**files) if kind == "gpt2" else transformers.OpenAIGPTTokenizer(**files)
    ours = read_tokenizer(tmp_path, None, None)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    reference.save_pretrained(tmp_path / "json")
    assert (tmp_path / "json/tokenizer.json").exists()
    for tokenizer in (ours, Tokenizer.load(tmp_path / "saved"), read_tokenizer(tmp_path / "json", None, None)):
        for text in [*TEXTS, *make_english_text(3, seed=5).splitlines()]:
            expected = reference.encode(text, add_special_tokens=False)
            assert tokenizer.encode(text).ids == expected
            if kind == "gpt2":
                assert tokenizer.decode(expected) == text
        assert tokenizer.cls_token_id == tokenizer.sep_token_id == tokenizer.pad_token_id == tokenizer.mask_token_id


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel"])
def test_gpt_generation_matches_transformers(name, tmp_path):
    reference = save_reference(name, tmp_path / "hf")
    _, _, tokenizer = import_folder(tmp_path / "hf", tmp_path / "ours")
    predictor = bertsmith.load(tmp_path / "ours")
    for text in ("the cat of many", "when we"):
        ids = tokenizer.encode(text).ids
        for settings, reference_settings in (
            ({"kind": "greedy"}, {"do_sample": False}),
            (
                {"kind": "beam", "num_beams": 3, "length_penalty": 0.0},
                {"num_beams": 3, "length_penalty": 0.0, "early_stopping": False},
            ),
            *(
                (
                    {"kind": "beam", "num_beams": 4, "length_penalty": penalty},
                    {"num_beams": 4, "length_penalty": penalty, "early_stopping": "never"},
                )
                for penalty in (-1.0, 0.5, 1.0, 3.0)
            ),
        ):
            common = {"max_new_tokens": 20, "pad_token_id": 0, "eos_token_id": tokenizer.sep_token_id}
            expected = reference.generate(torch.tensor([ids]), **common, **reference_settings)[0, len(ids) :].tolist()
            actual = predictor.generate(text, **settings, max_new_tokens=20)
            assert actual["token_ids"] + [tokenizer.sep_token_id] * (actual["finish_reason"] == "eos_token") == expected


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel"])
def test_gpt_imported_model_can_be_trained_further(name, tmp_path):
    save_reference(name, tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "text.txt").write_text(make_english_text(30), encoding="utf-8")
    corpus = prepare_test_corpus(tmp_path / "text.txt", tmp_path / "ours", tmp_path / "corpus")
    train_args = ["train.batch_tokens=256", "max_length=32", "train.learning_rate=3e-3"]
    args = [f"corpus={corpus}", f"init={tmp_path / 'ours'}", "objective=clm", "validation_split=0.2", *train_args]
    result = run_cli_json("pretrain", *args, f"out={tmp_path / 'more'}", "train.steps=40")
    first_metrics = json.loads((tmp_path / "more/metrics.jsonl").read_text().splitlines()[0])
    assert result["valid_loss"] < first_metrics["loss"]
    rows = [json.dumps({"text": text, "label": label}) for text, label in (("the people", "a"), ("no way", "b"))]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows * 9), encoding="utf-8")
    args = [
        "task=classify",
        f"model={tmp_path / 'more'}",
        f"data.train={tmp_path / 'rows.jsonl'}",
        "aux_lm_weight=0.5",
        *train_args[:2],
    ]
    run_cli_json("finetune", *args, f"out={tmp_path / 'finetuned'}", "train.epochs=200", "train.head_lr_multiplier=10",
                 "data.validation_split=0", "train.learning_rate=1e-3")  # fmt: skip
    assert bertsmith.load(tmp_path / "finetuned")("no way")["label"] == "b"


def test_gpt_sampling_with_top_k_one_is_greedy(tmp_path):
    save_reference("GPT2LMHeadModel", tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "ours")
    predictor = bertsmith.load(tmp_path / "ours")
    sampled = predictor.generate(["the cat"] * 2, kind="sample", top_k=1, max_new_tokens=5)
    greedy = predictor.generate("the cat", max_new_tokens=5)
    assert sampled[0]["token_ids"] == sampled[1]["token_ids"] == greedy["token_ids"]
    assert np.isfinite(greedy["log_prob"])


@pytest.mark.parametrize(("preset", "intermediate_size"), [("gpt", 128), ("gpt", 96), ("gpt2", 96)])
def test_gpt_of_small_sizes_is_exported(preset, intermediate_size, tmp_path):
    """transformers' OpenAIGPT has 4 * hidden_size units: fewer are padded with zeros, which changes no output."""
    encoder = msgspec.structs.replace(
        EncoderConfig.presets()[preset], num_hidden_layers=2, hidden_size=32, max_position_embeddings=64, initializer_range=0.2,
        mixer=Attention(num_attention_heads=2, causal=True),
        feedforward=FeedForwardConfig(intermediate_size=intermediate_size, hidden_act="gelu-tanh"),
    )  # fmt: skip
    heads = {"lm": LMHeadConfig(transform=False, bias=False)}
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(VOCAB), heads=heads), 0).eval()
    checkpoint.save(tmp_path / "ours", model, Tokenizer.from_vocab(VOCAB), {}, {})
    result = run_stage("export", model=tmp_path / "ours", out=tmp_path / "hf", check=True)
    assert result["class"] == {"gpt": "OpenAIGPTLMHeadModel", "gpt2": "GPT2LMHeadModel"}[preset]
    assert max(result["differences"].values()) < 1e-5
    ids = torch.arange(20)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()(ids[None]).logits[0]
    ours = model.compute_logits("lm", model(Inputs(ids, Layout.from_lengths([20]))))
    assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_gpt_wider_than_transformers_has_it_leaves_with_its_code(tmp_path):
    encoder = msgspec.structs.replace(EncoderConfig.presets()["gpt"], num_hidden_layers=1, hidden_size=24)
    config = ModelConfig(encoder=encoder, vocab_size=len(VOCAB), heads={"lm": LMHeadConfig(transform=False, bias=False)})
    target = choose_target(build_meta_model(config), Tokenizer.from_vocab(VOCAB), CheckpointRecord())
    assert target.architecture.name == "BertsmithForCausalLM"
    assert "feedforward.intermediate_size = 3072 (its size is 4 * hidden_size = 96)" in target.changes[0]
