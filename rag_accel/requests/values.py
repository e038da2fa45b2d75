"""The values of one request, folded where several stages write one output."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Protocol

from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph
from rag_accel.graph.growth import stage_of
from rag_accel.graph.nodes import TURN_MARK, Reducer

_Place = tuple[int, int]


class Readable(Protocol):
    """Values that can be read by name."""

    def read(self, name: str) -> Any:
        """Return a value."""
        ...


class Values:
    """Inputs and outputs by name. Thread-safe.

    Reducers are the user's code: they run in whatever thread reads, never in one that writes.
    """

    def __init__(self, graph: FrozenRAGraph, inputs: Mapping[str, Any]) -> None:
        self._reducers: dict[str, Reducer] = {str(name): fn for name, fn in graph.reducers}
        self._order = {name: place for place, name in enumerate(graph.by_name)}
        self._lock = Lock()
        #: of each reduced output what every run of a stage wrote, by turn and by stage order
        self._written: dict[str, dict[_Place, Any]] = {}
        self._now: dict[str, Any] = dict(inputs)
        #: held while an iterator is read: two that read it would get a part each
        self._keeping = Lock()
        #: iterators that raised before they had given all
        self._broken: dict[str, Exception] = {}
        #: all that is not passed between the primitives of one stage
        self._public = {
            *graph.inputs,
            *inputs,
            *(stage.output for stage in graph.stages if stage.output),
        }

    def write(self, output: str, instance: str, value: Any) -> None:
        """Store the output of one run of a stage."""
        with self._lock:
            self._broken.pop(output, None)
            if output not in self._reducers:
                self._now[output] = value
                return
            turn = int(instance.partition(TURN_MARK)[2] or 1)
            written = self._written.setdefault(output, {})
            written[turn, self._order.get(stage_of(instance), 0)] = value
            self._now.pop(output, None)

    def read(self, name: str) -> Any:
        """Return a value, folded by turn, then by stage order.

        Raises:
            GraphError: if nothing has written it yet on the path taken.
            Exception: whatever the reducer raised.
        """
        with self._lock:
            written = self._written.get(name, {}).copy()
            if name in self._now:
                return self._now[name]
        if not written:
            raise GraphError(
                "a value was read before anything wrote it",
                where=name,
                valid=", ".join(sorted(self._public.intersection(self._names()))),
                hint="every path to this stage must write the value first",
            )
        folded = _fold(self._reducers[name], written)
        with self._lock:
            if len(self._written[name]) == len(written):
                self._now[name] = folded
        return folded

    def keep(self, names: Iterable[str]) -> None:
        """Let values that can be read only once be read again; the user's iterators run here.

        Raises:
            Exception: whatever an iterator raises, now and whenever it is to be kept again.
        """
        for name in names:
            with self._keeping:
                self._keep(name)

    def _keep(self, name: str) -> None:
        if name in self._broken:
            raise self._broken[name]
        value = self.read(name)
        if not isinstance(value, Iterator):
            return
        try:
            items = tuple(value)
        except Exception as error:
            self._broken[name] = error
            raise
        with self._lock:
            self._now[name] = items

    def fold(self, names: Iterable[str]) -> None:
        """Run the reducers of these values now, so that reading them runs none."""
        for name in names:
            self.read(name)

    def snapshot(self) -> dict[str, Any]:
        """Return the inputs and what stages wrote, as it is now. Raises what a reducer raised.

        What primitives of one stage pass to each other is no part of it: prefilled prompts,
        vectors and slices, which depend on how the stage is run.
        """
        return {name: self.read(name) for name in self._names() if name in self._public}

    def has(self, name: str) -> bool:
        """Tell whether something wrote a value."""
        return name in self._names()

    def _names(self) -> dict[str, None]:
        with self._lock:
            return dict.fromkeys((*self._now, *self._written))


class Foreseen:
    """Values of a request of which some are what they may become. Reading only.

    Args:
        values: of the request.
        foreseen: what takes the place of values that it does not have yet.
    """

    def __init__(self, values: Values, foreseen: Mapping[str, Any]) -> None:
        self._values, self._foreseen = values, foreseen

    def read(self, name: str) -> Any:
        """Return a value. Raises as ``Values.read``."""
        return self._foreseen[name] if name in self._foreseen else self._values.read(name)


def _fold(reducer: Reducer, written: Mapping[_Place, Any]) -> Any:
    parts = [part for _, part in sorted(written.items(), key=lambda item: item[0])]
    if len(parts) == 1:
        return parts[0]
    folded = parts[0]
    # Later turns fold the same parts again, and a reducer may add to its left argument in place.
    if isinstance(folded, list | dict | set):
        folded = copy.copy(folded)
    for part in parts[1:]:
        folded = reducer(folded, part)
    return folded
