"""The running of rows by OpenVINO's paged attention: one call of native code a forward."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rag_accel.engines.compiled.compiled_forms import keep_past_fork
from rag_accel.engines.llm.local.batching.rows import Probe, SequenceRows, Subtrees
from rag_accel.engines.llm.local.paged.block_pool import BlockPool
from rag_accel.engines.llm.local.paged.sequences import (
    MASK_INPUTS,
    Stretch,
    operator_inputs,
    stretches,
)
from rag_accel.errors import ForkedError
from rag_accel.system.forks import forks

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.paged.making import GraphForms


class PagedForm:
    """A graph compiled for a number of threads, with a request over the arrays of one pool.

    Args:
        compiled: of OpenVINO.
        pool: the keys and values.
    """

    def __init__(self, compiled: Any, pool: BlockPool) -> None:
        openvino = importlib.import_module("openvino")
        self._tensor = openvino.Tensor
        self._request = compiled.create_infer_request()
        keep_past_fork(self)
        self._has_scores = any("scores" in output.names for output in compiled.outputs)
        self.has_masks = any(MASK_INPUTS[0] in given.names for given in compiled.inputs)
        is_narrow = pool.dtype == torch.bfloat16
        for name, memory in zip(("keys", "values"), pool.arrays, strict=True):
            for layer, array in enumerate(memory):
                if is_narrow:
                    shape = openvino.Shape(list(array.shape))
                    tensor = openvino.Tensor(array, shape, openvino.Type.bf16)
                else:
                    tensor = openvino.Tensor(array, shared_memory=True)
                self._request.set_tensor(f"{name}.{layer}", tensor)

    def run(
        self, inputs: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Return the logits ``[asked, vocabulary]`` and the recorded attention, both copied."""
        for name, array in inputs.items():
            if self.has_masks or name not in MASK_INPUTS:
                self._request.set_tensor(name, self._tensor(array, shared_memory=True))
        self._request.infer()
        logits = self._request.get_output_tensor(0).data[0].copy()
        scores = self._request.get_tensor("scores").data.copy() if self._has_scores else None
        return logits, scores


class PagedRunner:
    """A model compiled by OpenVINO that computes rows of several sequences in one call.

    A row sees all slots of its lane before its own, whatever their positions are.

    Args:
        forms: the graph compiled for numbers of threads.
        pool: the sequences' keys and values.
        layers: of the model.
        vocabulary: the number of logits of a row.
        heads: the query heads of a layer.
        probed: the layer whose attention can be recorded; None for none.
        identify: returns the identity of the model's states.
        copies: tells, as a string, what its compiled forms hold.
    """

    def __init__(
        self,
        forms: GraphForms,
        pool: BlockPool,
        *,
        layers: int,
        vocabulary: int,
        heads: int,
        probed: int | None,
        identify: Callable[[], str],
        copies: object = "",
    ) -> None:
        self.forms = forms
        self.copies = copies
        self.pool = pool
        self.layers = layers
        self.vocabulary = vocabulary
        self._heads = heads
        self._probed = probed
        self._identify = identify
        self._made_at = forks.number

    @property
    def context(self) -> int:
        return self.pool.context

    def identity(self) -> str:
        """Return the identity of this model's states; reads all its weights."""
        return self._identify()

    def run(self, rows: Sequence[SequenceRows]) -> torch.Tensor:
        """Compute the rows and write their keys and values to the pool.

        On as many threads as the calling thread's operations of torch take, see ``thread_count``.
        Return the logits of the asked rows, in order: a tensor ``[asked, vocabulary]``, float32.

        Raises:
            ValueError: two items are of one lane, slots are outside what a lane was taken for,
                attention of a layer is asked for that cannot be recorded, or rows of a tree are not
                neighbours or not the last ones of their lane.
            ForkedError: the runner was made before a fork.
        """
        if forks.number != self._made_at:
            raise ForkedError(
                "a language model compiled before fork() was used in the child",
                where="local language model",
                hint='make the accelerator in the child, there with runner="torch"',
            )
        parts = self._parts(rows)
        starts = [0, *accumulate(map(len, rows))]
        asked = [at + row for item, at in zip(rows, starts, strict=False) for row in item.asked]
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.array([[id for row in rows for id in row.ids]], np.int64),
            "position_ids": np.array([[at for row in rows for at in row.positions]], np.int64),
            "asked": np.array(asked or [0], np.int64),
            **operator_inputs(parts, {row.lane: self.pool.table(row.lane) for row in rows}),
        }
        logits, scores = self.forms.find(torch.get_num_threads()).run(inputs)
        if scores is not None:
            self._record(rows, parts, scores)
        return torch.from_numpy(logits[: len(asked)])

    def _parts(self, rows: Sequence[SequenceRows]) -> list[Stretch]:
        if len({row.lane for row in rows}) < len(rows):
            raise ValueError("the rows of a sequence are one item")
        parts: list[Stretch] = []
        for item in rows:
            is_moved = item.slots is not item.positions and list(item.slots) != list(item.positions)
            self.pool.mark(item.lane, item.slots[-1] + 1, is_moved)
            first = self._first_probed(item)
            runs = list(stretches(item.slots, self.pool.written(item.lane)))
            mask = _mask(item, runs)
            for run in runs:
                self.pool.own(item.lane, run)
                probed = 0 if first is None else max(0, run.stop - max(first, run.start))
                parts.append(Stretch(item.lane, run.start, len(run), probed, mask))
        return parts

    def _first_probed(self, item: SequenceRows) -> int | None:
        """Return the first slot whose row's attention is recorded: it is, of all behind it, too."""
        if item.probe is None:
            return None
        if item.probe.layer != self._probed:
            raise ValueError(f"attention of layer {item.probe.layer} cannot be recorded")
        wanted = list(item.probe.rows)
        if wanted != list(range(len(item) - len(wanted), len(item))):
            raise ValueError("the rows whose attention is recorded are not the last ones")
        return item.slots[wanted[0]]

    def _record(
        self, rows: Sequence[SequenceRows], parts: Sequence[Stretch], scores: NDArray[np.float32]
    ) -> None:
        """Add up, for each probe, what the operator recorded, one sequence behind the other."""
        probes: dict[int, Probe] = {row.lane: row.probe for row in rows if row.probe is not None}
        sums = {lane: np.zeros(self.pool.written(lane), np.float32) for lane in probes}
        at = 0
        for part in parts:
            if part.probed:
                sums[part.lane][: part.end] += scores[at : at + part.end]
            at += part.end
        for lane, probe in probes.items():
            probe.scores = torch.from_numpy(sums[lane] / self._heads)


def _mask(item: SequenceRows, runs: Sequence[range]) -> NDArray[np.bool_] | None:
    if not isinstance(item.visible, Subtrees):
        return None
    if len(runs) != 1:
        raise ValueError("the rows of a tree are not neighbours, or not the last of their lane")
    return item.visible.mask(runs[0])
