"""Forwards over runs of rows, outside the server's schedule.

Each run of neighbouring rows is a request of its own to the attention backend, one that shares the
blocks of the real request: its queries are the run, its length ends with it. The unchanged causal
kernel is right for every row.
"""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class RowRun:
    """Neighbouring rows of one sequence.

    Args:
        ids: their tokens.
        start: the position of the first.
        blocks: of the sequence; they hold all positions up to the last row.
        prompt: the index of the prompt whose queries are taken; None for rows that are not asked.
    """

    ids: tuple[int, ...]
    start: int
    blocks: Sequence[int]
    prompt: int | None = None

    @property
    def stop(self) -> int:
        """Return the position behind the last row."""
        return self.start + len(self.ids)


class _StopForward(Exception):
    """The layer asked for is computed; those above are not needed."""


class RowForward:
    """The model of one worker as it computes runs of rows.

    Args:
        config: vLLM's ``VllmConfig``.
        runner: the worker's model runner.
    """

    def __init__(self, config: Any, runner: Any) -> None:
        self._config = config
        self._runner = runner
        self._block = config.cache_config.block_size
        limits = config.scheduler_config
        self._most = limits.max_num_batched_tokens
        # Buffers of backends on accelerators are made for so many requests.
        is_bounded = runner is not None and runner.device.type != "cpu"
        self._most_runs = limits.max_num_seqs if is_bounded else self._most

    def run(self, runs: Sequence[RowRun]) -> None:
        """Compute runs; their keys and values are written to their blocks.

        Runs of one sequence see each other's rows of lower positions: they are given in ascending
        order, so that this holds where the rows do not fit into one forward.
        """
        for pack in row_packs(runs, self._most, self._most_runs):
            self._forward(pack)

    def run_up_to(
        self, runs: Sequence[RowRun], layer: Any, take: Callable[[RowRun, torch.Tensor], None]
    ) -> None:
        """Compute runs up to the attention of a layer, without what is above it.

        Args:
            runs: as of ``run``.
            layer: an attention layer of vLLM.
            take: is given each run, or a piece of it, with its queries ``[row, head, dim]`` as the
                layer sees them, while the layer's keys are in the cache.
        """
        for pack in row_packs(runs, self._most, self._most_runs):

            def taken(module: Any, inputs: tuple[Any, ...], given: dict[str, Any], _: Any) -> None:
                queries = inputs[0] if inputs else given["query"]
                queries = queries.view(-1, layer.num_heads, layer.head_size)
                at = 0
                for run in pack:  # noqa: B023 - the hook is removed before the next pack
                    take(run, queries[at : at + len(run.ids)])
                    at += len(run.ids)
                if not self._streams_weights:
                    raise _StopForward

            hook = layer.register_forward_hook(taken, with_kwargs=True)
            try:
                self._forward(pack)
            except _StopForward:
                pass
            finally:
                hook.remove()

    @cached_property
    def _streams_weights(self) -> bool:
        """Tell whether each layer fetches the weights of later ones: a forward runs to its end."""
        offload = getattr(self._config, "offload_config", None)
        prefetch = getattr(offload, "prefetch", None)
        return (
            getattr(offload, "offload_backend", "") == "prefetch"
            or getattr(prefetch, "offload_group_size", 0) > 0
        )

    @cached_property
    def _builders(self) -> list[tuple[Any, Sequence[str]]]:
        """The makers of metadata, with the layers of each.

        They are not the runner's: some keep the plan of the last batch, which the server's own
        forward of this step has still to read.
        """
        found: list[tuple[Any, Sequence[str]]] = []
        for groups in self._runner.attn_groups:
            for group in groups:
                own = group.get_metadata_builder(0)
                made = type(own)(
                    own.kv_cache_spec, group.layer_names, self._config, self._runner.device
                )
                found.append((made, group.layer_names))
        return found

    def _forward(self, runs: Sequence[RowRun]) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import set_forward_context

        device = self._runner.device
        ids = torch.tensor([id for run in runs for id in run.ids], device=device)
        places = [torch.arange(run.start, run.stop) for run in runs]
        positions = torch.cat(places).to(device)
        slots = torch.cat([self._slots(run, at) for run, at in zip(runs, places, strict=True)]).to(
            device
        )
        with set_current_vllm_config(self._config), torch.inference_mode():
            common = self._common(runs, positions, slots)
            metadata: dict[str, Any] = {}
            for builder, names in self._builders:
                metadata |= dict.fromkeys(names, builder.build(0, common))
            with set_forward_context(
                metadata,
                self._config,
                num_tokens=len(ids),
                slot_mapping=dict.fromkeys(metadata, slots),
                skip_compiled=True,
            ):
                self._runner.model(input_ids=ids, positions=positions)

    def _slots(self, run: RowRun, places: torch.Tensor) -> torch.Tensor:
        numbers = torch.tensor(run.blocks, dtype=torch.int64)[places // self._block]
        return numbers * self._block + places % self._block

    def _common(self, runs: Sequence[RowRun], positions: torch.Tensor, slots: torch.Tensor) -> Any:
        from vllm.v1.attention.backend import CommonAttentionMetadata

        device = self._runner.device
        lengths = torch.tensor([len(run.ids) for run in runs], dtype=torch.int32)
        starts = torch.zeros(len(runs) + 1, dtype=torch.int32)
        starts[1:] = lengths.cumsum(0)
        stops = torch.tensor([run.stop for run in runs], dtype=torch.int32)
        tables = torch.zeros(len(runs), -(-int(stops.max()) // self._block), dtype=torch.int32)
        for at, run in enumerate(runs):
            used = run.blocks[: -(-run.stop // self._block)]
            tables[at, : len(used)] = torch.tensor(used, dtype=torch.int32)
        return CommonAttentionMetadata(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=stops.to(device),
            num_reqs=len(runs),
            num_actual_tokens=len(positions),
            max_query_len=int(lengths.max()),
            max_seq_len=int(stops.max()),
            block_table_tensor=tables.to(device),
            slot_mapping=slots,
            causal=True,
            positions=positions,
        )


def row_packs(runs: Sequence[RowRun], most: int, most_runs: int) -> list[list[RowRun]]:
    """Return the runs of each forward of at most so many rows and runs; a run may be cut.

    Within a forward short runs come first, since some backends take them for decoding rows only
    there; what rows see does not depend on it.
    """
    packs: list[list[RowRun]] = []
    room = 0
    for run in runs:
        rest = run
        while rest.ids:
            if room == 0 or len(packs[-1]) == most_runs:
                packs.append([])
                room = most
            count = min(room, len(rest.ids))
            packs[-1].append(replace(rest, ids=rest.ids[:count]))
            rest = replace(rest, ids=rest.ids[count:], start=rest.start + count)
            room -= count
    return [sorted(pack, key=lambda run: len(run.ids)) for pack in packs]
