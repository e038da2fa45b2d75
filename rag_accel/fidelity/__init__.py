"""Fidelity of another way to compute a model to its own: reused texts, trees, int8 weights."""

from rag_accel.fidelity.model_check import check, check_paths, check_reuse, check_weights
from rag_accel.fidelity.prompt_file import load_prompts
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.proposal import RatioFidelity
from rag_accel.fidelity.result import CheckResult
from rag_accel.fidelity.variants import VARIANTS, Variant

__all__ = [
    "VARIANTS",
    "CheckResult",
    "RatioFidelity",
    "TextPrompt",
    "Variant",
    "check",
    "check_paths",
    "check_reuse",
    "check_weights",
    "load_prompts",
]
