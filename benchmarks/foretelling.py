"""NNLM against a smoothed trigram: perplexity of the same held-out words, by the same vocabulary, unknown words as [UNK].

text=FILE valid=FILE     one text to learn from, and one to be judged on
size=N least=N epochs=N rate=R batch_tokens=N device=cuda order=N numbers=N inner=N direct=false dropout=P     how NNLM is made
decay=W precision=bf16 eval_every=N     how it learns; the perplexity is that at the end, whatever was told before
"""

from pathlib import Path
from typing import Any

from bertsmith import api
from bertsmith.config import plain
from bertsmith.model.presets import nnlm

from .material import Material
from .trigram import Trigram, texts

LENGTH = 1024


def run(stuff: Material) -> list[tuple[str, str, str, str, str]]:
    learn, judged, vocabulary = _prepared(stuff)
    stream, held = texts(learn), texts(judged)
    words, start = vocabulary["size"], 2  # [CLS]
    control = Trigram(stream, words, start).perplexity(held)
    told = _trained(stuff, learn, judged)
    name = f"perplexity of {(held != start).sum():,} words, vocabulary {words:,}, unknown {_unknown(held):.1%}"
    ratio = told["perplexity"] / control
    return [(name, f"{told['perplexity']:.1f}", f"{control:.1f}", f"{ratio:.2f}", "below 1")]


def _prepared(stuff: Material) -> tuple[Path, Path, dict[str, Any]]:
    files = {name: stuff.given[name] for name in ("text", "valid")}
    made = api.train_tokenizer(
        kind="word", texts=files["text"], size=stuff.number("size", 50_000), lowercase=False,
        least=stuff.number("least", 2), out=str(stuff.folder / "words"), quiet=True,
    )  # fmt: skip
    for name, path in files.items():
        api.prepare(
            texts=path, tokenizer=str(stuff.folder / "words"), sentences="lines", out=str(stuff.folder / name), quiet=True
        )
    return stuff.folder / "text", stuff.folder / "valid", made


def _trained(stuff: Material, learn: Path, judged: Path) -> dict[str, Any]:
    direct = stuff.given.get("direct", "true") == "true"
    model = plain(nnlm(stuff.number("order", 5), stuff.number("numbers", 60), stuff.number("inner", 100), direct))
    model["dropout"] = float(stuff.given.get("dropout", 0.0))
    train = {
        "epochs": float(stuff.given.get("epochs", 5)), "rate": float(stuff.given.get("rate", 1e-3)), "warmup": 0.02,
        "batch_tokens": stuff.number("batch_tokens", 4096), "device": stuff.given.get("device", "cpu"), "spike": 0.0,
        "decay": float(stuff.given.get("decay", 0.01)), "precision": stuff.given.get("precision", "fp32"),
        "eval_every": stuff.number("eval_every", 0), "save_every": 1_000_000,
    }  # fmt: skip
    head = {"transform": False, "tied": False, "bias": True}
    return api.pretrain(
        corpus=str(learn), valid=str(judged), model=model, objective={"kind": "causal", "head": head}, length=LENGTH,
        train=train, eval_tokens=1 << 40, out=str(stuff.folder / "nnlm"),
    )  # fmt: skip


def _unknown(stream: Any) -> float:
    return float((stream == 1).mean())  # [UNK]
