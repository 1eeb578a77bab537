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
from safetensors.torch import load_file, save_file

import bertsmith
from bertsmith.config import to_dict
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.heads.embedding import EMBEDDING_HEAD, DenseConfig, EmbeddingHeadConfig
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
PROMPTS = {"prompts": {"query": "the people: ", "document": "it was "}, "default_prompt_name": "document"}
DENSE = EmbeddingHeadConfig(layers=(DenseConfig(out_features=24), DenseConfig(out_features=12, activation="none", bias=False)))


def save_embedding_model(folder, encoder, task, head=None):
    """A random model that `task=similar` could have trained."""
    heads = {EMBEDDING_HEAD: head} if head else {}
    model, tokenizer = (
        build_model(ModelConfig(encoder=encoder, vocab_size=len(VOCAB), heads=heads), 0),
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
    for number, module in enumerate(modules[2:], start=2):
        if module == "Dense":
            config, weights = read(f"{number}_Dense/config.json"), load_file(folder / f"{number}_Dense" / "model.safetensors")
            vectors = torch.nn.functional.linear(vectors, weights["linear.weight"], weights.get("linear.bias"))
            assert list(weights["linear.weight"].shape) == [config["out_features"], config["in_features"]]
            vectors = getattr(torch.nn, config["activation_function"].rpartition(".")[2])()(vectors)
    return (torch.nn.functional.normalize(vectors) if modules[-1] == "Normalize" else vectors).numpy()


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_exported_embeddings_match_transformers_with_the_pooling_of_the_folder(encoder, settings, tmp_path):
    source = save_embedding_model(tmp_path / "ours", ENCODERS[encoder], TextSimilarity(**SETTINGS[settings]))
    run_stage("export", model=source, out=tmp_path / "hf")
    ours = bertsmith.load(source).embed(TEXTS)
    np.testing.assert_allclose(ours, embed_by_hand(tmp_path / "hf", TEXTS), atol=1e-5)
    assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5) == ("normalize" in SETTINGS[settings])


@pytest.mark.parametrize("normalize", [False, True])
def test_dense_layers_and_prompts_come_and_go(normalize, tmp_path):
    task = TextSimilarity(normalize=normalize, **PROMPTS)
    source = save_embedding_model(tmp_path / "ours", BERT_ENCODER, task, DENSE)
    run_stage("export", model=source, out=tmp_path / "hf")
    ours = bertsmith.load(source)
    assert (ours.embed(TEXTS).shape, ours.embedding_size, ours.hidden_size) == ((3, 12), 12, 32)
    prompts = PROMPTS["prompts"]
    by_hand = [embed_by_hand(tmp_path / "hf", [prompts[name] + text for text in TEXTS]) for name in ("document", "query")]
    np.testing.assert_allclose(ours.embed(TEXTS), by_hand[0], atol=1e-5)
    np.testing.assert_allclose(ours.embed(TEXTS, prompt_name="query"), by_hand[1], atol=1e-5)
    saved = json.loads((tmp_path / "hf" / "config_sentence_transformers.json").read_text())
    assert {name: saved[name] for name in PROMPTS} == PROMPTS
    import_folder(tmp_path / "hf", tmp_path / "back")
    back = bertsmith.load(tmp_path / "back")
    assert (back.task.prompts, back.task.default_prompt_name, back.task.normalize) == (*PROMPTS.values(), normalize)
    for name, weight in ours.model.state_dict().items():
        assert torch.equal(weight, back.model.state_dict()[name]), name
    np.testing.assert_array_equal(back.embed(TEXTS), ours.embed(TEXTS))


def test_search_puts_the_prompts_of_queries_and_documents(tmp_path):
    model = bertsmith.load(save_embedding_model(tmp_path / "ours", BERT_ENCODER, TextSimilarity(**PROMPTS)))
    plain = bertsmith.load(save_embedding_model(tmp_path / "plain", BERT_ENCODER, TextSimilarity()))
    prompts = PROMPTS["prompts"]
    hits = model.nearest("one", TEXTS, top_k=3)
    expected = plain.nearest(prompts["query"] + "one", plain.embed([prompts["document"] + text for text in TEXTS]), top_k=3)
    assert [hit["corpus_id"] for hit in hits] == [hit["corpus_id"] for hit in expected]
    np.testing.assert_allclose([hit["score"] for hit in hits], [hit["score"] for hit in expected], atol=1e-6)
    score = plain(prompts["document"] + "one", prompts["document"] + "two")["score"]
    assert model("one", "two")["score"] == pytest.approx(score, abs=1e-6)
    with pytest.raises(UserError, match="prompt_name=passage is not known; choose from query, document"):
        model.embed("one", prompt_name="passage")
    with pytest.raises(UserError, match="this model has no prompts"):
        plain.embed("one", prompt_name="query")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_import_reads_dense_layers_of_older_folders(suffix, tmp_path):
    save_sentence_folder(tmp_path / "st", dense={})
    if suffix == ".bin":
        path = tmp_path / "st" / "2_Dense" / "model.safetensors"
        torch.save(load_file(path), path.with_name("pytorch_model.bin"))
        path.unlink()
    import_folder(tmp_path / "st", tmp_path / "ours")
    model = bertsmith.load(tmp_path / "ours")
    run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")
    assert model.embed(TEXTS).shape == (3, 12)
    np.testing.assert_allclose(model.embed(TEXTS), embed_by_hand(tmp_path / "back", TEXTS), atol=1e-5)


