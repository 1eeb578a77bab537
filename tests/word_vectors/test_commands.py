"""Vectors through the stages: file to folder and back, asked, judged, taken as the table of other models."""

import gzip
import json
import re

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith import api
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.word_vectors import KeyedVectors, read_vectors, write_vectors
from tests.conftest import WORDS, prepared, prose

NAMES = [*dict.fromkeys(WORDS), ",", "don't", "café"]
TINY = {"layers": 1, "width": 16, "mixer": {"heads": 2}, "feedforward": {"inner": 16}}


@pytest.fixture(scope="module")
def vectors() -> KeyedVectors:
    return KeyedVectors(NAMES, np.random.default_rng(3).normal(size=(len(NAMES), 16)).astype(np.float32))


@pytest.fixture(scope="module")
def folder(vectors, tmp_path_factory):
    place = tmp_path_factory.mktemp("imported")
    write_vectors(place / "v.txt", vectors)
    told = api.import_model(source=str(place / "v.txt"), out=str(place / "model"), quiet=True)
    assert (told["words"], told["width"], told["met"]) == (len(NAMES), 16, len(NAMES) - 1)  # no text is cut into don't
    return place / "model"


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.npy"])
def test_a_file_becomes_a_folder_and_the_same_file_again(folder, vectors, tmp_path, name):
    api.export(model=str(folder), format="vectors", out=str(tmp_path / name), quiet=True)
    found = read_vectors(tmp_path / name)
    assert found.words == NAMES and (found.matrix == vectors.matrix).all()
    again = api.import_model(source=str(tmp_path / name), out=str(tmp_path / "again"), quiet=True)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert again["made"] and not api.import_model(source=str(tmp_path / name), out=str(tmp_path / "again"), quiet=True)["made"]


def test_without_a_header_the_text_is_gloves(folder, tmp_path):
    api.export(model=str(folder), format="vectors", header=False, out=str(tmp_path / "g.txt"), quiet=True)
    assert (tmp_path / "g.txt").read_text().startswith("the ")


def test_a_folder_holds_another_file_s_vectors_is_said(folder, tmp_path):
    (tmp_path / "other.txt").write_text("one 1 2\n")
    with pytest.raises(UserError, match="holds another model"):
        api.import_model(source=str(tmp_path / "other.txt"), out=str(folder), quiet=True)


def test_a_text_is_the_mean_of_its_words(folder, vectors):
    model = bertsmith.load(folder, device="cpu")
    want = sum(vectors.vector(word) for word in ("the", "people", "café")) / 5  # [CLS] and [SEP] are zero
    assert model.embed("The people CAFÉ") == pytest.approx(want, abs=1e-6)


def test_case_is_kept_where_the_words_have_it(tmp_path):
    (tmp_path / "v.txt").write_text("The 1 2\nthe 3 4\n天地 5 6\n")
    api.import_model(source=str(tmp_path / "v.txt"), out=str(tmp_path / "m"), quiet=True)
    tokenizer = bertsmith.load(tmp_path / "m", device="cpu").tokenizer
    assert tokenizer.encode("The the 天地").tokens == ["The", "the", "天地"]


def test_words_are_asked_of_folders_and_of_files_alike(folder, vectors, tmp_path, capsys):
    write_vectors(tmp_path / "v.bin", vectors)
    for place in (folder, tmp_path / "v.bin"):
        told = api.embed(model=str(place), word="people", analogy=["the", "of", "and"], top=3, quiet=True)
        assert [row["word"] for row in told["neighbours"]] == [word for word, _ in vectors.neighbours("people", 3)]
        assert [row["word"] for row in told["analogy"]] == [word for word, _ in vectors.analogy("the", "of", "and", 3)]
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines == told["neighbours"] + told["analogy"]


def test_vectors_are_judged(folder, tmp_path):
    (tmp_path / "pairs.tsv").write_text("the\tof\t3\nand\tto\t5\nzebra\tto\t1\nin\tis\t9\n")
    (tmp_path / "q.txt").write_text(": some\nthe of and to\nthe of and zebra\n")
    files = {"similarity": str(tmp_path / "pairs.tsv"), "analogies": str(tmp_path / "q.txt")}
    told = api.embed(model=str(folder), quiet=True, **files)
    assert told["similarity"][files["similarity"]]["coverage"] == 0.75
    scores = told["analogies"][files["analogies"]]
    assert scores["coverage"] == 0.5 and scores["sections"]["some"]["known"] == 1


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"word": "peple"}, "did you mean 'people'"),
        ({"analogy": ["a", "the"]}, "not three words"),
        ({"word": "the", "text": "x"}, "text is for texts"),
        ({"similarity": "nowhere.csv"}, "there is no file nowhere.csv"),
    ],
)
def test_wrong_questions_are_answered_in_words(folder, asked, told):
    with pytest.raises(UserError, match=told):
        api.embed(model=str(folder), quiet=True, **asked)


