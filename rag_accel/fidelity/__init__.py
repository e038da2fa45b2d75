"""Fidelity of answers over reused texts, or by int8 weights, to the user's own model's."""

from rag_accel.fidelity.check import ReuseCheck, check_reuse
from rag_accel.fidelity.prompt_file import load_prompts
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.proposal import RatioFidelity
from rag_accel.fidelity.weights_check import WeightsCheck, check_weights

__all__ = [
    "RatioFidelity",
    "ReuseCheck",
    "TextPrompt",
    "WeightsCheck",
    "check_reuse",
    "check_weights",
    "load_prompts",
]
