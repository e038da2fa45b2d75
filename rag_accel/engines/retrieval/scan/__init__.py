"""Scan clusters for many queries at once, from codes, with the results of a float64 search."""

from rag_accel.engines.retrieval.scan.cluster_scan import scan
from rag_accel.engines.retrieval.scan.codes import ClusterCodes, encode_clusters

__all__ = ["ClusterCodes", "encode_clusters", "scan"]
