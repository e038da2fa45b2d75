"""The knowledge graphs of LangChain's packages, which have no base class in common.

They are known by name: neither ``langchain-neo4j`` nor ``langchain-community`` need be there.
"""

from __future__ import annotations

from rag_accel.system.classes import NamedClasses


class QueriedGraph(
    metaclass=NamedClasses,
    names=(
        "langchain_neo4j.graphs.neo4j_graph.Neo4jGraph",
        "langchain_community.graphs.graph_store.GraphStore",
        "langchain_community.graphs.networkx_graph.NetworkxEntityGraph",
    ),
):
    """The graph that a chain asks, by a query of its database or by an entity's name."""
