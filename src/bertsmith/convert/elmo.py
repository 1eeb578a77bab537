"""Import of published ELMo models (Peters et al. 2018): options.json, and weights in HDF5."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from tokenizers import Tokenizer as Rust
from tokenizers import models, pre_tokenizers
from torch import Tensor

from ..artifacts import read_object
from ..config import from_dict, to_dict
from ..errors import UserError
from ..model.building import build_for_weights
from ..model.config import EncoderConfig, ResidualMode
from ..model.embeddings.char_cnn import CharCNNConfig
from ..model.mixers import Lstm
from ..model.model import Model, ModelConfig
from ..model.presets import elmo
from ..reading import require_regular
from ..tokenization.characters import NUM_CHARS
from ..tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer, register_special_tokens

FAMILY = "elmo"
MAX_COMPRESSION = 20  # bytes of an array per byte of its file; published weights are not compressed
GATE_ORDER = (0, 2, 1, 3)  # ELMo: input, cell, forget, output; torch: input, forget, cell, output


def find_files(source: Path) -> tuple[Path, Path] | None:
    """The options and weights files in a folder (`*options.json`, `*weights.hdf5`), None if it is not an ELMo folder."""
    if not source.is_dir() or not (options := sorted(source.glob("*options.json"))):
        return None
    weights = sorted(source.glob("*weights.hdf5"))
    if len(options) != 1 or len(weights) != 1:
        raise UserError(f"{source} contains {len(options)} *options.json and {len(weights)} *weights.hdf5; keep one of each")
    return options[0], weights[0]


def read(options: Path, weights: Path, tokenizer: Tokenizer | None = None) -> tuple[Model, Tokenizer]:
    """The bidirectional LM without its softmax, which was not published. Words are read by characters, so none is unknown."""
    encoder, tokenizer = _read_encoder_config(options), tokenizer or _default_tokenizer()
    tokenizer = encoder.open_vocabulary(tokenizer)
    try:
        import h5py
    except ImportError:
        raise UserError(f"reading {weights} needs h5py: pip install 'bertsmith[elmo]'") from None
    size = require_regular(weights).stat().st_size
    try:
        with h5py.File(weights) as file:
            weights_by_name = _map_weights(encoder, lambda name: _read_dataset(file, name, size))
        if size > (1 << 20) + 2 * sum(weight.nbytes for weight in weights_by_name.values()):
            raise UserError(f"most of its {size:,} bytes belong to no weight; it is damaged, or another file")
    except UserError as error:
        raise UserError(f"{weights}: {error}") from None
    except (OSError, KeyError, ValueError, TypeError, IndexError, AttributeError, RuntimeError) as error:
        raise UserError(f"{weights} does not match {options}: {error}") from None
    shapes = {name: tuple(weight.shape) for name, weight in weights_by_name.items()}
    model = build_for_weights(ModelConfig(encoder=encoder, vocab_size=len(tokenizer)), tokenizer, shapes, options.parent)
    model.load_state_dict(weights_by_name)
    return model.eval(), tokenizer


def _read_dataset(file: Any, name: str, file_size: int) -> NDArray[np.float32]:
    """An array of numbers that is stored in the file itself."""
    dataset = file[name]
    stored_elsewhere = dataset.file.filename != file.filename or getattr(dataset, "is_virtual", False) or dataset.external
    if stored_elsewhere or dataset.dtype.kind != "f" or dataset.nbytes > MAX_COMPRESSION * file_size:
        raise UserError(
            f"{name} of dtype {dataset.dtype} and shape {list(dataset.shape)} is not an array of numbers within this file of "
            f"{file_size:,} bytes"
        )
    return np.asarray(dataset, np.float32)


def _read_encoder_config(path: Path) -> EncoderConfig:
    options = read_object(path)
    try:
        lstm, char_cnn = options["lstm"], options["char_cnn"]
        if char_cnn["n_characters"] != NUM_CHARS + 1 or lstm["cell_clip"] != lstm["proj_clip"]:
            raise UserError(f"{path}: n_characters={char_cnn['n_characters']}, cell_clip={lstm['cell_clip']} and "
                           f"proj_clip={lstm['proj_clip']} are not supported; n_characters must be {NUM_CHARS + 1}, and the "
                           "two clips equal")  # fmt: skip
        embeddings = CharCNNConfig(
            filters=tuple((int(width), int(num_filters)) for width, num_filters in char_cnn["filters"]),
            hidden_act=char_cnn["activation"], embedding_size=char_cnn["embedding"]["dim"],
            max_characters_per_token=char_cnn["max_characters_per_token"], num_highway=char_cnn["n_highway"],
        )  # fmt: skip
        residual: ResidualMode = "between" if lstm["use_skip_connections"] else "none"
        base_config = elmo(lstm["n_layers"], 2 * lstm["projection_dim"], lstm["dim"], residual)
        mixer = Lstm(directions="apart", cell_size=lstm["dim"], cell_clip=lstm["cell_clip"])
        return from_dict(EncoderConfig, to_dict(replace(base_config, embeddings=embeddings, mixer=mixer)), str(path))
    except UserError:  # a ValueError with a message of its own
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is not the options.json of an ELMo model: {error!r} is missing or invalid") from None


def _map_weights(encoder: EncoderConfig, get_array: Any) -> dict[str, Tensor]:
    char_cnn, weights = encoder.embeddings, dict[str, NDArray[np.float32]]()
    assert isinstance(char_cnn, CharCNNConfig)
    table = get_array("char_embed")
    weights["input_embeddings.char_embeddings.weight"] = np.concatenate([np.zeros_like(table[:1]), table])  # row 0: padding
    for i in range(len(char_cnn.filters)):
        weights[f"input_embeddings.filters.{i}.weight"] = get_array(f"CNN/W_cnn_{i}")[0].transpose(2, 1, 0)
        weights[f"input_embeddings.filters.{i}.bias"] = get_array(f"CNN/b_cnn_{i}")
    for i in range(char_cnn.num_highway):
        for ours, theirs in (("transform", "transform"), ("gate", "carry")):
            weights[f"input_embeddings.highways.{i}.{ours}.weight"] = get_array(f"CNN_high_{i}/W_{theirs}").T
            weights[f"input_embeddings.highways.{i}.{ours}.bias"] = get_array(f"CNN_high_{i}/b_{theirs}")
    weights |= {
        "input_embeddings.projection.weight": get_array("CNN_proj/W_proj").T,
        "input_embeddings.projection.bias": get_array("CNN_proj/b_proj"),
    }
    for layer in range(encoder.num_hidden_layers):
        for direction in range(2):
            prefix = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            lstm_weights = _convert_lstm_weights(
                get_array(f"{prefix}/W_0"), get_array(f"{prefix}/B"), get_array(f"{prefix}/W_P_0"), encoder.hidden_size // 2
            )
            weights |= {
                f"stack.layers.{layer}.mixer.directions.{direction}.{name}_l0": value for name, value in lstm_weights.items()
            }
    return {f"encoder.{name}": torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}


def _convert_lstm_weights(
    kernel: NDArray[Any], bias: NDArray[Any], projection: NDArray[Any], input_size: int
) -> dict[str, NDArray[np.float32]]:
    """TensorFlow's LSTM kernel, for [input; hidden] in its gate order, as torch.nn.LSTM's weights.

    TensorFlow adds 1 to the forget bias at run time; here it is added to the bias.
    """
    gates = np.stack(np.split(kernel.T, 4))[list(GATE_ORDER)].reshape(kernel.shape[::-1])
    biases = np.stack(np.split(bias, 4))[list(GATE_ORDER)]
    biases[1] += 1.0
    return {
        "weight_ih": gates[:, :input_size], "weight_hh": gates[:, input_size:], "bias_ih": biases.ravel(),
        "bias_hh": np.zeros_like(bias), "weight_hr": projection.T,
    }  # fmt: skip


def _default_tokenizer() -> Tokenizer:
    """Splits on whitespace, as in ELMo's training data, which was tokenized beforehand."""
    backend = Rust(models.WordLevel({name: number for number, name in enumerate(SPECIAL_TOKENS)}, unk_token=SPECIAL_TOKENS[1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(register_special_tokens(backend), FAMILY)
