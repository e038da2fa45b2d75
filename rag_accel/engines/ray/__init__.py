"""Engines in actors of a Ray cluster, and exact search over shards.

Ray is imported by ``engine.py`` alone, when a first engine is made; nothing here starts a cluster.
"""

from rag_accel.engines.ray.engine import RayEngine, RayOptions
from rag_accel.engines.ray.shards.ray_shards import RayShards
from rag_accel.engines.ray.shards.shard_files import split_index, write_shards

__all__ = ["RayEngine", "RayOptions", "RayShards", "split_index", "write_shards"]
