"""Hold a graph that is compiled for an accelerator, to be run many times."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.requests.execution import Execution, RunHandle


class CompiledGraph:
    """A graph verified and lowered for the engines of one accelerator (``Accelerator.compile``).

    Running the graph itself does the same work once, on its first run; this says so beforehand,
    and raises beforehand what is wrong with it. Engines that are added later are known here too.
    """

    def __init__(self, execution: Execution, graph: FrozenRAGraph) -> None:
        execution.plan(graph).start()
        self._execution = execution
        self.graph = graph

    def run(
        self,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> Any:
        """Run it and return its result. Raises as ``Accelerator.run``."""
        return self._execution.run(self.graph, inputs, outputs, deadline_s)

    async def arun(
        self,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> Any:
        """Run it without blocking the loop. Raises as ``Accelerator.run``."""
        return await self._execution.arun(self.graph, inputs, outputs, deadline_s)

    def stream(self, /, *, deadline_s: float | None = None, **inputs: Any) -> Iterator[str]:
        """Yield the text of its last generation as it is made. Raises as ``Accelerator.run``."""
        return self._execution.stream(self.graph, inputs, deadline_s)

    def astream(self, /, *, deadline_s: float | None = None, **inputs: Any) -> AsyncIterator[str]:
        """Yield the text of its last generation on this loop. Raises as ``Accelerator.run``."""
        return self._execution.astream(self.graph, inputs, deadline_s)

    def submit(
        self,
        /,
        *,
        outputs: Sequence[str] | None = None,
        deadline_s: float | None = None,
        **inputs: Any,
    ) -> RunHandle:
        """Start it and return a handle at once. Raises as ``Accelerator.submit``."""
        return self._execution.submit(self.graph, inputs, outputs, deadline_s)
