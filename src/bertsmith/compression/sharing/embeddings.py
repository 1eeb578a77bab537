"""Factorize the token table by truncated SVD: V x H becomes V x k and k x H, with the least squared error of any rank k."""

from typing import NamedTuple

import msgspec
import torch

from ...errors import UserError
from ...model.config import EncoderConfig
from ...model.embeddings import FactorizedConfig
from ...model.heads import LM_HEAD, LMHeadConfig
from ...model.model import Model

TABLE, PROJECTION = "encoder.word_embeddings.weight", "encoder.input_embeddings.projection.weight"


class Factorized(NamedTuple):
    """The model with a factorized table, and the relative error of the table: ||E - E_k|| / ||E||, Frobenius norms."""

    model: Model
    error: float


def check_table(encoder: EncoderConfig, embedding_size: int) -> None:
    """Raises a UserError for a model without a table of the hidden size, or an embedding_size that saves nothing."""
    if encoder.embedding_size is not None and encoder.embeddings is None:
        raise UserError(f"the token embeddings are factorized already (embedding_size={encoder.embedding_size}); leave out "
                       "embedding_size")  # fmt: skip
    if encoder.embeddings is not None:
        raise UserError("embedding_size factorizes a table of token vectors, which this model does not have; leave it out")
    if encoder.separates_directions or encoder.reversible:
        raise UserError("embedding_size needs a model with one stream of hidden states; leave it out")
    if embedding_size > encoder.hidden_size:
        raise UserError(f"embedding_size={embedding_size} is more than the hidden size {encoder.hidden_size}; lower it")


@torch.no_grad()
def factorize_embeddings(model: Model, embedding_size: int) -> Factorized:
    """E = U S V^T of the token table; the new table is U_k sqrt(S_k), the projection V_k sqrt(S_k), for the k largest values.

    Both factors are of one scale. The squared error is the sum of the squares of the singular values that are left out (Eckart
    and Young 1936). A tied language-model head uses the same product.
    """
    encoder = model.config.encoder
    check_table(encoder, embedding_size)
    head = model.config.heads.get(LM_HEAD)
    if head is not None and not isinstance(head, LMHeadConfig):
        raise UserError(
            f"embedding_size does not work with the head `{LM_HEAD}` of kind {head.__struct_config__.tag}; leave it out"
        )
    table = model.state_dict()[TABLE].double()
    u, s, vt = torch.linalg.svd(table, full_matrices=False)
    kept = s[:embedding_size].sqrt()
    factorized = msgspec.structs.replace(encoder, embeddings=FactorizedConfig(embedding_size=len(kept)))
    with torch.random.fork_rng(devices=[]):  # torch's layers draw the weights that are loaded next
        smaller = Model(msgspec.structs.replace(model.config, encoder=factorized), init_weights=False)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    weights[TABLE] = (u[:, : len(kept)] * kept).to(weights[TABLE].dtype)
    weights[PROJECTION] = (vt[: len(kept)].T * kept).to(weights[TABLE].dtype).contiguous()
    smaller.load_state_dict(weights)
    error = float(s[len(kept) :].square().sum().sqrt() / s.norm())
    return Factorized(smaller.train(model.training), error)
