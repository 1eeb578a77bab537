"""Pre-training on a GPU: bit-for-bit resumption if deterministic, and the same loss in bfloat16 as in float32."""

import pytest

from bertsmith import api
from bertsmith.config import from_dict
from bertsmith.pretraining.run import pretrain
from bertsmith.pretraining.setup import PretrainRecipe

pytestmark = pytest.mark.gpu

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "some", "dogs", "ran", "over", "green", "hills", "to", "find", "it"]
MODERN = {
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "embedding_size": 64,
    "norm": "pre",
    "norm_bias": False,
    "position_embedding_type": "none",
    "mixer": {"kind": "attention", "num_attention_heads": 2, "rope_theta": 10_000.0, "bias": False},
    "feedforward": {"intermediate_size": 256, "glu": True, "bias": False},
}
MODELS = {
    "bert": (
        {
            "num_hidden_layers": 2,
            "hidden_size": 128,
            "mixer": {"kind": "attention", "num_attention_heads": 2},
            "feedforward": {"intermediate_size": 512},
        },
        "adamw",
    ),
    "modern": (MODERN, "muon"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    lines = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(5 + i % 60)) + "." for i in range(4000)]
    documents = ["\n".join(lines[i : i + 10]) for i in range(0, 4000, 10)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    api.train_tokenizer(texts=[str(folder / "text.txt")], vocab_size=200, out=str(folder / "tokenizer"), quiet=True)
    api.prepare(texts=[str(folder / "text.txt")], tokenizer=str(folder / "tokenizer"), out=str(folder / "corpus"), quiet=True)
    return folder / "corpus"


class Killed(Exception):
    pass


def run_pretraining(corpus, out, kind, length, kill_at=0, **train):
    model, optimizer = MODELS[kind]

    def on_step(step, row):
        if step == kill_at:
            raise Killed

    objective = {"kind": "mlm-nsp"} if kind == "bert" else {"kind": "mlm", "mlm_probability": 0.3}
    settings = {
        "steps": 20,
        "batch_tokens": 8192,
        "learning_rate": 1e-3,
        "save_every": 5,
        "device": "cuda",
        "precision": "bf16",
        "optimizer": {"kind": optimizer},
        **train,
    }
    recipe = {"corpus": str(corpus), "out": str(out), "model": model, "objective": objective, "max_length": [length],
              "train": settings}  # fmt: skip
    return pretrain(from_dict(PretrainRecipe, recipe, "test"), quiet=True, on_step=on_step)


@pytest.mark.parametrize("length", [128, 400])
@pytest.mark.parametrize("kind", MODELS)
def test_gpu_deterministic_run_resumes_bit_for_bit(corpus, tmp_path, kind, length):
    run_pretraining(corpus, tmp_path / "whole", kind, length, full_determinism=True)
    with pytest.raises(Killed):
        run_pretraining(corpus, tmp_path / "killed", kind, length, kill_at=13, full_determinism=True)
    run_pretraining(corpus, tmp_path / "killed", kind, length, full_determinism=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


@pytest.mark.parametrize("kind", MODELS)
def test_gpu_bf16_kernels_train_as_float32(corpus, tmp_path, kind):
    """Our kernels against torch's operations, over a whole run without dropout."""
    losses = [
        run_pretraining(corpus, tmp_path / precision, kind, 128, precision=precision, steps=60)["valid_loss"]
        for precision in ("bf16", "fp32")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
