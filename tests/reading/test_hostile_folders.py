"""Folders and files whose contents claim more than they hold: each was a hang, gigabytes of memory or a traceback once."""

import json
import os
import shutil
import tracemalloc

import h5py
import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.artifacts import write_manifest
from bertsmith.convert.tf_checkpoint.bundle import Bundle
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.building import build_for_weights
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tokenization.tokenizer import Tokenizer
from bertsmith.word_vectors.files import read_vectors
from tests.support.cli import run_cli, run_cli_error
from tests.support.elmo_files import write_published_files
from tests.support.google_checkpoint import write_checkpoint
from tests.support.texts import VOCAB, make_english_text

ENCODER = EncoderConfig(num_hidden_layers=2, hidden_size=16, mixer=Attention(num_attention_heads=2), max_position_embeddings=32)


@pytest.fixture(scope="module")
def sealed_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    model = build_model(ModelConfig(encoder=ENCODER, vocab_size=len(VOCAB)), 0)
    checkpoint.save(folder, model, Tokenizer.from_vocab(VOCAB), {"result": {}}, {})
    return folder


@pytest.fixture
def model(sealed_model, tmp_path):
    """An unsealed copy."""
    shutil.copytree(sealed_model, tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink()
    return tmp_path / "model"


def change(path, *keys, value):
    """Set one value of a JSON file."""
    record = json.loads(path.read_text())
    table = record
    for key in keys[:-1]:
        table = table[key]
    table[keys[-1]] = value
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("vocab_size",), 10**12, r"word_embeddings.weight has shape \[\d+, 16\], not \[1000000000000, 16\]"),
        (("vocab_size",), 2**40, "does not match its config.json"),
        (("vocab_size",), 2**62, "vocab_size must be at most 1099511627776"),
        (("encoder", "num_hidden_layers"), 10**7, "num_hidden_layers must be at most 10000"),
        (
            ("encoder", "num_hidden_layers"),
            10_000,
            r"encoder.num_hidden_layers = 10,000, but its weights have only \d+ tensors",
        ),
        (("encoder", "hidden_size"), 2**40, "model"),
        (("encoder", "feedforward", "intermediate_size"), 2**40, "does not match its config.json"),
        (("encoder", "max_position_embeddings"), 10**12, "does not match its config.json"),
        (("encoder", "type_vocab_size"), 2**40, "does not match its config.json"),
        (("encoder", "mixer", "num_attention_heads"), 2**40, "model"),
    ],
)
def test_config_of_a_larger_model_is_refused_without_memory(keys, value, message, model):
    change(model / "config.json", "model", *keys, value=value)
    bertsmith.load  # noqa: B018 (imported before memory is traced)
    tracemalloc.start()
    with pytest.raises(UserError, match=message):
        checkpoint.load(model)
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_buffers_that_no_weight_bounds_are_refused(model, tmp_path):
    encoder = EncoderConfig(num_hidden_layers=1, hidden_size=16, mixer=Attention(num_attention_heads=2),
                            position_embedding_type="sinusoidal", max_position_embeddings=2**34)  # fmt: skip
    config = ModelConfig(encoder=encoder, vocab_size=10)
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in build_model_on_meta(config).state_dict().items()}
    with pytest.raises(UserError, match=r"the model of its config\.json needs 1,099,511,627,776 bytes besides its weights"):
        build_for_weights(config, None, shapes, tmp_path)


def build_model_on_meta(config):
    from bertsmith.model.model import Model

    return Model(config, init_weights=False)


def test_weights_are_loaded_as_saved_without_drawing_random_numbers(sealed_model):
    state = torch.random.get_rng_state()
    loaded, expected = checkpoint.load(sealed_model)[0], build_model(ModelConfig(encoder=ENCODER, vocab_size=len(VOCAB)), 0)
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in loaded.state_dict().items())
    torch.random.set_rng_state(state)
    checkpoint.load(sealed_model)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("token_id", [4 * 10**9, 10**6])
def test_tokenizer_with_an_id_far_behind_the_others_is_refused(token_id, model):
    change(model / "tokenizer.json", "model", "vocab", "the", value=token_id)
    with pytest.raises(UserError, match=rf"tokens, but ids up to {token_id:,}; it is damaged, or its ids have gaps"):
        Tokenizer.load(model)


def test_values_of_a_record_have_their_types(model):
    change(model / "config.json", "max_length", value="64")
    with pytest.raises(UserError, match=r"config.json is damaged: max_length is '64'"):
        bertsmith.load(model)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpus")
    (root / "text.txt").write_text(make_english_text(3), encoding="utf-8")
    run_cli("tokenizer", f"texts={root}/text.txt", "vocab_size=150", f"out={root}/tokenizer", "--quiet")
    run_cli("prepare", f"texts={root}/text.txt", f"tokenizer={root}/tokenizer", f"out={root}/corpus", "workers=1", "--quiet")
    return root / "corpus"


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("tokens.bin", [60_000], "it has the id 60,000 in a vocabulary of"),
        ("sentences.bin", [0, 5, 3], "its offsets do not run from 0 to|its offsets are not in order"),
        ("documents.bin", [1], "its offsets do not run from 0 to"),
    ],
)
def test_corpus_that_is_sealed_with_impossible_contents_is_refused(file, values, message, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "corpus")
    array = np.fromfile(tmp_path / "corpus" / file, np.uint16 if file == "tokens.bin" else np.int64)
    array[: len(values)] = values
    (tmp_path / "corpus" / file).write_bytes(array.tobytes())
    write_manifest(tmp_path / "corpus")
    with pytest.raises(UserError, match=message):
        Corpus.open(tmp_path / "corpus")


