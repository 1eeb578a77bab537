"""ELMo's published files: against the equations, character by character and token by token, and against published outputs."""

import importlib.util
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import bertsmith
from bertsmith.convert import elmo
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.support.cli import run_cli_error, run_cli_json
from tests.support.elmo_files import CELL_SIZE, CLIP, FILTERS, LAYERS, PROJECTION_DIM, write_published_files

SENTENCES = ["The cat sat", "naïve 玄黄 " + "x" * 60, "a"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference_char_ids(word):
    chars = {"<S>": [256], "</S>": [257]}.get(word, list(word.encode()))[:48]
    row = [258, *chars, 259]
    return row + [260] * (50 - len(row))


def reference_word_vector(file, word):
    x = file["char_embed"][...].astype(float)[reference_char_ids(word)]  # their rows have no entry for "no word"
    features = []
    for i, (kernel_size, _) in enumerate(FILTERS):
        kernel, bias = file[f"CNN/W_cnn_{i}"][0], file[f"CNN/b_cnn_{i}"][...]
        windows = [
            np.einsum("wi,wio->o", x[start : start + kernel_size], kernel) + bias for start in range(50 - kernel_size + 1)
        ]
        features.append(np.maximum(np.max(windows, 0), 0))
    x = np.concatenate(features)
    for i in range(2):
        highway = file[f"CNN_high_{i}"]
        gate = sigmoid(x @ highway["W_carry"][...] + highway["b_carry"][...])
        x = gate * np.maximum(x @ highway["W_transform"][...] + highway["b_transform"][...], 0) + (1 - gate) * x
    return x @ file["CNN_proj/W_proj"][...] + file["CNN_proj/b_proj"][...]


def reference_lstm(cell, rows):
    """TensorFlow's LSTMCell with projection: gates i, j, f, o; forget bias 1; cell and projection are clipped."""
    cell_state, hidden, outputs = np.zeros(CELL_SIZE), np.zeros(PROJECTION_DIM), []
    for row in rows:
        input_gate, candidate, forget_gate, output_gate = np.split(
            np.concatenate([row, hidden]) @ cell["W_0"][...] + cell["B"][...], 4
        )
        cell_state = np.clip(sigmoid(forget_gate + 1) * cell_state + sigmoid(input_gate) * np.tanh(candidate), -CLIP, CLIP)
        hidden = np.clip((sigmoid(output_gate) * np.tanh(cell_state)) @ cell["W_P_0"][...], -CLIP, CLIP)
        outputs.append(hidden)
    return np.array(outputs)


def reference_layers(file, words, residual):
    tokens = np.array([reference_word_vector(file, word) for word in ["<S>", *words, "</S>"]])
    directions = []
    for direction in range(2):
        x = tokens[::-1] if direction else tokens
        states = [x]
        for layer in range(LAYERS):
            output = reference_lstm(file[f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"], x)
            x = output + x if layer and residual else output
            states.append(x)
        directions.append([state[::-1] if direction else state for state in states])
    return [np.concatenate(states_of_layer, -1) for states_of_layer in zip(*directions, strict=True)]


@pytest.mark.parametrize("residual", [True, False])
def test_elmo_layers_match_the_equations(tmp_path, residual):
    source = write_published_files(tmp_path / "theirs", residual)
    result = run_cli_json("import", f"source={source}", f"out={tmp_path / 'ours'}")
    assert (result["family"], result["num_hidden_layers"], result["hidden_size"]) == ("elmo", LAYERS, 2 * PROJECTION_DIM)
    model, tokenizer, _ = checkpoint.load(tmp_path / "ours")
    ids = [[tokenizer.cls_token_id, *tokenizer.encode(text).ids, tokenizer.sep_token_id] for text in SENTENCES]
    layout, all_hidden_states = Layout.from_lengths([len(sequence) for sequence in ids]), []
    with torch.inference_mode():
        out = model(Inputs(torch.tensor([token_id for sequence in ids for token_id in sequence]), layout), all_hidden_states)
    with h5py.File(source / "tiny_weights.hdf5") as file:
        expected = [
            np.concatenate(state)
            for state in zip(*(reference_layers(file, sentence.split(), residual) for sentence in SENTENCES), strict=True)
        ]
    assert len(all_hidden_states) == LAYERS + 1 and torch.equal(out, all_hidden_states[-1])
    for actual, expected_state in zip(all_hidden_states, expected, strict=True):
        assert_close(actual, torch.from_numpy(expected_state).float(), atol=1e-5, rtol=1e-5)


def test_elmo_fixture_reaches_the_clip_value(tmp_path):
    """Otherwise the test above would pass without clipping."""
    source = write_published_files(tmp_path / "theirs")
    model, tokenizer = elmo.read(*elmo.find_files(source))
    ids = torch.tensor([tokenizer.cls_token_id, *tokenizer.encode("The cat sat").ids, tokenizer.sep_token_id])
    output = model.encoder.stack.layers[0].mixer(model.encoder.input_embeddings(ids, None, None), Layout.from_lengths([5]))
    assert float(output.detach().abs().max()) == pytest.approx(CLIP)


def test_elmo_out_of_vocabulary_words_have_stable_vectors(tmp_path):
    run_cli_json("import", f"source={write_published_files(tmp_path / 'theirs')}", f"out={tmp_path / 'ours'}")
    model = bertsmith.load(tmp_path / "ours")
    first, other, again = (model.embed(text) for text in ("zyzzyva", "aardvark", "zyzzyva"))
    assert np.array_equal(first, again) and not np.allclose(first, other)
    assert np.array_equal(bertsmith.load(tmp_path / "ours").embed("zyzzyva"), first)  # no state is needed


def test_elmo_import_rejects_other_files(tmp_path):
    source = write_published_files(tmp_path / "theirs", n_characters=100)
    error = run_cli_error("import", f"source={source}", f"out={tmp_path / 'ours'}")
    assert "n_characters must be 262" in error and "not the options.json" not in error
    (source / "tiny_options.json").write_text("{}")
    assert "not the options.json" in run_cli_error("import", f"source={source}", f"out={tmp_path / 'ours'}")
    valid = write_published_files(tmp_path / "good")
    (valid / "tiny_weights.hdf5").write_bytes(b"no hdf5")
    with pytest.raises(UserError, match=r"tiny_weights\.hdf5 does not match"):
        elmo.read(*elmo.find_files(valid))
    (valid / "other_options.json").write_text("{}")
    with pytest.raises(UserError, match=r"2 \*options\.json"):
        elmo.find_files(valid)


@pytest.mark.slow
def test_elmo_matches_the_published_outputs_of_the_tiny_model(tmp_path):
    """From AllenNLP's wheel, which `make test-slow` installs. Their LSTM states carry over from sentence to sentence."""
    spec = importlib.util.find_spec("allennlp")
    assert spec and spec.submodule_search_locations, "allennlp is not installed; `make test-slow` does that"
    folder = Path(spec.submodule_search_locations[0]) / "tests" / "fixtures" / "elmo"
    model, tokenizer = elmo.read(folder / "options.json", folder / "lm_weights.hdf5")
    encoder = model.encoder
    with torch.inference_mode():
        words = (folder / "vocab_test.txt").read_text().splitlines()
        boundary_ids = {"<S>": tokenizer.cls_token_id, "</S>": tokenizer.sep_token_id}
        ids = torch.tensor([boundary_ids[word] if word in boundary_ids else tokenizer.lexicon.get_id(word) for word in words])
        with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
            assert_close(encoder.input_embeddings(ids, None, None).chunk(2, -1)[0], torch.from_numpy(file["embedding"][...]),
                         atol=1e-5, rtol=1e-5)  # fmt: skip
        for file_number, sentences in enumerate(json.loads((folder / "sentences.json").read_text())):
            states = [None] * encoder.config.num_hidden_layers
            with h5py.File(folder / f"lm_embeddings_{file_number}.hdf5") as file:
                expected = [torch.from_numpy(np.concatenate(file[str(i)], -1)) for i in range(len(sentences))]
            for text, expected_state in zip(sentences, expected, strict=True):
                row = torch.tensor([tokenizer.cls_token_id, *tokenizer.encode(text).ids, tokenizer.sep_token_id])
                layout = Layout.from_lengths([len(row)])
                x = encoder.input_embeddings(row, layout, None)
                for layer, block in enumerate(encoder.stack.layers):
                    output, states[layer] = block.mixer.forward_with_state(x, layout, states[layer])
                    x, _ = block.mixer_norm(x, output)
                assert_close(x[1:-1], expected_state, atol=1e-5, rtol=1e-5)
