"""Word vectors in the commands: import, export, queries, benchmarks, initial embeddings of other models."""

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
from tests.support.corpora import prepare_test_corpus
from tests.support.texts import WORDS, make_english_text

NAMES = [*dict.fromkeys(WORDS), ",", "don't", "café"]
TINY_MODEL = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "mixer": {"num_attention_heads": 2},
    "feedforward": {"intermediate_size": 16},
}


@pytest.fixture(scope="module")
def vectors() -> KeyedVectors:
    return KeyedVectors(NAMES, np.random.default_rng(3).normal(size=(len(NAMES), 16)).astype(np.float32))


@pytest.fixture(scope="module")
def folder(vectors, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("imported")
    write_vectors(workdir / "v.txt", vectors)
    result = api.import_model(source=str(workdir / "v.txt"), out=str(workdir / "model"), quiet=True)
    # the tokenizer never produces don't
    assert (result["words"], result["vector_size"], result["reachable_words"]) == (
        len(NAMES),
        16,
        len(NAMES) - 1,
    )
    return workdir / "model"


@pytest.mark.parametrize("name", ["v.txt", "v.bin", "v.npy"])
def test_vectors_round_trip_through_model_folder(folder, vectors, tmp_path, name):
    api.export(model=str(folder), format="vectors", out=str(tmp_path / name), quiet=True)
    exported = read_vectors(tmp_path / name)
    assert exported.words == NAMES and (exported.matrix == vectors.matrix).all()
    result = api.import_model(source=str(tmp_path / name), out=str(tmp_path / "again"), quiet=True)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert (
        result["created"]
        and not api.import_model(source=str(tmp_path / name), out=str(tmp_path / "again"), quiet=True)["created"]
    )


def test_export_vectors_without_header_is_glove_format(folder, tmp_path):
    api.export(model=str(folder), format="vectors", header=False, out=str(tmp_path / "g.txt"), quiet=True)
    assert (tmp_path / "g.txt").read_text().startswith("the ")


def test_import_vectors_refuses_folder_of_another_model(folder, tmp_path):
    (tmp_path / "other.txt").write_text("one 1 2\n")
    with pytest.raises(UserError, match="contains another model"):
        api.import_model(source=str(tmp_path / "other.txt"), out=str(folder), quiet=True)


def test_embed_text_is_mean_of_word_vectors(folder, vectors):
    model = bertsmith.load(folder, device="cpu")
    expected = sum(vectors.get_vector(word) for word in ("the", "people", "café")) / 3
    assert model.embed("The people CAFÉ") == pytest.approx(expected, abs=1e-6)


def test_import_vectors_keeps_case(tmp_path):
    (tmp_path / "v.txt").write_text("The 1 2\nthe 3 4\n天地 5 6\n")
    api.import_model(source=str(tmp_path / "v.txt"), out=str(tmp_path / "m"), quiet=True)
    tokenizer = bertsmith.load(tmp_path / "m", device="cpu").tokenizer
    assert tokenizer.encode("The the 天地").tokens == ["The", "the", "天地"]


def test_vector_queries_work_on_folders_and_files(folder, vectors, tmp_path, capsys):
    write_vectors(tmp_path / "v.bin", vectors)
    for source in (folder, tmp_path / "v.bin"):
        result = api.embed(model=str(source), word="people", analogy=["the", "of", "and"], top_k=3, quiet=True)
        assert [row["word"] for row in result["neighbours"]] == [word for word, _ in vectors.most_similar("people", 3)]
        assert [row["word"] for row in result["analogy"]] == [word for word, _ in vectors.analogy("the", "of", "and", 3)]
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert lines == result["neighbours"] + result["analogy"]


def test_vector_benchmarks_are_scored(folder, tmp_path):
    (tmp_path / "pairs.tsv").write_text("the\tof\t3\nand\tto\t5\nzebra\tto\t1\nin\tis\t9\n")
    (tmp_path / "q.txt").write_text(": some\nthe of and to\nthe of and zebra\n")
    files = {"similarity": str(tmp_path / "pairs.tsv"), "analogies": str(tmp_path / "q.txt")}
    result = api.embed(model=str(folder), quiet=True, **files)
    assert result["similarity"][files["similarity"]]["coverage"] == 0.75
    scores = result["analogies"][files["analogies"]]
    assert scores["coverage"] == 0.5 and scores["sections"]["some"]["covered"] == 1


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"word": "peple"}, "did you mean 'people'"),
        ({"analogy": ["a", "the"]}, "must be three words"),
        ({"word": "the", "text": "x"}, "text=... is for texts"),
        ({"similarity": "nowhere.csv"}, "there is no file nowhere.csv"),
    ],
)
def test_invalid_vector_queries_are_refused(folder, query, message):
    with pytest.raises(UserError, match=message):
        api.embed(model=str(folder), quiet=True, **query)


def test_export_vectors_of_transformer_embeddings(vocabulary, tmp_path):
    (tmp_path / "text.txt").write_text(make_english_text(12))
    corpus = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    api.pretrain(
        corpus=str(corpus), out=str(tmp_path / "deep"), model=TINY_MODEL, train={"steps": 1, "device": "cpu"}, quiet=True
    )
    result = api.export(model=str(tmp_path / "deep"), format="vectors", out=str(tmp_path / "v.txt"), quiet=True)
    words = read_vectors(tmp_path / "v.txt").words
    assert (
        result["words"] == len(words)
        and "people" in words
        and not any(word.startswith(("##", "[")) and word[1:] for word in words)
    )