@pytest.mark.parametrize(
    ("key", "value"), [("dtype", "O"), ("dtype", "float64"), ("tokens", -1), ("warnings", 1), ("unknown_rate", None)]
)
def test_corpus_card_with_values_of_other_types_is_refused(key, value, corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "corpus")
    change(tmp_path / "corpus" / "card.json", key, value=value)
    write_manifest(tmp_path / "corpus")
    with pytest.raises(UserError, match=r"card.json is damaged: "):
        Corpus.open(tmp_path / "corpus")


def test_word2vec_file_that_goes_on_behind_its_last_vector_is_refused(tmp_path):
    data = b"2 2\na " + bytes(8) + b"b " + bytes(8)
    (tmp_path / "vectors.bin").write_bytes(data + b"\n")
    assert read_vectors(tmp_path / "vectors.bin").words == ["a", "b"]
    (tmp_path / "vectors.bin").write_bytes(data + bytes(9))
    with pytest.raises(UserError, match="9 bytes follow the last of its 2 vectors"):
        read_vectors(tmp_path / "vectors.bin")


def test_npy_of_vectors_with_a_header_of_a_million_million_rows_is_refused(tmp_path):
    np.save(tmp_path / "vectors.npy", np.zeros((3, 4), np.float32))
    data = (tmp_path / "vectors.npy").read_bytes()
    (tmp_path / "vectors.npy").write_bytes(data.replace(b"(3, 4), }           ", b"(1000000000000, 4), }"[:20].ljust(20)))
    (tmp_path / "vectors.words.txt").write_text("a\nb\nc\n")
    with pytest.raises(UserError, match=r"vectors.npy (is damaged|cannot be read)"):
        read_vectors(tmp_path / "vectors.npy")


@pytest.mark.parametrize(
    "options",
    [
        {"lstm": []}, {"lstm": {"n_layers": 10**7}}, {"lstm": {"dim": 10**12}}, {"lstm": {"projection_dim": "6"}},
        {"char_cnn": {"filters": [[1, 10**12]]}}, {"char_cnn": {"filters": 5}}, {"char_cnn": {"n_highway": 10**9}},
        {"char_cnn": {"embedding": {"dim": -1}}}, {"char_cnn": {"max_characters_per_token": 10**30}},
        {"char_cnn": {"activation": None}},
    ],
)  # fmt: skip
def test_elmo_options_that_do_not_fit_the_weights_are_refused(options, tmp_path):
    folder = write_published_files(tmp_path / "elmo")
    path = folder / "tiny_options.json"
    record = json.loads(path.read_text())
    for table, values in options.items():
        record[table] = {**record[table], **values} if isinstance(values, dict) else values
    path.write_text(json.dumps(record))
    assert run_cli_error("import", f"source={folder}", f"out={tmp_path}/out").startswith("error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["huge", "external link", "external file", "group", "integers", "scalar"])
def test_elmo_weights_that_are_not_arrays_of_the_file_are_refused(kind, tmp_path):
    folder = write_published_files(tmp_path / "elmo")
    with h5py.File(folder / "tiny_weights.hdf5", "r+") as file:
        del file["char_embed"]
        if kind == "huge":
            file.create_dataset("char_embed", (2**30, 2**10), "f4", chunks=(64, 64))
        elif kind == "external link":
            file["char_embed"] = h5py.ExternalLink("/dev/zero", "/a")
        elif kind == "external file":
            file.create_dataset("char_embed", (261, 4), "f4", external=[(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)])
        elif kind == "group":
            file.create_group("char_embed")
        else:
            file["char_embed"] = np.ones((261, 4), "i4") if kind == "integers" else np.float32(1)
    assert "tiny_weights.hdf5" in run_cli_error("import", f"source={folder}", f"out={tmp_path}/out")


def test_tensorflow_data_that_goes_on_behind_its_last_tensor_is_refused(tmp_path):
    write_checkpoint(tmp_path / "tf", {"bert/embeddings/word_embeddings": np.ones((4, 2), np.float32)})
    path = next((tmp_path / "tf").glob("*.data-00000*"))
    Bundle(tmp_path / "tf" / "bert_model.ckpt").check_sizes()
    os.truncate(path, 1 << 40)
    with pytest.raises(UserError, match=r"has 1,099,511,627,776 bytes instead of 32"):
        Bundle(tmp_path / "tf" / "bert_model.ckpt").check_sizes()


def test_pickled_tensors_that_repeat_their_memory_are_refused(sealed_model, tmp_path):
    run_cli("export", f"model={sealed_model}", f"out={tmp_path}/hf", "--quiet")
    (tmp_path / "hf" / "model.safetensors").unlink()
    (tmp_path / "hf" / "manifest.json").unlink()
    torch.save(
        {"bert.embeddings.word_embeddings.weight": torch.ones(1).expand(2**20, 2**20)}, tmp_path / "hf" / "pytorch_model.bin"
    )
    error = run_cli_error("import", f"source={tmp_path}/hf", f"out={tmp_path}/out")
    assert "but its tensors have 4,398,046,511,104" in error