def test_the_table_of_a_deeper_model_counts_as_vectors(vocabulary, tmp_path):
    (tmp_path / "text.txt").write_text(prose(12))
    corpus = prepared(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    api.pretrain(corpus=str(corpus), out=str(tmp_path / "deep"), model=TINY, train={"steps": 1, "device": "cpu"}, quiet=True)
    told = api.export(model=str(tmp_path / "deep"), format="vectors", out=str(tmp_path / "v.txt"), quiet=True)
    words = read_vectors(tmp_path / "v.txt").words
    assert told["words"] == len(words) and "people" in words and not any(w.startswith(("##", "[")) and w[1:] for w in words)


def test_pretraining_begins_with_the_vectors_of_words_both_know(folder, vectors, vocabulary, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(prose(12))
    corpus = prepared(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    settings = {"corpus": str(corpus), "objective": "masked", "vectors": str(folder)}
    train = {"steps": 1, "rate": 1e-12, "device": "cpu"}
    api.pretrain(out=str(tmp_path / "m"), model=TINY, train=train, **settings)
    told = capsys.readouterr().err
    model, tokenizer, _ = checkpoint.load(tmp_path / "m")
    table = model.encoder.tokens.weight.detach()
    assert torch.equal(table[tokenizer.id_to_token.index("people")], torch.from_numpy(vectors.vector("people")))
    both = sum(piece in vectors.index for piece in tokenizer.id_to_token)
    assert f"vectors: {both:,} of " in told and both > 50
    with pytest.raises(UserError, match=r"set model\.embedding=16"):
        api.pretrain(out=str(tmp_path / "n"), model={**TINY, "width": 32}, train=train, quiet=True, **settings)
    with pytest.raises(UserError, match="leave out `vectors`"):
        api.pretrain(out=str(tmp_path / "n"), init=str(tmp_path / "m"), train=train, quiet=True, **settings)


@pytest.mark.parametrize(("name", "value"), [("length", 64), ("held_out", 0.5), ("eval_tokens", 5)])
@pytest.mark.parametrize("objective", ["skip-gram", "glove"])
def test_what_only_networks_read_by_is_refused(name, value, objective, corpus, tmp_path):
    with pytest.raises(UserError, match=f"leave out {name}"):
        api.pretrain(corpus=str(corpus), objective=objective, out=str(tmp_path / "o"), quiet=True, **{name: value})


def test_a_run_that_was_stopped_while_it_saved_for_the_first_time_goes_on(corpus, tmp_path, monkeypatch):
    words = {"corpus": str(corpus), "objective": {"kind": "skip-gram", "width": 8}, "out": str(tmp_path / "o"), "quiet": True}

    def stop(part):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.artifacts.write_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            api.pretrain(**words)
    assert [one.name for one in (tmp_path / "o").rglob("*") if one.is_file()] in ([], ["metrics.jsonl"])
    assert api.pretrain(**words)["made"]


def test_a_table_that_learnt_nothing_is_told_of_with_the_way_out(vocabulary, tmp_path, capsys):
    """From some thousand words in which one always follows another."""
    pairs = [("the", "people"), ("time", "water"), ("first", "made"), ("over", "down")]
    rng = np.random.default_rng(0)
    lines = [" ".join(word for n in rng.permutation(4) for word in pairs[n]) for _ in range(1000)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    corpus = prepared(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    words = {"corpus": str(corpus), "objective": {"kind": "skip-gram", "width": 16}}
    told = api.pretrain(out=str(tmp_path / "usual"), **words)
    assert told["loss"] == pytest.approx(6 * np.log(2), rel=0.01)
    assert "is that of chance: nothing was learnt" in " ".join(capsys.readouterr().err.split())
    told = api.pretrain(out=str(tmp_path / "small"), train={"batch_tokens": 64}, **words)
    assert told["loss"] < 0.9 * 6 * np.log(2) and "chance" not in capsys.readouterr().err


@pytest.mark.parametrize("freeze", [0, "all"])
def test_a_bag_of_vectors_is_fine_tuned_frozen_or_not(folder, vectors, tmp_path, freeze):
    rng = np.random.default_rng(0)
    lines = ["text\tlabel"]
    for _ in range(64):
        label = rng.integers(2)
        lines.append(
            " ".join([*rng.choice(NAMES[:40], 5), ("people", "time")[label], ("people", "time")[label]]) + f"\t{label}"
        )
    with gzip.open(tmp_path / "t.tsv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    files = {"train": str(tmp_path / "t.tsv.gz"), "dev": str(tmp_path / "t.tsv.gz")}
    train = {"epochs": 20, "rate": 0.05, "batch_tokens": 256, "device": "cpu", "decay": 0.0}
    told = api.finetune(
        model=str(folder), task="classify", data=files, train=train, freeze=freeze, out=str(tmp_path / "out"), quiet=True
    )
    assert told["dev"]["accuracy"] > 0.9
    table = checkpoint.load(tmp_path / "out")[0].encoder.tokens.weight[5:].detach().numpy()
    assert (table == vectors.matrix).all() == (freeze == "all")


def test_the_words_of_an_array_are_part_of_what_is_imported(vectors, tmp_path):
    write_vectors(tmp_path / "v.npy", vectors)
    api.import_model(source=str(tmp_path / "v.npy"), out=str(tmp_path / "m"), quiet=True)
    write_vectors(tmp_path / "v.npy", KeyedVectors(NAMES[::-1], vectors.matrix))
    with pytest.raises(UserError, match="holds another model"):
        api.import_model(source=str(tmp_path / "v.npy"), out=str(tmp_path / "m"), quiet=True)


def test_words_whose_row_is_zero_begin_as_those_that_have_none(vectors, vocabulary, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(prose(12))
    corpus = prepared(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    matrix = vectors.matrix.copy()
    matrix[NAMES.index("people")] = 0
    train = {"steps": 1, "rate": 1e-12, "device": "cpu"}
    for name, some in (("whole", vectors), ("gap", KeyedVectors(NAMES, matrix))):
        write_vectors(tmp_path / f"{name}.txt", some)
        api.pretrain(out=str(tmp_path / name), corpus=str(corpus), objective="masked", model=TINY, train=train,
                     vectors=str(tmp_path / f"{name}.txt"))  # fmt: skip
    whole, gap = (int(one.replace(",", "")) for one in re.findall(r"vectors: ([\d,]+) of", capsys.readouterr().err))
    model, tokenizer, _ = checkpoint.load(tmp_path / "gap")
    assert gap == whole - 1 and model.encoder.tokens.weight[tokenizer.id_to_token.index("people")].any()
