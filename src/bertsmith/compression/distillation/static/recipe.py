"""The recipe of a static student."""

from typing import Annotated

from ....config import NonNegFloat, PosInt, Variant


class Static(Variant, frozen=True, tag="static"):
    """A table of token vectors, read off the teacher; with `corpus` it is trained on the teacher's sentence vectors."""

    vector_size: Annotated[PosInt, "dimensions, by PCA; the teacher's hidden_size if that is smaller"] = 256
    sif: Annotated[NonNegFloat, "a of the weights a / (a + p(token)) (SIF, Arora et al. 2017); 0: no weights"] = 1e-4
    sentences: Annotated[PosInt, "corpus: number of sentences whose vectors are learned"] = 100_000
