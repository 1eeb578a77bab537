"""Folders of sentence-transformers: pooling, normalization and max_seq_length survive export and import.

The oracle is transformers with the pooling that `1_Pooling/config.json` describes, computed here; the slow test asks the
package itself, where it is installed.
"""

import json
from importlib.util import find_spec

import msgspec
import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.config import to_dict
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.presets import PRESETS
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.tasks import TextSimilarity
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.huggingface_models import import_folder, run_stage, save_random_model, transformers
from tests.support.models import BERT_ENCODER
from tests.support.texts import VOCAB

TEXTS = ["The people made a way, and then they saw it.", "one", "it was not there " * 20]
MAX_LENGTH = 24
ENCODERS = {
    "bert": BERT_ENCODER,
    "gpt2": msgspec.structs.replace(
        PRESETS["gpt2"], num_hidden_layers=2, hidden_size=32, mixer=Attention(num_attention_heads=2, causal=True),
        feedforward=FeedForwardConfig(intermediate_size=64, hidden_act="gelu-tanh"), max_position_embeddings=48,
        initializer_range=0.2,
    ),
}  # fmt: skip
SETTINGS = {"mean": {}, "cls": {"pooling": "cls"}, "normalize": {"normalize": True}}


def save_embedding_model(folder, encoder, task):
    """A random model that `task=similar` could have trained."""
    model, tokenizer = (
        build_model(ModelConfig(encoder=encoder, vocab_size=len(VOCAB), heads={}), 0),
        Tokenizer.from_vocab(VOCAB),
    )
    checkpoint.save(folder, model, tokenizer, {}, {"task": to_dict(task), "max_length": MAX_LENGTH})
    return folder


def embed_by_hand(folder, texts):
    """transformers' hidden states of a folder, pooled and normalized as its modules say."""
    read = lambda name: json.loads((folder / name).read_text())
    modules, pooling = [module["type"].rpartition(".")[2] for module in read("modules.json")], read("1_Pooling/config.json")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    max_length = read("sentence_bert_config.json")["max_seq_length"]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.inference_mode():
        hidden = transformers.AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None].float()
    vectors = {
        "mean": (hidden * mask).sum(1) / mask.sum(1),
        "cls": hidden[:, 0],
        "lasttoken": hidden[torch.arange(len(texts)), inputs["attention_mask"].sum(1) - 1],
    }[pooling["pooling_mode"]]
    assert [key for key, value in pooling.items() if value is True and key.startswith("pooling_mode_")] == [
        {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "lasttoken": "pooling_mode_lasttoken"}[
            pooling["pooling_mode"]
        ]
    ]
    return (torch.nn.functional.normalize(vectors) if modules == ["Transformer", "Pooling", "Normalize"] else vectors).numpy()


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_exported_embeddings_match_transformers_with_the_pooling_of_the_folder(encoder, settings, tmp_path):
    source = save_embedding_model(tmp_path / "ours", ENCODERS[encoder], TextSimilarity(**SETTINGS[settings]))
    run_stage("export", model=source, out=tmp_path / "hf")
    ours = bertsmith.load(source).embed(TEXTS)
    np.testing.assert_allclose(ours, embed_by_hand(tmp_path / "hf", TEXTS), atol=1e-5)
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5) == ("normalize" in SETTINGS[settings])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="pip install --no-deps sentence-transformers")
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_exported_embeddings_match_sentence_transformers(encoder, settings, tmp_path):
    from sentence_transformers import SentenceTransformer

    source = save_embedding_model(tmp_path / "ours", ENCODERS[encoder], TextSimilarity(**SETTINGS[settings]))
    run_stage("export", model=source, out=tmp_path / "hf")
    theirs = SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    np.testing.assert_allclose(bertsmith.load(source).embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    theirs.save(str(tmp_path / "saved"))
    import_folder(tmp_path / "saved", tmp_path / "back")
    np.testing.assert_allclose(bertsmith.load(tmp_path / "back").embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)


def save_sentence_folder(folder, modules=("Transformer", "Pooling"), pooling=None, settings=None, path=""):
    """A folder as sentence-transformers writes it, around a random BERT."""
    (folder / path).mkdir(parents=True, exist_ok=True)
    save_random_model("BertModel", folder / path)
    names = {"Transformer": path, "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "2_Dense"}
    (folder / "1_Pooling").mkdir()
    listed = [{"idx": i, "name": str(i), "path": names[name], "type": f"sentence_transformers.models.{name}"}
              for i, name in enumerate(modules)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
    (folder / path / "sentence_bert_config.json").write_text(json.dumps(settings or {"max_seq_length": 16}))


@pytest.mark.parametrize("path", ["", "0_Transformer"])
def test_import_keeps_pooling_normalize_and_max_seq_length(path, tmp_path):
    save_sentence_folder(tmp_path / "st", ("Transformer", "Pooling", "Normalize"), {"pooling_mode_cls_token": True}, path=path)
    result, _, _ = import_folder(tmp_path / "st", tmp_path / "ours", check=True)
    model = bertsmith.load(tmp_path / "ours")
    assert (result["task"], model.task, model.max_length) == ("similar", TextSimilarity(pooling="cls", normalize=True), 16)
    assert (len(model.hidden_states(TEXTS[2]).tokens), np.linalg.norm(model.embed("one"))) == (16, pytest.approx(1, abs=1e-5))
    run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")
    np.testing.assert_allclose(model.embed(TEXTS), embed_by_hand(tmp_path / "back", TEXTS), atol=1e-5)
    assert json.loads((tmp_path / "back" / "sentence_bert_config.json").read_text())["max_seq_length"] == 16


@pytest.mark.parametrize("pooling", [{"pooling_mode": "mean"}, {"pooling_mode": ["mean"]}, {"word_embedding_dimension": 32}])
def test_import_reads_the_newer_pooling_mode(pooling, tmp_path):
    save_sentence_folder(tmp_path / "st", pooling=pooling, settings={"max_seq_length": None})
    import_folder(tmp_path / "st", tmp_path / "ours")
    model = bertsmith.load(tmp_path / "ours")
    assert (model.task, model.max_length) == (TextSimilarity(), model.model.config.encoder.max_position_embeddings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense")}, "modules.json has the module Dense, which bertsmith does not have"),
        ({"pooling": {"pooling_mode_max_tokens": True}}, "pooling=max is not supported; supported: mean, cls"),
        ({"pooling": {"pooling_mode": ["mean", "max"]}}, r"concatenates several poolings \(mean, max\)"),
        ({"settings": {"max_seq_length": "long"}}, "max_seq_length = 'long'"),
        ({"path": "../elsewhere"}, "which is not a folder in"),
    ],
)
def test_import_refuses_modules_that_it_would_lose(settings, message, tmp_path):
    save_sentence_folder(tmp_path / "st", **settings)
    with pytest.raises(UserError, match=message):
        import_folder(tmp_path / "st", tmp_path / "ours")


def test_import_takes_the_length_of_the_tokenizer_where_newer_versions_write_it(tmp_path):
    save_sentence_folder(tmp_path / "st", settings={"transformer_task": "feature-extraction"})
    (tmp_path / "st" / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 20}))
    import_folder(tmp_path / "st", tmp_path / "ours")
    assert bertsmith.load(tmp_path / "ours").max_length == 20