def test_fine_tuning_trains_the_dense_layers_further(tmp_path):
    source = save_embedding_model(tmp_path / "ours", BERT_ENCODER, TextSimilarity(), DENSE)
    rows = [{"text": "the people", "text_b": "the people made", "score": score} for score in (0.0, 1.0, 0.5, 0.2)]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    run = bertsmith.finetune(
        task="similar", model=str(source), data={"train": str(data), "dev": str(data)}, out=str(tmp_path / "tuned"),
        train={"steps": 2, "device": "cpu", "learning_rate": 1e-3},
    )  # fmt: skip
    before, after = (bertsmith.load(folder).model.heads[EMBEDDING_HEAD] for folder in (source, tmp_path / "tuned"))
    moved = (before.layers[0].weight - after.layers[0].weight).abs().max()
    assert 0 < moved < 0.01 and run.model.embed("one").shape == (12,)


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


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="pip install --no-deps sentence-transformers")
def test_sentence_transformers_reads_our_dense_layers_and_prompts_and_we_its(tmp_path):
    from sentence_transformers import SentenceTransformer

    task = TextSimilarity(normalize=True, **PROMPTS)
    source = save_embedding_model(tmp_path / "ours", BERT_ENCODER, task, DENSE)
    run_stage("export", model=source, out=tmp_path / "hf")
    ours, theirs = bertsmith.load(source), SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    for options in ({}, {"prompt_name": "query"}):
        np.testing.assert_allclose(ours.embed(TEXTS, **options), theirs.encode(TEXTS, **options), atol=1e-5)
    np.testing.assert_allclose(ours.embed(TEXTS, prompt_name="query"), theirs.encode_query(TEXTS), atol=1e-5)
    theirs.save(str(tmp_path / "saved"))
    import_folder(tmp_path / "saved", tmp_path / "back")
    back = bertsmith.load(tmp_path / "back")
    assert (back.task.prompts, back.max_length) == (ours.task.prompts, ours.max_length)
    np.testing.assert_allclose(back.embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)


def save_sentence_folder(
    folder, modules=("Transformer", "Pooling"), pooling=None, settings=None, path="", dense=None, prompts=None
):
    """A folder as sentence-transformers writes it, around a random BERT."""
    (folder / path).mkdir(parents=True, exist_ok=True)
    save_random_model("BertModel", folder / path)
    names = {"Transformer": path, "Pooling": "1_Pooling", "Normalize": "3_Normalize", "Dense": "2_Dense", "LayerNorm": "2"}
    if dense is not None:
        modules = ("Transformer", "Pooling", "Dense")
        (folder / "2_Dense").mkdir()
        activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
        config = {"in_features": 32, "out_features": 12, "bias": True, **activation, **dense}
        (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
        generator = torch.Generator().manual_seed(0)
        weights = {
            "linear.weight": torch.randn(12, 32, generator=generator),
            "linear.bias": torch.randn(12, generator=generator),
        }
        save_file(weights, folder / "2_Dense" / "model.safetensors")
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
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
        (
            {"modules": ("Transformer", "Pooling", "LayerNorm")},
            "modules.json has the module LayerNorm, which bertsmith does not",
        ),
        ({"modules": ("Transformer", "Dense", "Pooling")}, "modules.json has the modules Transformer, Dense, Pooling"),
        ({"pooling": {"include_prompt": False}, "prompts": PROMPTS}, "include_prompt = false"),
        ({"prompts": {"prompts": {"query": 3}}}, "it must map names to texts"),
        ({"prompts": {"prompts": {}, "default_prompt_name": "query"}}, "is not one of its prompts"),
        ({"dense": {"activation_function": "torch.nn.modules.activation.Softsign"}}, "activation_function = Softsign"),
        ({"dense": {"in_features": 31}}, r"has the tensors .* but its config.json implies"),
        ({"dense": {"out_features": -4}}, "they must be sizes"),
        ({"dense": {"use_residual": True}}, "use_residual = true"),
        ({"dense": {"module_output_name": "other"}}, "only sentence_embedding is supported"),
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
