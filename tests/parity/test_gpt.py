"""GPT and GPT-2: transformers' answers, both ways; their tokenizers; their texts."""

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
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.planning.step import build_meta_model
from bertsmith.tokenization.tokenizer import END_OF_TEXT, Tokenizer
from tests.conftest import prepared, prose
from tests.journeys.test_pretraining import answer
from tests.parity.huggingface_models import imported, run, transformers

LENGTHS = (17, 5, 40, 1, 23)
SMALL = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
CLASSES = ("GPT2LMHeadModel", "GPT2Model", "OpenAIGPTLMHeadModel", "OpenAIGPTModel")
every_class = pytest.mark.parametrize("name", CLASSES)
TEXTS = ["The cat sat on the mat.", "don't stop,  two spaces", "naïve café 天地 🙂", "\tA tab\nand a line", "", "UPPER 123"]


def vocabulary(folder, kind):
    """vocab.json and merges.txt as the first releases kept them, learnt from made-up prose."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    lines = prose(40).splitlines()
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


def theirs(name, folder, **settings):
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    words = vocabulary(folder, "gpt2" if name.startswith("GPT2") else "gpt")
    model = kind(kind.config_class(**{**SMALL, "vocab_size": words, **settings}))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    return model.eval()


@every_class
@torch.inference_mode()
def test_answers_are_those_of_transformers(name, tmp_path):
    original = theirs(name, tmp_path / "hf")
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours", check=True)
    assert result["unmatched"] == result["initialised"] == [] and max(result["differences"].values()) < 1e-5
    layout = Layout.from_lengths(LENGTHS)
    tokens = torch.randint(0, model.config.vocabulary, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    want = original(input_ids=layout.pad(tokens), attention_mask=layout.padding_mask().long(), output_hidden_states=True)
    kept = []
    hidden = model(Inputs(tokens, layout), kept)
    assert_close(hidden, want.hidden_states[-1][layout.padding_mask()], atol=1e-5, rtol=1e-5)
    for ours, peer in zip(kept[:-1], want.hidden_states[:-1], strict=True):
        assert_close(ours, peer[layout.padding_mask()], atol=1e-5, rtol=1e-5)
    assert set(model.heads) == ({"words"} if "LMHead" in name else set())
    if "LMHead" in name:
        assert_close(model.compute_logits("words", hidden), want.logits[layout.padding_mask()], atol=1e-5, rtol=1e-5)


@every_class
def test_there_and_back_is_bit_for_bit_the_same(name, tmp_path):
    original = theirs(name, tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "ours")
    result = run("export", model=tmp_path / "ours", out=tmp_path / "back", check=True)
    assert result["class"] == name and max(result["differences"].values()) < 1e-5
    again, told = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told[fault] for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for key, weight in original.state_dict().items():
        assert torch.equal(weight, again.state_dict()[key]), key
    given, back = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("hf", "back"))
    own = ("attn_pdrop", "torch_dtype", "pad_token_id", "bos_token_id", "eos_token_id", "n_inner")
    assert {key: value for key, value in back.items() if key not in own and given.get(key) != value} == {}


def test_files_of_the_first_releases_are_read(tmp_path):
    """Without a prefix, with the causal mask beside the weights, and an inner width of its own."""
    original = theirs("GPT2LMHeadModel", tmp_path / "hf", n_inner=50)
    path = tmp_path / "hf/model.safetensors"
    held = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    held |= {f"h.{n}.attn.bias": torch.ones(64, 64).tril()[None, None] for n in range(3)}
    held |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(3)}
    save_file(held, path)
    _, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert model.config.encoder.feedforward.inner == 50
    tokens = torch.arange(20)
    hidden = model(Inputs(tokens, Layout.from_lengths([20])))
    assert_close(model.compute_logits("words", hidden), original(tokens[None]).logits[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("norm", "wanted"), [("before", "GPT2LMHeadModel"), ("after", "OpenAIGPTLMHeadModel")])
def test_a_model_of_our_own_goes_out_as_the_class_that_can_say_it(norm, wanted, tmp_path):
    vocabulary(tmp_path, "gpt2")
    tokenizer = read_tokenizer(tmp_path, None, None)
    encoder = EncoderConfig.presets["gpt2" if norm == "before" else "gpt"]
    fed = msgspec.structs.replace(encoder.feedforward, inner=128)
    encoder = msgspec.structs.replace(encoder, layers=2, width=32, mixer=Attention(heads=2, causal=True), feedforward=fed)
    config = ModelConfig(encoder=encoder, vocabulary=300, heads={"words": LMHeadConfig(transform=False, bias=False)})
    checkpoint.save(tmp_path / "ours", build_model(config, 0), tokenizer, {}, {"tokenizer": tokenizer.fingerprint})
    result = run("export", model=tmp_path / "ours", out=tmp_path / "hf", check=True)
    assert result["class"] == wanted and max(result["differences"].values()) < 1e-5


@pytest.mark.parametrize(("preset", "kind"), [("gpt2", "gpt2"), ("gpt", "openai-gpt")])
def test_a_gpt_that_none_of_theirs_can_say_is_refused_for_its_own_fault(preset, kind, tmp_path):
    vocabulary(tmp_path, "gpt2")
    encoder = msgspec.structs.replace(EncoderConfig.presets[preset], layers=1, width=32, mixer=Attention(heads=2, causal=True))
    config = ModelConfig(encoder=encoder, vocabulary=300, heads={"words": LMHeadConfig(transform=False, tied=False)})
    with pytest.raises(UserError, match=f"Hugging Face's {kind}"):
        choose_target(build_model(config, 0), read_tokenizer(tmp_path, None, None), CheckpointRecord())


@pytest.mark.parametrize(("preset", "words", "count"), [
    ("gpt", 40_478, 116_534_784), ("gpt2", 50_257, 124_439_808), ("gpt2-medium", 50_257, 354_823_168),
    ("gpt2-large", 50_257, 774_030_080), ("gpt2-xl", 50_257, 1_557_611_200),
])  # fmt: skip
def test_presets_have_the_published_sizes(preset, words, count):
    head = LMHeadConfig(transform=False, bias=False)
    model = build_meta_model(ModelConfig(encoder=EncoderConfig.presets[preset], vocabulary=words, heads={"words": head}))
    assert sum(weight.numel() for weight in model.parameters()) == count


@pytest.mark.parametrize("kind", ["gpt2", "gpt"])
def test_texts_are_cut_as_by_transformers(kind, tmp_path):
    vocabulary(tmp_path, kind)
    files = {"vocab": str(tmp_path / "vocab.json"), "merges": str(tmp_path / "merges.txt")}
    peer = transformers.GPT2Tokenizer(**files) if kind == "gpt2" else transformers.OpenAIGPTTokenizer(**files)
    ours = read_tokenizer(tmp_path, None, None)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    peer.save_pretrained(tmp_path / "json")
    assert (tmp_path / "json/tokenizer.json").exists()
    for tokenizer in (ours, Tokenizer.load(tmp_path / "saved"), read_tokenizer(tmp_path / "json", None, None)):
        for text in [*TEXTS, *prose(3, seed=5).splitlines()]:
            wanted = peer.encode(text, add_special_tokens=False)
            assert tokenizer.encode(text).ids == wanted
            if kind == "gpt2":
                assert tokenizer.decode(wanted) == text
        assert tokenizer.cls_token_id == tokenizer.sep_token_id == tokenizer.pad_token_id == tokenizer.mask_token_id


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel"])
def test_what_is_written_is_what_transformers_writes(name, tmp_path):
    original = theirs(name, tmp_path / "hf")
    _, _, tokenizer = imported(tmp_path / "hf", tmp_path / "ours")
    predictor = bertsmith.load(tmp_path / "ours")
    for text in ("the cat of many", "when we"):
        ids = tokenizer.encode(text).ids
        for search, theirs_ in (
            ({"kind": "greedy"}, {"do_sample": False}),
            ({"kind": "beam", "size": 3, "alpha": 0.0}, {"num_beams": 3, "length_penalty": 0.0, "early_stopping": False}),
        ):
            more = {"max_new_tokens": 20, "pad_token_id": 0, "eos_token_id": tokenizer.sep_token_id}
            wanted = original.generate(torch.tensor([ids]), **more, **theirs_)[0, len(ids) :].tolist()
            found = predictor.generate(text, **search, tokens=20)
            assert found["tokens"] + [tokenizer.sep_token_id] * found["ended"] == wanted


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "OpenAIGPTLMHeadModel"])
def test_an_imported_model_goes_on_learning(name, tmp_path):
    theirs(name, tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "ours")
    (tmp_path / "text.txt").write_text(prose(30), encoding="utf-8")
    corpus = prepared(tmp_path / "text.txt", tmp_path / "ours", tmp_path / "corpus")
    few = ["train.batch_tokens=256", "length=32", "train.rate=3e-3"]
    words = [f"corpus={corpus}", f"init={tmp_path / 'ours'}", "objective=causal", "held_out=0.2", *few]
    made = answer("pretrain", *words, f"out={tmp_path / 'more'}", "train.steps=40")
    first = json.loads((tmp_path / "more/metrics.jsonl").read_text().splitlines()[0])
    assert made["valid_loss"] < first["loss"]
    rows = [json.dumps({"text": text, "label": label}) for text, label in (("the people", "a"), ("no way", "b"))]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows * 9), encoding="utf-8")
    words = ["task=classify", f"model={tmp_path / 'more'}", f"data.train={tmp_path / 'rows.jsonl'}", "lm=0.5", *few]
    answer("finetune", *words, f"out={tmp_path / 'taught'}", "train.epochs=80", "train.head_rate=10")
    assert bertsmith.load(tmp_path / "taught")("no way")["label"] == "b"


def test_a_sampled_continuation_is_among_the_likely(tmp_path):
    theirs("GPT2LMHeadModel", tmp_path / "hf")
    imported(tmp_path / "hf", tmp_path / "ours")
    predictor = bertsmith.load(tmp_path / "ours")
    found = predictor.generate(["the cat"] * 2, kind="sample", top_k=1, tokens=5)
    greedy = predictor.generate("the cat", tokens=5)
    assert found[0]["tokens"] == found[1]["tokens"] == greedy["tokens"]
    assert np.isfinite(greedy["log"])
