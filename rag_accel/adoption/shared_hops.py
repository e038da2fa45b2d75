"""Hops over the triplets of foreign stores, on an engine that all requests share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from rag_accel.accelerator import RequestIdentity, Work
from rag_accel.adoption.triplets import (
    Numbers,
    Places,
    TripletGraph,
    TripletView,
    hop_from,
    places_in,
)
from rag_accel.engine_api import PrimitiveKind
from rag_accel.engines.knowledge.engine import KnowledgeEngine

#: what the engines are called, before a number
ENGINE = "graph"


@dataclass(frozen=True, slots=True)
class SharedHops:
    """The hops of one run over one store.

    Args:
        identity: the run.
        graph: what the engine runs; must not keep the store alive.
        holder: with which the engine lives and goes.
    """

    identity: RequestIdentity
    graph: TripletGraph
    holder: Any

    def around(self, view: TripletView, numbers: Numbers) -> Places:
        """Return the places of all triplets that touch these nodes, in a state of the store."""
        work = self._work(view, numbers)
        paths = self.identity.accelerator.leaves.compute(self.identity, work)
        return places_in(paths, view.index)

    async def aaround(self, view: TripletView, numbers: Numbers) -> Places:
        """Do as ``around`` without blocking the loop."""
        work = self._work(view, numbers)
        paths = await self.identity.accelerator.leaves.acompute(self.identity, work)
        return places_in(paths, view.index)

    def _work(self, view: TripletView, numbers: Numbers) -> Work:
        accelerator, make = self.identity.accelerator, partial(KnowledgeEngine, self.graph)
        engine = accelerator.own(self.graph, ENGINE, make, holder=self.holder)
        hop = hop_from(view, numbers, accelerator.options.namespace)
        # Never shared: an equal hop that began before a change must not answer a later one.
        return Work(engine, PrimitiveKind.EXPANDING, hop)
