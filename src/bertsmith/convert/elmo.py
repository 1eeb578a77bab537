"""ELMo as it was published: options.json, and weights in HDF5."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from tokenizers import Tokenizer as Rust
from tokenizers import models, pre_tokenizers
from torch import Tensor

from ..artifacts import read_json
from ..errors import UserError
from ..model.config import EncoderConfig, ResidualMode
from ..model.embeddings.char_cnn import CharCNNConfig
from ..model.mixers import Lstm
from ..model.model import Model, ModelConfig
from ..model.presets import elmo
from ..tokenization.characters import NUM_CHARS
from ..tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer, register_special_tokens

FAMILY = "elmo"
GATE_ORDER = (0, 2, 1, 3)  # theirs are in, new, forget, out; torch's are in, forget, new, out


def find_files(source: Path) -> tuple[Path, Path] | None:
    """The options and the weights in a folder, by how published files are called (`..._options.json`, `..._weights.hdf5`)."""
    if not source.is_dir() or not (options := sorted(source.glob("*options.json"))):
        return None
    weights = sorted(source.glob("*weights.hdf5"))
    if len(options) != 1 or len(weights) != 1:
        raise UserError(f"{source} holds {len(options)} *options.json and {len(weights)} *weights.hdf5; leave one of each")
    return options[0], weights[0]


def read(options: Path, weights: Path, tokenizer: Tokenizer | None = None) -> tuple[Model, Tokenizer]:
    """The two language models without their softmax, which was never published; words are spelt, so none is unknown."""
    encoder, tokenizer = _read_encoder_config(options), tokenizer or _default_tokenizer()
    model = Model(ModelConfig(encoder=encoder, vocabulary=len(tokenizer)), init_weights=False)
    try:
        import h5py
    except ImportError:
        raise UserError(f"{weights} is read by h5py; pip install 'bertsmith[elmo]'") from None
    try:
        with h5py.File(weights) as file:
            held = _map_weights(encoder, lambda name: np.asarray(file[name], np.float32))
    except (OSError, KeyError) as error:
        raise UserError(f"{weights} is not the file of an ELMo that {options} describes: {error}") from None
    for name, wanted in model.state_dict().items():
        if held[name].shape != wanted.shape:
            raise UserError(f"{weights}: {name} is {list(held[name].shape)}, but by {options} {list(wanted.shape)}")
    model.load_state_dict(held)
    model.attach_tokenizer(tokenizer)
    return model.eval(), tokenizer


def _read_encoder_config(path: Path) -> EncoderConfig:
    options = read_json(path)
    try:
        lstm, spelt = options["lstm"], options["char_cnn"]
        if spelt["n_characters"] != NUM_CHARS + 1 or lstm["cell_clip"] != lstm["proj_clip"]:
            raise UserError(f"{path}: this model has {NUM_CHARS + 1} characters and one clip for cells and projections, not "
                           f"{spelt['n_characters']}, {lstm['cell_clip']} and {lstm['proj_clip']}")  # fmt: skip
        front = CharCNNConfig(
            filters=tuple((int(seen), int(count)) for seen, count in spelt["filters"]), activation=spelt["activation"],
            numbers=spelt["embedding"]["dim"], letters=spelt["max_characters_per_token"], highways=spelt["n_highway"],
        )  # fmt: skip
        residual: ResidualMode = "between" if lstm["use_skip_connections"] else "none"
        size = elmo(lstm["n_layers"], 2 * lstm["projection_dim"], lstm["dim"], residual)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not the options.json of an ELMo: {error!r} is missing or wrong") from None
    mixer = Lstm(directions="apart", hidden=lstm["dim"], clip=lstm["cell_clip"])
    return replace(size, front=front, mixer=mixer)


def _map_weights(encoder: EncoderConfig, get_array: Any) -> dict[str, Tensor]:
    front, held = encoder.front, dict[str, NDArray[np.float32]]()
    assert isinstance(front, CharCNNConfig)
    table = get_array("char_embed")
    held["front.characters.weight"] = np.concatenate([np.zeros_like(table[:1]), table])  # before it: there is no word
    for number in range(len(front.filters)):
        held[f"front.filters.{number}.weight"] = get_array(f"CNN/W_cnn_{number}")[0].transpose(2, 1, 0)
        held[f"front.filters.{number}.bias"] = get_array(f"CNN/b_cnn_{number}")
    for number in range(front.highways):
        for ours, theirs in (("change", "transform"), ("gate", "carry")):
            held[f"front.highways.{number}.{ours}.weight"] = get_array(f"CNN_high_{number}/W_{theirs}").T
            held[f"front.highways.{number}.{ours}.bias"] = get_array(f"CNN_high_{number}/b_{theirs}")
    held |= {"front.out.weight": get_array("CNN_proj/W_proj").T, "front.out.bias": get_array("CNN_proj/b_proj")}
    for layer in range(encoder.layers):
        for way in range(2):
            place = f"RNN_{way}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            cells = _convert_lstm_weights(
                get_array(f"{place}/W_0"), get_array(f"{place}/B"), get_array(f"{place}/W_P_0"), encoder.width // 2
            )
            held |= {f"stack.blocks.{layer}.mixer.ways.{way}.{name}_l0": value for name, value in cells.items()}
    return {f"encoder.{name}": torch.from_numpy(np.ascontiguousarray(value)) for name, value in held.items()}


def _convert_lstm_weights(
    kernel: NDArray[Any], bias: NDArray[Any], projection: NDArray[Any], input_size: int
) -> dict[str, NDArray[np.float32]]:
    """One matrix for what is read and what was said, gates in their order, to torch's two; 1 is added to their forget bias."""
    gates = np.stack(np.split(kernel.T, 4))[list(GATE_ORDER)].reshape(kernel.shape[::-1])
    biases = np.stack(np.split(bias, 4))[list(GATE_ORDER)]
    biases[1] += 1.0
    return {
        "weight_ih": gates[:, :input_size], "weight_hh": gates[:, input_size:], "bias_ih": biases.ravel(), "bias_hh": np.zeros_like(bias),
        "weight_hr": projection.T,
    }  # fmt: skip


def _default_tokenizer() -> Tokenizer:
    """Words are what stands between blanks, as in what ELMo was trained on."""
    rust = Rust(models.WordLevel({name: number for number, name in enumerate(SPECIAL_TOKENS)}, unk_token=SPECIAL_TOKENS[1]))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(register_special_tokens(rust), FAMILY)
