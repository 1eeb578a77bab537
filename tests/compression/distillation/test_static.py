"""The static student: its table, its weights, its training, and the libraries that open it."""

import json

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.compression.distillation.static.table import Projection, corpus_probabilities, sif_weights, zipf_probabilities
from bertsmith.corpus.store import Corpus
from bertsmith.model import checkpoint
from bertsmith.tensors import load_tensors
from tests.support.cli import kill_cli_when_exists, run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model

TEXTS = ["the people of the time", "people and time", "time"]


@pytest.fixture
def teacher(tmp_path):
    return save_model(tmp_path / "teacher")


def build(teacher, out, *words):
    return run_cli_json("distill", f"teacher={teacher}", "student=static", f"out={out}", *words)


def train(teacher, corpus, out, *words):
    keys = ["student.vector_size=16", "train.epochs=5", "train.batch_tokens=256", "train.learning_rate=1e-2"]
    return ["distill", f"teacher={teacher}", "student=static", f"corpus={corpus}", f"out={out}", *keys, *words]


def test_components_are_those_of_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition")
    vectors = np.random.default_rng(0).normal(size=(80, 12)).astype(np.float32) * np.arange(1, 13, dtype=np.float32)
    ours, theirs = Projection.fit(vectors, 5)(vectors), decomposition.PCA(5).fit_transform(vectors)
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours * signs, theirs, atol=1e-3)


def test_table_is_the_pooled_vector_of_each_token_times_its_weight(teacher, tmp_path):
    """SIF with Zipf's law: a / (a + p), p = 1 / rank normalized over the vocabulary without special tokens."""
    result = build(teacher, tmp_path / "out", "student.vector_size=8", "student.sif=1e-2")
    model, tokenizer, _ = checkpoint.load(tmp_path / "out")
    table = model.encoder.word_embeddings.weight.detach().numpy()
    assert result["vector_size"] == 8 and table.shape == (len(tokenizer), 8)
    ids = tokenizer.non_special_ids
    base = bertsmith.load(teacher)
    framed = [np.array([tokenizer.cls_token_id, i, tokenizer.sep_token_id]) for i in ids]
    pooled = np.stack([states.mean(0) for states in base.engine.hidden_states(framed)])
    _, _, components = np.linalg.svd(pooled - pooled.mean(0), full_matrices=False)
    expected = (pooled - pooled.mean(0)) @ components[:8].T
    p = 1 / np.arange(1, len(ids) + 1)
    expected *= (1e-2 / (1e-2 + p / p.sum()))[:, None]
    signs = np.sign((expected * table[ids]).sum(0))
    np.testing.assert_allclose(table[ids], expected * signs, atol=1e-4)
    assert not table[tokenizer.unk_token_id].any()


def test_frequencies_come_from_the_corpus(corpus):
    opened = Corpus.open(corpus)
    p, zipf = corpus_probabilities(opened.tokenizer, opened.tokens), zipf_probabilities(opened.tokenizer)
    assert p.sum() == pytest.approx(1) and zipf.sum() == pytest.approx(1)
    the = opened.tokenizer.id_to_token.index("the")
    assert p[the] == pytest.approx((np.asarray(opened.tokens) == the).sum() / len(opened.tokens), rel=0.1)
    assert sif_weights(p, 1e-3)[the] < sif_weights(p, 1e-3)[opened.tokenizer.non_special_ids].mean()
    assert (sif_weights(p, 0) == 1).all()


def test_vectors_are_means_and_the_fast_path_equals_the_forward_pass(teacher, tmp_path):
    build(teacher, tmp_path / "out")
    model = bertsmith.load(tmp_path / "out")
    table, tokenizer = model.engine.vector_table, model.tokenizer
    rows = [[tokenizer.id_to_token.index(word) for word in text.split()] for text in TEXTS]
    np.testing.assert_allclose(model.embed(TEXTS), [table[ids].mean(0) for ids in rows], atol=1e-6)
    with torch.inference_mode():
        hidden, layout = model.engine.compute_hidden_states([np.array(ids) for ids in rows])
    np.testing.assert_allclose(model.embed(TEXTS), layout.mean_pool(hidden).numpy(), atol=1e-6)
    assert not model.embed("@@@ ~").any()


