"""Texts answered by texts, by the command line: every way to begin learns to write words backwards."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith import config
from bertsmith.errors import UserError
from bertsmith.finetuning.recipe import FinetuneRecipe
from tests.journeys.test_pretraining import ROOT, SMALL, answer, ran, refused

LETTERS = list("abcde")
FAST = ["length=16", "task.longest=16", "train.batch_tokens=600", "train.rate=5e-3", "train.log_every=50", "train.epochs=25"]
NEW = ["model.layers=2", "model.width=32", "model.mixer.heads=4", "model.feedforward.inner=64", "model.dropout=0.0"]
NEW += ["model.table=sinusoid", "model.scaled=true", "model.positions=32", "model.deviation=0.18"]
BOTH_WAYS = ["model=bilstm", "model.layers=1", "model.width=32", "model.dropout=0.0", "model.deviation=0.2"]


def pairs(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        letters = rng.choice(LETTERS, rng.integers(1, 5)).tolist()
        yield {"source": " ".join(letters), "target": " ".join(letters[::-1])}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for name, count, seed in (("train", 500, 0), ("dev", 60, 1)):
        text = "".join(json.dumps(row) + "\n" for row in pairs(count, seed))
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return [f"data.train={folder / 'train.jsonl'}", f"data.dev={folder / 'dev.jsonl'}"]


@pytest.fixture(scope="module")
def bert(corpus, tmp_path_factory):
    """A model that has seen little, and has a head for words."""
    out = tmp_path_factory.mktemp("bert") / "bert"
    words = [word for word in SMALL if "positions" not in word]
    ran("pretrain", f"corpus={corpus}", f"out={out}", *words, "model.deviation=0.1", "model.dropout=0.0", "train.steps=5")
    return out


ANEW = {
    "attention": [*NEW, "decoder=attention"],
    "additive": [*BOTH_WAYS, "decoder=recurrent", "train.epochs=40"],
    "general": [*NEW, "decoder.kind=recurrent", "decoder.score=general", "decoder.cell=lstm"],
}


@pytest.mark.parametrize("way", ANEW)
def test_a_new_model_learns_to_write_backwards(files, vocabulary, tmp_path, way):
    words = ["task=generate", f"tokenizer={vocabulary}", *files, *FAST, *ANEW[way], f"out={tmp_path / 'out'}"]
    made = answer("finetune", *words)
    assert made["dev"]["exact"] > 0.9, made["dev"]


BERT = {
    "bert2bert": ["decoder=attention"],
    "bertshare": ["decoder.kind=attention", "decoder.shared=true"],
    "unilm": ["train.epochs=45"],
}


@pytest.mark.parametrize("way", BERT)
def test_a_bert_learns_to_write_backwards(files, bert, tmp_path, way):
    words = ["task=generate", f"model={bert}", *files, *FAST, *BERT[way], f"out={tmp_path / 'out'}"]
    made = answer("finetune", *words)
    assert made["dev"]["exact"] > 0.9, made["dev"]


@pytest.fixture(scope="module")
def writer(files, vocabulary, tmp_path_factory):
    out = tmp_path_factory.mktemp("writer") / "out"
    begun = ["task=generate", f"tokenizer={vocabulary}", *NEW, "decoder=recurrent", f"out={out}"]
    slower = ["train.average=2", "train.save_every=25", "train.schedule=inverse-sqrt", "train.epochs=35"]
    answer("finetune", *begun, *files, *FAST, *slower)
    return out


def test_a_writer_answers_texts_and_files_and_is_judged(writer, files, tmp_path):
    model = bertsmith.load(writer)
    assert model("a b c") == {"text": "c b a"} and model(["d e", "a b"]) == [{"text": "e d"}, {"text": "b a"}]
    (tmp_path / "some.txt").write_text("a b\nc d e\n", encoding="utf-8")
    ran("predict", f"model={writer}", f"data={tmp_path / 'some.txt'}", f"out={tmp_path / 'said.jsonl'}")
    assert [json.loads(line)["text"] for line in (tmp_path / "said.jsonl").open(encoding="utf-8")] == ["b a", "e d c"]
    dev = files[1].split("=")[1]
    ran("predict", f"model={writer}", f"data={dev}", f"out={tmp_path / 'dev.jsonl'}")
    found = answer("evaluate", f"model={writer}", f"data={dev}", f"out={tmp_path / 'report'}")
    assert {"bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "length"} == set(found["scores"])
    low, high = found["intervals"]["bleu"]
    assert low <= found["scores"]["bleu"] <= high
    assert "BLEU" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_a_writer_goes_on_learning_with_its_own_decoder(writer, files, tmp_path):
    words = ["task=generate", f"model={writer}", *files, *FAST, f"out={tmp_path / 'out'}", "train.rate=1e-9"]
    before, made = bertsmith.load(writer), answer("finetune", *words)
    assert made["dev"] == pytest.approx(before.card["result"]["dev"], abs=0.05)
    assert "has a decoder already" in refused("finetune", *words, "decoder=attention", f"out={tmp_path / 'other'}")


def test_a_writer_may_be_told_how_to_write(writer):
    said = [json.loads(ran("predict", f"model={writer}", "text=a b c d", *words).stdout.splitlines()[0])["text"] for words in (
        [], ["generate=beam", "generate.size=2"], ["generate=greedy", "generate.tokens=2"], ["generate=sample"],
    )]  # fmt: skip
    assert said[:3] == ["d c b a", "d c b a", "d c"] and said[3]


@pytest.mark.parametrize(
    ("recipe", "kind"), [("translate", "attention"), ("couplets", "attention"), ("bert2bert", "attention")]
)
def test_the_recipes_can_be_read(recipe, kind):
    found = config.read_recipe(FinetuneRecipe, ROOT / "recipes" / f"{recipe}.toml")
    assert found.task.longest == found.length == 64 and found.decoder.__struct_config__.tag == kind
    found.train.resolve_epochs(100).check()


def test_a_writer_fills_no_masks_and_has_no_place_in_hugging_faces_format(writer, tmp_path):
    with pytest.raises(UserError, match="fills no masks"):
        bertsmith.load(writer).fill("a [MASK]")
    assert "answers texts by texts" in refused("export", f"model={writer}", "format=hf", f"out={tmp_path / 'hf'}")


WRONG = {
    "leave out `decoder`": ["task=classify", "decoder=attention"],
    "leave out rdrop and adversary": ["task=generate", "task.longest=16", "rdrop=1.0"],
    "positions; lower length or task.longest": ["task=generate", "length=500", "task.longest=128"],
    "decoder.layers=9": ["task=generate", "decoder.kind=attention", "task.longest=16", "decoder.layers=9"],
}


@pytest.mark.parametrize("words", WRONG)
def test_settings_that_cannot_be_are_refused_before_the_training(files, bert, tmp_path, words):
    begun = ["finetune", WRONG[words][0], f"model={bert}", *files, f"out={tmp_path / 'out'}", "length=16"]
    assert words in refused(*begun, *WRONG[words][1:])
