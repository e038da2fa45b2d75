"""Fidelity of answers over reused texts to those of computed prompts, on the user's own model."""

from rag_accel.fidelity.check import ReuseCheck, check_reuse
from rag_accel.fidelity.prompt_file import load_prompts
from rag_accel.fidelity.prompts import TextPrompt
from rag_accel.fidelity.proposal import RatioFidelity

__all__ = ["RatioFidelity", "ReuseCheck", "TextPrompt", "check_reuse", "load_prompts"]
