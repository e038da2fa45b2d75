"""The leaves of programs of neo4j-graphrag that engines here may run."""

from neo4j_graphrag.embeddings.base import Embedder

from rag_accel.adoption.recognised_parts import RecognisedParts
from rag_accel_adapters.neo4j_graphrag.models import EMBEDDERS

RECOGNISED = RecognisedParts(Embedder, EMBEDDERS)