def test_pretrain_initializes_embeddings_with_vectors(folder, vectors, vocabulary, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(make_english_text(12))
    corpus = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    options = {"corpus": str(corpus), "objective": "mlm", "vectors": str(folder)}
    train = {"steps": 1, "learning_rate": 1e-12, "device": "cpu"}
    api.pretrain(out=str(tmp_path / "m"), model=TINY_MODEL, train=train, **options)
    stderr = capsys.readouterr().err
    model, tokenizer, _ = checkpoint.load(tmp_path / "m")
    table = model.encoder.word_embeddings.weight.detach()
    assert torch.equal(table[tokenizer.id_to_token.index("people")], torch.from_numpy(vectors.get_vector("people")))
    num_shared = sum(token in vectors.key_to_index for token in tokenizer.id_to_token)
    assert f"vectors: initialized {num_shared:,} of " in stderr and num_shared > 50
    with pytest.raises(UserError, match=r"set model\.embedding_size=16"):
        api.pretrain(out=str(tmp_path / "n"), model={**TINY_MODEL, "hidden_size": 32}, train=train, quiet=True, **options)
    with pytest.raises(UserError, match="leave out `vectors`"):
        api.pretrain(out=str(tmp_path / "n"), init=str(tmp_path / "m"), train=train, quiet=True, **options)


@pytest.mark.parametrize(("name", "value"), [("max_length", 64), ("validation_split", 0.5), ("eval_tokens", 5)])
@pytest.mark.parametrize("objective", ["skip-gram", "glove"])
def test_word_vector_objectives_refuse_network_options(name, value, objective, corpus, tmp_path):
    with pytest.raises(UserError, match=f"leave out {name}"):
        api.pretrain(corpus=str(corpus), objective=objective, out=str(tmp_path / "o"), quiet=True, **{name: value})


def test_word2vec_run_interrupted_in_first_save_restarts(corpus, tmp_path, monkeypatch):
    options = {
        "corpus": str(corpus),
        "objective": {"kind": "skip-gram", "vector_size": 8},
        "out": str(tmp_path / "o"),
        "quiet": True,
    }

    def stop(part, *_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.artifacts.write_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            api.pretrain(**options)
    assert [path.name for path in (tmp_path / "o").rglob("*") if path.is_file()] in ([], ["metrics.jsonl"])
    assert api.pretrain(**options)["created"]


def test_word2vec_warns_if_loss_is_at_chance(vocabulary, tmp_path, capsys):
    """On a small corpus in which a word determines the next."""
    pairs = [("the", "people"), ("time", "water"), ("first", "made"), ("over", "down")]
    rng = np.random.default_rng(0)
    lines = [" ".join(word for i in rng.permutation(4) for word in pairs[i]) for _ in range(1000)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    corpus = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    options = {"corpus": str(corpus), "objective": {"kind": "skip-gram", "vector_size": 16}}
    result = api.pretrain(out=str(tmp_path / "usual"), **options)
    assert result["loss"] == pytest.approx(6 * np.log(2), rel=0.01)
    assert "is no better than chance, so the vectors have learned nothing" in " ".join(capsys.readouterr().err.split())
    result = api.pretrain(out=str(tmp_path / "small"), train={"batch_tokens": 64}, **options)
    assert result["loss"] < 0.9 * 6 * np.log(2) and "chance" not in capsys.readouterr().err


@pytest.mark.parametrize("freeze", [0, "all"])
def test_bag_of_vectors_is_fine_tuned_frozen_or_not(folder, vectors, tmp_path, freeze):
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
    train = {"epochs": 20, "learning_rate": 0.05, "batch_tokens": 256, "device": "cpu", "weight_decay": 0.0}
    result = api.finetune(
        model=str(folder), task="classify", data=files, train=train, freeze=freeze, out=str(tmp_path / "out"), quiet=True
    )
    assert result["dev"]["accuracy"] > 0.9
    table = checkpoint.load(tmp_path / "out")[0].encoder.word_embeddings.weight[5:].detach().numpy()
    assert (table == vectors.matrix).all() == (freeze == "all")


def test_import_vectors_fingerprint_includes_words_of_npy(vectors, tmp_path):
    write_vectors(tmp_path / "v.npy", vectors)
    api.import_model(source=str(tmp_path / "v.npy"), out=str(tmp_path / "m"), quiet=True)
    write_vectors(tmp_path / "v.npy", KeyedVectors(NAMES[::-1], vectors.matrix))
    with pytest.raises(UserError, match="contains another model"):
        api.import_model(source=str(tmp_path / "v.npy"), out=str(tmp_path / "m"), quiet=True)


def test_zero_vectors_are_not_used_for_initialization(vectors, vocabulary, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(make_english_text(12))
    corpus = prepare_test_corpus(tmp_path / "text.txt", vocabulary, tmp_path / "corpus")
    matrix = vectors.matrix.copy()
    matrix[NAMES.index("people")] = 0
    train = {"steps": 1, "learning_rate": 1e-12, "device": "cpu"}
    for name, given_vectors in (("whole", vectors), ("gap", KeyedVectors(NAMES, matrix))):
        write_vectors(tmp_path / f"{name}.txt", given_vectors)
        api.pretrain(out=str(tmp_path / name), corpus=str(corpus), objective="mlm", model=TINY_MODEL, train=train,
                     vectors=str(tmp_path / f"{name}.txt"))  # fmt: skip
    num_all, num_nonzero = (
        int(count.replace(",", "")) for count in re.findall(r"vectors: initialized ([\d,]+) of", capsys.readouterr().err)
    )
    model, tokenizer, _ = checkpoint.load(tmp_path / "gap")
    assert num_nonzero == num_all - 1 and model.encoder.word_embeddings.weight[tokenizer.id_to_token.index("people")].any()
