"""ELMo's published files: against the equations, one character and one token at a time, and against its own outputs."""

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
from tests.journeys.test_pretraining import answer, refused

FILTERS, NUMBERS, HIDDEN, GIVEN, CLIP, LAYERS = [[1, 3], [2, 4], [4, 5]], 4, 7, 6, 0.15, 2
FOUND = sum(count for _, count in FILTERS)
SENTENCES = ["The cat sat", "naïve 玄黄 " + "x" * 60, "a"]


def published(folder, residual=True, **other):
    """A folder as people download it, its weights drawn at random."""
    rng, folder = np.random.default_rng(0), Path(folder)
    folder.mkdir()
    lstm = {"cell_clip": CLIP, "proj_clip": CLIP, "n_layers": LAYERS, "projection_dim": GIVEN, "dim": HIDDEN}
    spelt = {"filters": FILTERS, "n_highway": 2, "n_characters": 262, "max_characters_per_token": 50, "activation": "relu"}
    options = {"lstm": lstm | {"use_skip_connections": residual}, "char_cnn": spelt | {"embedding": {"dim": NUMBERS}} | other}
    (folder / "tiny_options.json").write_text(json.dumps(options))
    sizes = {"char_embed": (261, NUMBERS), "CNN_proj/W_proj": (FOUND, GIVEN), "CNN_proj/b_proj": (GIVEN,)}
    for number, (width, count) in enumerate(FILTERS):
        sizes |= {f"CNN/W_cnn_{number}": (1, width, NUMBERS, count), f"CNN/b_cnn_{number}": (count,)}
    for number in range(2):
        for name in ("transform", "carry"):
            sizes |= {f"CNN_high_{number}/W_{name}": (FOUND, FOUND), f"CNN_high_{number}/b_{name}": (FOUND,)}
    for way in range(2):
        for layer in range(LAYERS):
            place = f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            sizes |= {f"{place}/W_0": (2 * GIVEN, 4 * HIDDEN), f"{place}/B": (4 * HIDDEN,), f"{place}/W_P_0": (HIDDEN, GIVEN)}
    with h5py.File(folder / "tiny_weights.hdf5", "w") as file:
        for name, size in sizes.items():
            file[name] = rng.normal(0, 0.5, size).astype(np.float32)
    return folder


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def spelt(word):
    letters = {"<S>": [256], "</S>": [257]}.get(word, list(word.encode()))[:48]
    row = [258, *letters, 259]
    return row + [260] * (50 - len(row))


def word_vector(file, word):
    x = file["char_embed"][...].astype(float)[spelt(word)]  # their rows begin at 0: nothing stands for no word
    found = []
    for number, (width, _) in enumerate(FILTERS):
        kernel, bias = file[f"CNN/W_cnn_{number}"][0], file[f"CNN/b_cnn_{number}"][...]
        places = [np.einsum("wi,wio->o", x[at : at + width], kernel) + bias for at in range(50 - width + 1)]
        found.append(np.maximum(np.max(places, 0), 0))
    x = np.concatenate(found)
    for number in range(2):
        at = file[f"CNN_high_{number}"]
        gate = sigmoid(x @ at["W_carry"][...] + at["b_carry"][...])
        x = gate * np.maximum(x @ at["W_transform"][...] + at["b_transform"][...], 0) + (1 - gate) * x
    return x @ file["CNN_proj/W_proj"][...] + file["CNN_proj/b_proj"][...]


def one_way(cell, rows):
    """TensorFlow's LSTMCell with a projection: gates in, new, forget, out; 1 is added to forget; both are clipped."""
    memory, said, outs = np.zeros(HIDDEN), np.zeros(GIVEN), []
    for row in rows:
        enter, new, keep, show = np.split(np.concatenate([row, said]) @ cell["W_0"][...] + cell["B"][...], 4)
        memory = np.clip(sigmoid(keep + 1) * memory + sigmoid(enter) * np.tanh(new), -CLIP, CLIP)
        said = np.clip((sigmoid(show) * np.tanh(memory)) @ cell["W_P_0"][...], -CLIP, CLIP)
        outs.append(said)
    return np.array(outs)


