"""Fidelity of answers over reused texts, trees of paths, or int8 weights to a model's own."""

from rag_accel.fidelity.agreement import AgreementCheck
from rag_accel.fidelity.check import ReuseCheck, check_reuse
from rag_accel.fidelity.paths_check import check_paths
from rag_accel.fidelity.prompt_file import load_prompts
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.proposal import RatioFidelity
from rag_accel.fidelity.weights_check import check_weights

__all__ = [
    "AgreementCheck",
    "RatioFidelity",
    "ReuseCheck",
    "TextPrompt",
    "check_paths",
    "check_reuse",
    "check_weights",
    "load_prompts",
]
