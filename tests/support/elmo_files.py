"""A folder in the format of the published ELMo files, with random weights."""

import json
from pathlib import Path

import h5py
import numpy as np

FILTERS, CHAR_DIM, CELL_SIZE, PROJECTION_DIM, CLIP, LAYERS = [[1, 3], [2, 4], [4, 5]], 4, 7, 6, 0.15, 2
NUM_FILTERS = sum(count for _, count in FILTERS)


def write_published_files(folder, residual=True, **overrides):
    """A folder in the format of the published files, with random weights."""
    rng, folder = np.random.default_rng(0), Path(folder)
    folder.mkdir()
    lstm = {"cell_clip": CLIP, "proj_clip": CLIP, "n_layers": LAYERS, "projection_dim": PROJECTION_DIM, "dim": CELL_SIZE}
    char_cnn = {"filters": FILTERS, "n_highway": 2, "n_characters": 262, "max_characters_per_token": 50, "activation": "relu"}
    options = {
        "lstm": lstm | {"use_skip_connections": residual},
        "char_cnn": char_cnn | {"embedding": {"dim": CHAR_DIM}} | overrides,
    }
    (folder / "tiny_options.json").write_text(json.dumps(options))
    sizes = {
        "char_embed": (261, CHAR_DIM),
        "CNN_proj/W_proj": (NUM_FILTERS, PROJECTION_DIM),
        "CNN_proj/b_proj": (PROJECTION_DIM,),
    }
    for i, (kernel_size, out_channels) in enumerate(FILTERS):
        sizes |= {f"CNN/W_cnn_{i}": (1, kernel_size, CHAR_DIM, out_channels), f"CNN/b_cnn_{i}": (out_channels,)}
    for i in range(2):
        for name in ("transform", "carry"):
            sizes |= {f"CNN_high_{i}/W_{name}": (NUM_FILTERS, NUM_FILTERS), f"CNN_high_{i}/b_{name}": (NUM_FILTERS,)}
    for direction in range(2):
        for layer in range(LAYERS):
            prefix = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            sizes |= {
                f"{prefix}/W_0": (2 * PROJECTION_DIM, 4 * CELL_SIZE),
                f"{prefix}/B": (4 * CELL_SIZE,),
                f"{prefix}/W_P_0": (CELL_SIZE, PROJECTION_DIM),
            }
    with h5py.File(folder / "tiny_weights.hdf5", "w") as file:
        for name, size in sizes.items():
            file[name] = rng.normal(0, 0.5, size).astype(np.float32)
    return folder
