"""Knowledge graphs in a Neo4j, read over the driver that a program already has."""

from rag_accel.engines.knowledge.bolt.graph import BoltGraph

__all__ = ["BoltGraph"]
