"""The running of packed rows through a model's own forward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from rag_accel.engines.llm.local.batching.rows import SequenceRows
from rag_accel.engines.llm.local.model.attention import Packed
from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.pool import TensorPool
from rag_accel.kv.identity import STATES, model_identity
from rag_accel.kv.rotation import rotation_of


class PackedRunner:
    """A model that computes rows of several sequences in one forward of batch size one.

    Args:
        model: a causal language model of transformers whose attention is that of packed rows.
        pool: the sequences' keys and values.
        vocabulary: the number of logits of a row.
    """

    def __init__(self, model: Any, pool: TensorPool, vocabulary: int) -> None:
        self._model = model
        self.pool = pool
        self.vocabulary = vocabulary

    @property
    def layers(self) -> int:
        return self.pool.keys.shape[0]

    @property
    def context(self) -> int:
        return self.pool.context

    def identity(self) -> str:
        """Return the identity of this model's states; reads all its weights."""
        return states_identity(self._model)

    def run(self, rows: Sequence[SequenceRows]) -> torch.Tensor:
        """Compute the rows and write their keys and values to the pool.

        Return the logits of the asked rows, in order: a tensor ``[asked, vocabulary]``, float32.

        Raises:
            ValueError: two items are of one lane, or slots are outside what a lane was taken for.
        """
        packed = Packed(self.pool, rows)
        device = packed.positions.device
        starts = [0, *accumulate(map(len, rows))]
        asked = [at + row for item, at in zip(rows, starts, strict=False) for row in item.asked]
        output = self._model(
            input_ids=torch.tensor([[id for row in rows for id in row.ids]], device=device),
            position_ids=packed.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(asked, dtype=torch.int64, device=device),
            rag_accel_rows=packed,
        )
        if device.type == "cuda":
            # The call returns before the device is done: its time says how large a forward may be.
            torch.cuda.current_stream(device).synchronize()
        return output.logits[0].float()


@torch.inference_mode()
def states_identity(model: Any) -> str:
    """Return the identity of a model's states; reads all its weights.

    It does not say what computes them: runners are proved equal up to rounding, and states are
    kept in the order and dtype of the model.
    """
    return model_identity(model, how=STATES)


def packed_runner(model: Any, context: int, limit_bytes: int) -> PackedRunner:
    """Return the runner of a copy of a model that attends by packed rows, with a pool of its own.

    Args:
        model: the copy, see ``packed_copy``.
        context: the most tokens of a sequence.
        limit_bytes: the most bytes of keys and values.

    Raises:
        ConfigError: not even a sequence of one token fits.
    """
    shape = ModelShape.of(model.config)
    pool = TensorPool(
        layers=shape.layers,
        heads=shape.heads,
        dim=shape.dim,
        context=context,
        limit_bytes=limit_bytes,
        dtype=model.dtype,
        device=model.device,
        frequencies=rotation_of(model),
    )
    return PackedRunner(model, pool, shape.vocabulary)
