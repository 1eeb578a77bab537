"""Tables on the console: what quantization kept, and what it cost."""

from typing import Any

from ..recovery.report import format_score

MAX_LAYERS = 12  # of the table of sensitivity


def list_rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Bytes, score and speed before and after."""
    before, after = result["before"]["bytes"], result["after"]["bytes"]
    rows = [("", "float32", result["mode"]), ("bytes", f"{before:,}", f"{after:,} ({before / after:.2f}x smaller)")]
    rows.append(("layers in int8", "0", f"{result['int8_layers']} ({len(result['float_layers'])} layers or tables in float32)"))
    rows.append(("cosine of embeddings", "1", f"{result['quality']['cosine']:.4f}"))
    if score := result.get("score"):
        rows.append((score["metric"], *(format_score(score[name]) for name in ("before", "after"))))
    speed = result["speed"]
    rates = [f"{speed[f'examples_per_second_{name}']:,.0f}" for name in ("before", "after")]
    rows.append(("examples/s, onnxruntime", rates[0], f"{rates[1]} ({speed['speedup']:.2f}x)"))
    rows.append(("this CPU", "", "with VNNI" if result["has_vnni"] else "without VNNI: the same answers, slower"))
    return rows


def list_sensitivity(sensitivity: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """The most harmful layers."""
    rows = [("layer", "error of outputs", "1 - cosine")]
    return rows + [(row["layer"], f"{row['output_error']:.2%}", f"{1 - row['cosine']:.1e}") for row in sensitivity[:MAX_LAYERS]]
