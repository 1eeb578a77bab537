"""`bertsmith convert-long`: convert a full-attention model to Longformer (Beltagy et al. 2020, section 5).

Sliding-window attention replaces full attention, the position embeddings are tiled to the new length, and the projections of
global attention begin as copies of the local ones.
"""

from typing import Annotated, Any

import msgspec

from .. import __version__
from ..artifacts import MANIFEST, atomic_folder, content_hash, fingerprint, read_object, resolve_path
from ..config import Config, MaxLength, NonNegInt, PosInt, to_dict
from ..console import Console
from ..errors import UserError
from ..model import checkpoint
from ..model.mixers import Longformer
from ..model.model import Model, ModelConfig
from ..model.surgery import convert_weights, extend_positions, replace_mixer
from ..runs import command_line
from ..writing import check_writable, lock_output, resolve_output

REWRITTEN_KEYS = ("stage", "recipe", "model", "weights", "version")  # keys of the source's config.json that are written anew


class Recipe(Config, frozen=True):
    """The source model, the new maximum length and the attention windows."""

    model: Annotated[str, "checkpoint folder of a model with full or sliding-window attention (BERT, RoBERTa ...)"]
    out: Annotated[str, "output folder; `pretrain init=` continues training from it"]
    max_length: Annotated[MaxLength, "new maximum sequence length, in tokens"] = 4096
    attention_window: Annotated[
        tuple[PosInt, ...] | None, "window size, both sides together; one, or one per layer; default: the model's own, or 512"
    ] = None
    dilation: Annotated[
        tuple[PosInt, ...] | None,
        "dilation of the last heads, such as [2, 2]; default: as in the model's own windows",
    ] = None
    dilated_layers: Annotated[NonNegInt | None, "number of top layers with dilated heads; default: all; needs dilation"] = None
    global_attention: Annotated[bool, "give global attention to [CLS], or to the tokens that the task selects"] = True


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Write the converted checkpoint, unless it already exists in `out`."""
    console, source, out = Console(quiet), resolve_path(recipe.model, "model"), resolve_output(recipe.out)
    with lock_output(out):
        base, tokenizer, _ = checkpoint.load(source)
        recipe = fill_defaults(recipe, base)
        settings = {name: value for name, value in to_dict(recipe).items() if name != "out"}
        identity = fingerprint(settings | {"model": content_hash(source) or str(source)})
        if created := not _is_finished(out, identity, console):
            check_writable(out)
            model = convert_model(base, recipe)
            record = {name: value for name, value in checkpoint.read_config(source).items() if name not in REWRITTEN_KEYS}
            record |= {"stage": "convert-long", "recipe": to_dict(recipe), "tokenizer_fingerprint": tokenizer.fingerprint}
            record |= {"family": "longformer"} if record.get("family") == "roberta" else {}
            # of a fine-tuned model's task
            record |= {"max_length": recipe.max_length} if "max_length" in record else {}
            card = {"identity": identity, "source": recipe.model, "command": command_line()}
            with atomic_folder(out) as staging:
                checkpoint.write_files(staging, model, tokenizer, card, record | {"version": __version__})
        _report_changes(base, recipe, console)
    return {
        "out": str(out),
        "created": created,
        "max_length": recipe.max_length,
        "attention_window": list(recipe.attention_window or ()),
    }


def fill_defaults(recipe: Recipe, base: Model) -> Recipe:
    """The recipe with unset keys taken from the model's own windows, or else from the defaults of `Longformer`."""
    defaults = _trained_windows(base) or Longformer()
    if recipe.attention_window == ():
        raise UserError("attention_window=[] is empty; give a number of tokens, one number per layer, or leave it out")
    names = (
        ["attention_window"] if recipe.dilation is not None else ["attention_window", "dilation", "dilated_layers"]
    )  # a dilation that is set is complete
    unset = {name: getattr(defaults, name) for name in names if getattr(recipe, name) is None}
    return msgspec.structs.replace(recipe, **unset)


def convert_model(base: Model, recipe: Recipe) -> Model:
    """The model with Longformer attention; on texts within the window, outputs equal those of `base`."""
    recipe, trained = fill_defaults(recipe, base), _trained_windows(base)
    mixer = Longformer(
        attention_window=recipe.attention_window or (), dilation=recipe.dilation or (),
        dilated_layers=recipe.dilated_layers, global_attention=recipe.global_attention,
        attention_dropout=trained.attention_dropout if trained else 0.0,
    )  # fmt: skip
    if base.decoder is not None:
        raise UserError(
            "a model with a decoder cannot be converted; convert the encoder it was fine-tuned from, then fine-tune again"
        )
    encoder = extend_positions(replace_mixer(base.config.encoder, mixer), recipe.max_length)
    config = ModelConfig(encoder=encoder, vocab_size=base.config.vocab_size, heads=base.config.heads)
    model = Model(config, init_weights=False)
    model.load_state_dict(convert_weights(base.state_dict(), encoder))
    return model.eval()


def _trained_windows(base: Model) -> Longformer | None:
    """The mixer of a model that has sliding windows already, with the settings that the new ones take over."""
    mixer = base.config.encoder.mixer
    return mixer if isinstance(mixer, Longformer) else None


def _report_changes(base: Model, recipe: Recipe, console: Console) -> None:
    encoder, window_per_side = base.config.encoder, min(recipe.attention_window or ()) // 2
    if encoder.position_embedding_type == "absolute" and recipe.max_length > encoder.max_position_embeddings:
        console.info(f"the {encoder.max_position_embeddings:,} position embeddings are tiled to {recipe.max_length:,}; "
                     "continue training "
                   "with `bertsmith pretrain init=`")  # fmt: skip
    if getattr(encoder.mixer, "rope_theta", None) and recipe.max_length > encoder.max_position_embeddings:
        global_tokens = "; for global tokens, longer distances are clamped to the window"
        console.info("RoPE (rope_theta) is relative and needs no new positions: within a window, distances are as in training"
                   + (global_tokens if recipe.global_attention else ""))  # fmt: skip
    if _trained_windows(base):
        return
    if dropout := getattr(encoder.mixer, "attention_dropout", 0.0):
        console.info(f"mixer.attention_dropout={dropout:g} is not kept, since it is slow with windows; to keep it, "
                     "continue training "
                   "with `bertsmith pretrain init= model.mixer=longformer model.mixer.attention_dropout=`")  # fmt: skip
    if not recipe.dilation:
        paths = "higher layers and global tokens" if recipe.global_attention else "higher layers"
        console.info(f"outputs are unchanged for texts of up to {window_per_side + 1:,} tokens; in longer texts, tokens "
                     "more than "
                   f"{window_per_side:,} apart are connected through {paths}")  # fmt: skip


def _is_finished(out: Any, identity: str, console: Console) -> bool:
    if not (out / MANIFEST).exists():
        return False
    if read_object(out / "card.json").get("identity") != identity:
        raise UserError(f"{out} contains another model; choose another out, or remove it")
    console.info(f"{out} already exists, converted from the same model")
    return True
