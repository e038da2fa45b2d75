"""The workflows that HedraRAG and Teola measure, as graphs to run or to start from.

Each function returns a fresh ``RAGraph`` with the input ``input``. Prompts, engines and bounds are
arguments; two calls with equal arguments give equal graphs.
"""

from rag_accel.workflows.document_qa import advanced_document_qa, naive_document_qa
from rag_accel.workflows.history import Conversation
from rag_accel.workflows.iterative import irg, multistep
from rag_accel.workflows.single_pass import hyde, one_shot, recomp, search_backed
from rag_accel.workflows.synthesis import Synthesis, SynthesisMode
from rag_accel.workflows.upload import Ingest, Upload, ingest_into

__all__ = [
    "Conversation",
    "Ingest",
    "Synthesis",
    "SynthesisMode",
    "Upload",
    "advanced_document_qa",
    "hyde",
    "ingest_into",
    "irg",
    "multistep",
    "naive_document_qa",
    "one_shot",
    "recomp",
    "search_backed",
]