def test_training_brings_vectors_nearer_to_the_teacher_and_resumes(teacher, corpus, tmp_path):
    command = train(teacher, corpus, tmp_path / "out", "train.save_every=5", "train.eval_every=5", "train.log_every=1")
    result = run_cli_json(*command)
    assert not run_cli_json(*command)["created"]
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    losses = [row["cosine_loss"] for row in rows if row.get("split") == "valid"]
    assert result["valid_cosine_loss"] == losses[-1] < losses[0]
    killed = train(teacher, corpus, tmp_path / "killed", "train.save_every=5", "train.eval_every=5", "train.log_every=1")
    kill_cli_when_exists(*killed, until=tmp_path / "killed/state/step-5")
    assert "resuming from" in run_cli(*killed).stderr
    whole, resumed = (load_tensors(tmp_path / name / "model.safetensors") for name in ("out", "killed"))
    assert whole.keys() == resumed.keys() and all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())


def test_model2vec_opens_the_export(teacher, tmp_path):
    """The files of model2vec's format; and its vectors, where it is installed."""
    build(teacher, tmp_path / "out")
    run_cli("export", f"model={tmp_path / 'out'}", "format=model2vec", f"out={tmp_path / 'm2v'}")
    model = bertsmith.load(tmp_path / "out")
    embeddings = load_tensors(tmp_path / "m2v/model.safetensors")
    assert list(embeddings) == ["embeddings"] and np.array_equal(embeddings["embeddings"].numpy(), model.engine.vector_table)
    config = json.loads((tmp_path / "m2v/config.json").read_text())
    assert config["model_type"] == "model2vec" and config["normalize"] is False
    assert [module["type"] for module in json.loads((tmp_path / "m2v/modules.json").read_text())] == [
        "sentence_transformers.models.StaticEmbedding"
    ]
    model2vec = pytest.importorskip("model2vec")
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "m2v").encode(TEXTS)
    np.testing.assert_allclose(model.embed(TEXTS), theirs, atol=1e-5)


def test_gensim_opens_the_export(teacher, tmp_path):
    gensim = pytest.importorskip("gensim.models")
    build(teacher, tmp_path / "out")
    run_cli("export", f"model={tmp_path / 'out'}", "format=vectors", f"out={tmp_path / 'vectors.bin'}")
    vectors = gensim.KeyedVectors.load_word2vec_format(tmp_path / "vectors.bin", binary=True)
    np.testing.assert_allclose(vectors["time"], bertsmith.load(tmp_path / "out").embed("time"), atol=1e-6)


def test_errors_say_what_works(teacher, corpus, tmp_path):
    out = [f"out={tmp_path / 'out'}", "student=static"]
    assert "set corpus=FOLDER" in run_cli_error("distill", f"teacher={teacher}", *out, "train.epochs=2")
    assert "loss does not apply" in run_cli_error("distill", f"teacher={teacher}", *out, "loss=minilm")
    assert "another tokenizer" in run_cli_error("distill", "teacher=mini-en", f"corpus={corpus}", *out)
    build(teacher, tmp_path / "static")
    assert "table of token vectors already" in run_cli_error("distill", f"teacher={tmp_path / 'static'}", *out)
    error = run_cli_error("export", f"model={teacher}", "format=model2vec", f"out={tmp_path / 'm2v'}")
    assert "student=static" in error


def test_sentence_encoders_keep_their_pooling(tmp_path):
    teacher = save_model(tmp_path / "teacher", TASKS["similar"])
    assert build(teacher, tmp_path / "out")["pooling"] == TASKS["similar"].pooling
