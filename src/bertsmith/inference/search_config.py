"""Decoding settings of a task whose model generates text."""

from ..model.generation.config import Beam, GenerationConfig, Greedy
from ..tasks import Seq2Seq


def build_search_config(task: Seq2Seq) -> GenerationConfig:
    """Decoding settings of a task: greedy or beam search."""
    if task.num_beams == 1:
        return Greedy(max_new_tokens=task.max_target_length)
    return Beam(
        max_new_tokens=task.max_target_length,
        num_beams=task.num_beams,
        length_penalty=task.length_penalty,
        length_penalty_type=task.length_penalty_type,
    )