def layers(file, words, residual):
    tokens = np.array([word_vector(file, word) for word in ["<S>", *words, "</S>"]])
    ways = []
    for way in range(2):
        x = tokens[::-1] if way else tokens
        states = [x]
        for layer in range(LAYERS):
            out = one_way(file[f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"], x)
            x = out + x if layer and residual else out
            states.append(x)
        ways.append([state[::-1] if way else state for state in states])
    return [np.concatenate(both, -1) for both in zip(*ways, strict=True)]


@pytest.mark.parametrize("residual", [True, False])
def test_every_layer_is_the_equations_of_the_paper(tmp_path, residual):
    source = published(tmp_path / "theirs", residual)
    made = answer("import", f"source={source}", f"out={tmp_path / 'ours'}")
    assert (made["family"], made["layers"], made["width"]) == ("elmo", LAYERS, 2 * GIVEN)
    model, tokenizer, _ = checkpoint.load(tmp_path / "ours")
    ids = [[tokenizer.cls_token_id, *tokenizer.encode(text).ids, tokenizer.sep_token_id] for text in SENTENCES]
    layout, kept = Layout.from_lengths([len(one) for one in ids]), []
    with torch.inference_mode():
        out = model(Inputs(torch.tensor([number for one in ids for number in one]), layout), kept)
    with h5py.File(source / "tiny_weights.hdf5") as file:
        wanted = [np.concatenate(state) for state in zip(*(layers(file, s.split(), residual) for s in SENTENCES), strict=True)]
    assert len(kept) == LAYERS + 1 and torch.equal(out, kept[-1])
    for ours, theirs in zip(kept, wanted, strict=True):
        assert_close(ours, torch.from_numpy(theirs).float(), atol=1e-5, rtol=1e-5)


def test_the_clip_of_the_fixture_cuts(tmp_path):
    """Else the test above would pass without one."""
    source = published(tmp_path / "theirs")
    model, tokenizer = elmo.read(*elmo.find_files(source))
    ids = torch.tensor([tokenizer.cls_token_id, *tokenizer.encode("The cat sat").ids, tokenizer.sep_token_id])
    out = model.encoder.stack.blocks[0].mixer(model.encoder.front(ids, None, None), Layout.from_lengths([5]))
    assert float(out.detach().abs().max()) == pytest.approx(CLIP)


def test_words_never_seen_have_vectors_of_their_own_and_the_same_each_time(tmp_path):
    answer("import", f"source={published(tmp_path / 'theirs')}", f"out={tmp_path / 'ours'}")
    model = bertsmith.load(tmp_path / "ours")
    first, other, again = (model.embed(text) for text in ("zyzzyva", "aardvark", "zyzzyva"))
    assert np.array_equal(first, again) and not np.allclose(first, other)
    assert np.array_equal(bertsmith.load(tmp_path / "ours").embed("zyzzyva"), first)  # nothing had to be kept


def test_what_is_no_elmo_is_refused_by_name(tmp_path):
    source = published(tmp_path / "theirs", n_characters=100)
    assert "262 characters" in refused("import", f"source={source}", f"out={tmp_path / 'ours'}")
    (source / "tiny_options.json").write_text("{}")
    assert "not the options.json" in refused("import", f"source={source}", f"out={tmp_path / 'ours'}")
    good = published(tmp_path / "good")
    (good / "tiny_weights.hdf5").write_bytes(b"no hdf5")
    with pytest.raises(UserError, match=r"tiny_weights\.hdf5 is not the file"):
        elmo.read(*elmo.find_files(good))
    (good / "other_options.json").write_text("{}")
    with pytest.raises(UserError, match=r"2 \*options\.json"):
        elmo.find_files(good)


@pytest.mark.slow
def test_the_outputs_that_were_published_with_the_tiny_model(tmp_path):
    """AllenNLP's wheel carries them; `make test-slow` installs it. Their memory goes on from one sentence to the next."""
    found = importlib.util.find_spec("allennlp")
    assert found and found.submodule_search_locations, "allennlp is not installed; `make test-slow` does that"
    held = Path(found.submodule_search_locations[0]) / "tests" / "fixtures" / "elmo"
    model, tokenizer = elmo.read(held / "options.json", held / "lm_weights.hdf5")
    encoder = model.encoder
    with torch.inference_mode():
        words = (held / "vocab_test.txt").read_text().splitlines()
        ends = {"<S>": tokenizer.cls_token_id, "</S>": tokenizer.sep_token_id}
        ids = torch.tensor([ends[word] if word in ends else tokenizer.lexicon.get_id(word) for word in words])
        with h5py.File(held / "elmo_token_embeddings.hdf5") as file:
            assert_close(encoder.front(ids, None, None).chunk(2, -1)[0], torch.from_numpy(file["embedding"][...]),
                         atol=1e-5, rtol=1e-5)  # fmt: skip
        for number, sentences in enumerate(json.loads((held / "sentences.json").read_text())):
            states = [None] * encoder.config.layers
            with h5py.File(held / f"lm_embeddings_{number}.hdf5") as file:
                wanted = [torch.from_numpy(np.concatenate(file[str(i)], -1)) for i in range(len(sentences))]
            for text, theirs in zip(sentences, wanted, strict=True):
                row = torch.tensor([tokenizer.cls_token_id, *tokenizer.encode(text).ids, tokenizer.sep_token_id])
                layout = Layout.from_lengths([len(row)])
                x = encoder.front(row, layout, None)
                for layer, block in enumerate(encoder.stack.blocks):
                    out, states[layer] = block.mixer.forward_with_state(x, layout, states[layer])
                    x, _ = block.mixer_norm(x, out)
                assert_close(x[1:-1], theirs, atol=1e-5, rtol=1e-5)
