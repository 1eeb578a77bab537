"""Which layers of the teacher initialize a student, and which teach it."""

from collections.abc import Sequence
from typing import Literal

from ...errors import UserError

InitLayers = Literal["uniform", "first", "last", "none"]
LayerMap = Literal["uniform", "last"]


def initial_layers(choice: InitLayers | Sequence[int], num_layers: int, num_teacher_layers: int) -> list[int]:
    """The layers of the teacher, counted from 1, that a student of `num_layers` starts from; empty for `none`.

    `uniform`: evenly spaced, the first and the last among them: 1, 3, 5, 8, 10, 12 for six of twelve, as in DistilBERT.
    """
    if choice == "none" or not num_layers:
        return []
    if num_layers > num_teacher_layers:
        raise UserError(f"a student of {num_layers} layers cannot take them from a teacher of {num_teacher_layers}; set "
                       "student.num_hidden_layers lower, or student.init_layers=none")  # fmt: skip
    if choice == "first":
        return list(range(1, num_layers + 1))
    if choice == "last":
        return list(range(num_teacher_layers - num_layers + 1, num_teacher_layers + 1))
    if choice == "uniform":
        step = (num_teacher_layers - 1) / max(1, num_layers - 1)
        return [1 + int(layer * step + 0.5) for layer in range(num_layers)]
    return _check_list("student.init_layers", choice, num_layers, num_teacher_layers)


def map_layers(choice: LayerMap | Sequence[int], num_layers: int, num_teacher_layers: int) -> list[int]:
    """The layer of the teacher, counted from 1, that teaches each layer of the student.

    `uniform`: g(m) = m N / M, rounded (TinyBERT, section 3); `last`: the last M layers.
    """
    if choice == "uniform":
        return [max(1, int(m * num_teacher_layers / num_layers + 0.5)) for m in range(1, num_layers + 1)]
    if choice == "last":
        if num_layers > num_teacher_layers:
            raise UserError(f"loss.layer_map=last needs a student with no more layers ({num_layers}) than its teacher "
                           f"({num_teacher_layers}); set loss.layer_map=uniform")  # fmt: skip
        return list(range(num_teacher_layers - num_layers + 1, num_teacher_layers + 1))
    return _check_list("loss.layer_map", choice, num_layers, num_teacher_layers)


def _check_list(key: str, layers: Sequence[int], num_layers: int, num_teacher_layers: int) -> list[int]:
    if len(layers) != num_layers:
        raise UserError(f"{key}={list(layers)} names {len(layers)} layers of the teacher for a student of {num_layers}; "
                       "give one for each layer of the student")  # fmt: skip
    if wrong := [layer for layer in layers if not 1 <= layer <= num_teacher_layers]:
        raise UserError(f"{key}: there is no layer {wrong[0]}; the teacher has layers 1 to {num_teacher_layers}")
    return list(layers)
