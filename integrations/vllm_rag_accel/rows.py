"""Rows of prompts that the worker computes beside the server's schedule.

Each run of neighbouring rows is a request of its own to the attention backend, one that shares the
blocks of the real request: its queries are the run, its length ends with it. The unchanged causal
kernel is right for every row.
"""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rag_accel.kv.entry import KeyValues
from vllm_rag_accel.loading import BlockStates
from vllm_rag_accel.step_plan import PromptLoad, PromptPart


@dataclass(frozen=True, slots=True)
class RowRun:
    """Neighbouring rows of one sequence.

    Args:
        ids: their tokens.
        start: the position of the first.
        blocks: of the sequence; they hold all positions up to the last row.
    """

    ids: tuple[int, ...]
    start: int
    blocks: Sequence[int]

    @property
    def stop(self) -> int:
        """Return the position behind the last row."""
        return self.start + len(self.ids)


class VirtualRows:
    """Rows computed by the model of one worker.

    Args:
        config: vLLM's ``VllmConfig``.
        runner: the worker's model runner.
    """

    def __init__(self, config: Any, runner: Any) -> None:
        self._config = config
        self._runner = runner
        self._block = config.cache_config.block_size

    def encode(
        self, load: PromptLoad, parts: Sequence[PromptPart], blocks: BlockStates
    ) -> Mapping[bytes, KeyValues]:
        """Return states of parts behind the head, by key.

        Blocks of the request's own, which are written later, hold them meanwhile: those behind its
        head. A part that does not fit into what is left of them is left out.
        """
        head, block = load.layout.head, self._block
        whole = head // block
        own = max(-(-load.begin // block), -(-head // block))
        free = load.blocks[own : -(-load.scheduled // block)]
        runs: list[RowRun] = []
        if load.begin < head:
            known = next((part for part in load.layout.parts if part.stop <= head), None)
            if known is None or load.begin < known.stop:
                runs.append(RowRun(load.ids[load.begin : head], load.begin, load.blocks))
        placed: dict[bytes, tuple[PromptPart, list[int]]] = {}
        for part in parts:
            count = -(-(head - whole * block + len(part.ids)) // block)
            if part.key in placed or count > len(free):
                continue
            table = [*load.blocks[:whole], *free[:count]]
            free = free[count:]
            placed[part.key] = part, table
            ids = (*load.ids[whole * block : head], *part.ids)
            runs.append(RowRun(ids, whole * block, table))
        if runs:
            self.run(runs)
        return {
            key: blocks.read(blocks.slots(table, head, head + len(part.ids)), head)
            for key, (part, table) in placed.items()
        }

    def fill(self, loads: Sequence[tuple[PromptLoad, Sequence[range]]]) -> None:
        """Compute places of prompts whose other places up to them are there."""
        runs = [
            RowRun(load.ids[place.start : place.stop], place.start, load.blocks)
            for load, places in loads
            for place in places
        ]
        if runs:
            self.run(runs)

    def choose(self, load: PromptLoad, gaps: Sequence[range], blocks: BlockStates) -> list[int]:
        """Return the places of texts to compute again."""
        raise NotImplementedError

    def run(self, runs: Sequence[RowRun]) -> None:
        """Compute runs in one forward; their keys and values are written to their blocks.

        Runs of one sequence see each other's rows of lower positions.
        """
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import set_forward_context
        from vllm.v1.attention.backend import CommonAttentionMetadata

        device = self._runner.device
        lengths = torch.tensor([len(run.ids) for run in runs], dtype=torch.int32)
        starts = torch.zeros(len(runs) + 1, dtype=torch.int32)
        starts[1:] = lengths.cumsum(0)
        stops = torch.tensor([run.stop for run in runs], dtype=torch.int32)
        ids = torch.tensor([id for run in runs for id in run.ids], device=device)
        places = [torch.arange(run.start, run.stop) for run in runs]
        slots = torch.cat(
            [
                torch.tensor(run.blocks, dtype=torch.int64)[at // self._block] * self._block
                + at % self._block
                for run, at in zip(runs, places, strict=True)
            ]
        ).to(device)
        positions = torch.cat(places).to(device)
        tables = torch.zeros(len(runs), -(-int(stops.max()) // self._block), dtype=torch.int32)
        for at, run in enumerate(runs):
            used = run.blocks[: -(-run.stop // self._block)]
            tables[at, : len(used)] = torch.tensor(used, dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=stops.to(device),
            num_reqs=len(runs),
            num_actual_tokens=len(ids),
            max_query_len=int(lengths.max()),
            max_seq_len=int(stops.max()),
            block_table_tensor=tables.to(device),
            slot_mapping=slots,
            causal=True,
            positions=positions,
        )
        metadata: dict[str, Any] = {}
        mapping: dict[str, torch.Tensor] = {}
        for groups in self._runner.attn_groups:
            for group in groups:
                built = group.get_metadata_builder(0).build(0, common)
                metadata |= dict.fromkeys(group.layer_names, built)
                mapping |= dict.fromkeys(group.layer_names, slots)
        with (
            set_current_vllm_config(self._config),
            set_forward_context(
                metadata,
                self._config,
                num_tokens=len(ids),
                slot_mapping=mapping,
                skip_compiled=True,
            ),
            torch.inference_mode(),
        ):
            self._runner.model(input_ids=ids, positions=positions)
