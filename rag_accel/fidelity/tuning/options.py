"""The options of fine-tuning to dependency attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from rag_accel.engines.option_checks import check_least, check_whole
from rag_accel.errors import ConfigError
from rag_accel.fidelity.tuning.questions import GraphShape
from rag_accel.kv.dependency.positions import PositionScheme, check_scheme

#: Of matrix products; weights are updated in float32.
Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """The bounds and rates of a fine-tuning.

    Args:
        steps: of the optimizer.
        batch: prompts of a step.
        rate: the learning rate, which falls linearly to a twentieth of it.
        scheme: the positions of a tree's tokens; ``shared`` is what
            ``kv_reuse="dependency"`` computes, ``preorder`` the paper's.
        shape: of generated graphs.
        held_out: generated prompts that the exact match is measured on and none is trained on.
        precision: of matrix products; weights are updated in float32.
        checkpoint_every: steps between checkpoints.
        seed: of generated prompts, and of the order of given ones.

    Raises:
        ConfigError: one of them is out of range.
    """

    steps: int = 60
    batch: int = 8
    rate: float = 1e-5
    scheme: PositionScheme = "shared"
    shape: GraphShape = field(default_factory=GraphShape)
    held_out: int = 32
    precision: Precision = "float32"
    checkpoint_every: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "held_out", "checkpoint_every"):
            check_whole(name, getattr(self, name), 1)
        check_whole("seed", self.seed, 0)
        check_least("rate", self.rate, 0)
        check_scheme(self.scheme)
        if self.precision not in PRECISIONS:
            raise ConfigError(
                "option out of range",
                where="precision",
                found=repr(self.precision),
                valid=", ".join(PRECISIONS),
            )
