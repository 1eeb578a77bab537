"""Pre-training on a GPU: killed and resumed bit for bit where that is asked for, and learning all the same."""

import pytest

from bertsmith import api
from bertsmith.config import from_dict
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe

pytestmark = pytest.mark.gpu

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "some", "dogs", "ran", "over", "green", "hills", "to", "find", "it"]
MODERN = {
    "layers": 2, "width": 128, "embedding": 64, "norm": "before", "norm_bias": False, "table": False,
    "mixer": {"kind": "dense", "heads": 2, "rotary": 10_000.0, "bias": False},
    "feedforward": {"inner": 256, "gated": True, "bias": False},
}  # fmt: skip
KINDS = {
    "bert": ({"layers": 2, "width": 128, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 512}}, "adamw"),
    "modern": (MODERN, "muon"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    lines = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(5 + i % 60)) + "." for i in range(4000)]
    documents = ["\n".join(lines[i : i + 10]) for i in range(0, 4000, 10)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    api.train_tokenizer(texts=[str(folder / "text.txt")], size=200, out=str(folder / "tokenizer"), quiet=True)
    api.prepare(texts=[str(folder / "text.txt")], tokenizer=str(folder / "tokenizer"), out=str(folder / "corpus"), quiet=True)
    return folder / "corpus"


class Died(Exception):
    pass


def trained(corpus, out, kind, length, die=0, **train):
    model, optimizer = KINDS[kind]

    def at(step, row):
        if step == die:
            raise Died

    objective = {"kind": "pairs"} if kind == "bert" else {"kind": "masked", "rate": 0.3}
    settings = {"steps": 20, "batch_tokens": 8192, "rate": 1e-3, "save_every": 5, "device": "cuda", "precision": "bf16",
                "optimizer": {"kind": optimizer}, **train}  # fmt: skip
    recipe = {"corpus": str(corpus), "out": str(out), "model": model, "objective": objective, "length": [length],
              "train": settings}  # fmt: skip
    return pretrain(from_dict(PretrainRecipe, recipe, "test"), quiet=True, on_step=at)


@pytest.mark.parametrize("length", [128, 400])
@pytest.mark.parametrize("kind", KINDS)
def test_a_deterministic_run_goes_on_bit_for_bit(corpus, tmp_path, kind, length):
    trained(corpus, tmp_path / "whole", kind, length, deterministic=True)
    with pytest.raises(Died):
        trained(corpus, tmp_path / "killed", kind, length, die=13, deterministic=True)
    trained(corpus, tmp_path / "killed", kind, length, deterministic=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_kernels_learn_as_plain_float32_does(corpus, tmp_path, kind):
    """Kernels against torch's own operations, over a whole run without dropout."""
    losses = [
        trained(corpus, tmp_path / precision, kind, 128, precision=precision, steps=60)["valid_loss"]
        for precision in ("bf16", "fp32")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
