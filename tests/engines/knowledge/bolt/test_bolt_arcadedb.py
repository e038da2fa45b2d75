"""A knowledge graph in another server that speaks Bolt."""

from __future__ import annotations

from typing import Any

import pytest
from arcadedb_server import DATABASE
from triples import fill, random_graph, walk

from rag_accel.engine_api import ExpandBatch
from rag_accel.engines.knowledge.bolt import BoltGraph
from rag_accel.engines.knowledge.memory import MemoryGraph

pytestmark = pytest.mark.processes


def test_paths_are_those_of_the_same_triples_in_memory(arcadedb_driver: Any) -> None:
    graphs = [random_graph(seed, prefix=f"{seed} ") for seed in range(20)]
    triples = [triple for own in graphs for triple in own]
    fill(arcadedb_driver, triples, database_=DATABASE)
    seeds = [[name for name, _, _ in own[:4]] for own in graphs]
    graph = BoltGraph(arcadedb_driver, database=DATABASE)
    found = walk(graph.view(), seeds, ExpandBatch(None), 2)
    assert graph.trips == 3
    assert found == walk(MemoryGraph(triples).view(), seeds, ExpandBatch(None), 2)
