"""Prune the vocabulary: tokens that a corpus does not use leave the tokenizer, and their rows the embedding tables."""

import msgspec
import torch

from ...errors import UserError
from ...model.embeddings import FactorizedConfig
from ...model.model import Model
from ...model.surgery import VOCAB_TENSORS
from ...tokenization.shrink import ShrunkTokenizer


def check_vocabulary(model: Model) -> None:
    """Raises a UserError for a model whose input or output is more than a row for each token."""
    encoder, vocab_size = model.config.encoder, model.config.vocab_size
    if not isinstance(encoder.embeddings, FactorizedConfig | None) or model.decoder is not None:
        raise UserError("unit=vocab needs a model with a token table and no decoder; leave it out")
    weights = model.state_dict()
    if other := [name for name, weight in weights.items() if len(weight.shape) and len(weight) == vocab_size
                 and name not in VOCAB_TENSORS and not name.startswith("encoder.stack.")]:  # fmt: skip
        raise UserError(f"unit=vocab cannot remove the rows of {other[0]}; leave it out")


@torch.no_grad()
def select_rows(model: Model, shrunk: ShrunkTokenizer) -> Model:
    """The model with the rows of the kept tokens; what it computes for them is unchanged."""
    check_vocabulary(model)
    rows = torch.from_numpy(shrunk.kept_ids)
    config = msgspec.structs.replace(model.config, vocab_size=len(rows))
    with torch.random.fork_rng(devices=[]):  # torch's layers draw the weights that are loaded next
        smaller = Model(config, shrunk.tokenizer, init_weights=False)
    weights = {
        name: weight.index_select(0, rows.to(weight.device)) if name in VOCAB_TENSORS else weight.clone()
        for name, weight in model.state_dict().items()
    }
    smaller.load_state_dict(weights)
    return smaller.to(next(model.parameters()).device).train(model.training)
