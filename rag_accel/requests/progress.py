"""Follow how far one request has grown, and which of its stages led to END."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.growth import StageInstance, choose, grow, stage_of
from rag_accel.graph.nodes import END, START, StageName
from rag_accel.graph.primitives import Primitive, PrimitiveName
from rag_accel.graph.stages import Branch
from rag_accel.passes.context import PassContext, restore_waits
from rag_accel.passes.decompose import Engines, decompose
from rag_accel.passes.manager import run_passes


class Progress:
    """Grow one request. Its caller sees to it that only one thread does at a time.

    ``passes`` names the static passes that rewrite what is grown; by default all there are.
    """

    def __init__(
        self,
        graph: FrozenRAGraph,
        engines: Engines,
        max_loops: int,
        passes: frozenset[str] | None = None,
    ) -> None:
        self._graph = graph
        self._context = PassContext(
            engines, frozenset(output for output, _ in graph.reducers), passes
        )
        self._max_loops = max_loops
        #: what passes let primitives go without, for later regions that wait for these
        self._freed: dict[PrimitiveName, tuple[PrimitiveName, ...]] = {}
        self._instances: dict[str, StageInstance] = {}
        self._before_end: frozenset[StageName] = frozenset()

    def start(self) -> Sequence[Primitive]:
        """Return the primitives that START sets free."""
        return self._grow([START])

    def decide(self, branch: Primitive, answer: Any) -> Sequence[Primitive]:
        """Return the primitives that a condition's answer sets free.

        Raises:
            GraphError: if the answer names no stage the branch may choose, or a loop turned too
                often.
        """
        instance = self._instances[branch.instance]
        assert isinstance(instance.stage, Branch), "only branches are conditions"
        chosen = choose(self._graph, instance.stage, answer)
        if not chosen or (isinstance(answer, list | tuple) and END in answer):
            self._before_end |= {stage_of(name) for name in instance.after}
        return self._grow(chosen) if chosen else ()

    def results(self) -> list[str]:
        """Return the outputs of the stages that led to END, in the order of the stages."""
        stages = [s for name, s in self._graph.by_name.items() if name in self._before_end]
        return list(dict.fromkeys(str(stage.output) for stage in stages if stage.output))

    def is_sure_to_be_last(self, primitive: Primitive) -> bool:
        """Tell whether a generation's text is the result, whatever conditions still decide."""
        return (
            primitive.kind is PrimitiveKind.DECODING
            and self._before_end == {primitive.stage}
            and self._graph.successors[primitive.stage] == (END,)
        )

    def _grow(self, entries: Sequence[str]) -> Sequence[Primitive]:
        region = grow(self._graph, entries, self._instances.values(), self._max_loops)
        for instance in region:
            self._instances[instance.name] = instance
        self._before_end |= {
            instance.stage.name
            for instance in region
            if END in self._graph.successors[instance.stage.name]
        }
        lowered = decompose(region, self._context.engines)
        plan = run_passes(restore_waits(lowered, self._freed), self._context)
        self._freed.update(plan.freed)
        return plan.graph.primitives
