"""The wish for a runner of a model, made of its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rag_accel.engines.llm.local.model.families import ModelShape
from rag_accel.engines.llm.local.model.shared_weights import always
from rag_accel.engines.llm.local.options import LocalOptions, RunnerName, WeightsName
from rag_accel.errors import ConfigError
from rag_accel.system.processor import usable_cores


@dataclass(frozen=True, slots=True)
class RunnerWish:
    """The wish for a runner.

    Args:
        name: ``auto``, or the one that is to be taken.
        threads: the most of a forward.
        pool_bytes: the most bytes of keys and values.
        context: the most tokens of a sequence; None for what the model was made for.
        probed: the layer whose attention is to be recorded; None for none.
        waits: whether to wait for a trace that is not kept, some ten seconds.
        weights: ``own``, or ``int8``, which only paged attention computes with.
        weights_disk_bytes: the most bytes of files of int8 weights.
        model: the name of the model, for lists of such files.
        reuses: whether states are to be moved and rows computed again among them.
        trees: whether rows of trees are to be computed.
        is_same: tells whether the model has not changed since; from any thread.
    """

    name: RunnerName
    threads: int
    pool_bytes: int
    context: int | None = None
    probed: int | None = None
    waits: bool = True
    weights: WeightsName = "own"
    weights_disk_bytes: int = 0
    model: str = ""
    reuses: bool = False
    trees: bool = False
    is_same: Callable[[], bool] = always

    @property
    def leaves_choice(self) -> bool:
        """Tell whether torch may run the model, too."""
        return self.name == "auto" and self.weights == "own"

    @classmethod
    def of(
        cls,
        source: Any,
        name: str,
        options: LocalOptions,
        *,
        context: int | None,
        pool_bytes: int | None,
        waits: bool,
        is_same: Callable[[], bool],
    ) -> RunnerWish:
        """Return the wish for a model by its options, see ``loading.load``.

        Raises:
            ConfigError: the context is not one that the model was made for.
        """
        shape = ModelShape.of(source.config)
        if context is not None and not 1 <= context <= shape.context:
            raise ConfigError(
                "the context is not one that the model was made for",
                where="context",
                found=context,
                valid=f"1 to {shape.context}",
            )
        return cls(
            name=options.runner,
            threads=usable_cores() if options.max_threads is None else options.max_threads,
            pool_bytes=options.pool_bytes if pool_bytes is None else pool_bytes,
            context=context,
            probed=options.scored_layer(shape.layers),
            waits=waits,
            weights=options.weights,
            weights_disk_bytes=options.weights_disk_bytes,
            model=name,
            reuses=options.kv_reuse != "exact",
            trees=options.reuses_paths,
            is_same=is_same,
        )
