"""Scheduler and engines, composed into what users hold: the ``Accelerator``."""

from rag_accel.accelerator.accelerator import Accelerator
from rag_accel.accelerator.default import default_accelerator, shutdown
from rag_accel.accelerator.preparation import PREPARE_S
from rag_accel.accelerator.program_requests import forget_program, keeping_texts
from rag_accel.leaves.identity import RequestIdentity, current_request
from rag_accel.leaves.leaves import Leaves, Work

__all__ = [
    "PREPARE_S",
    "Accelerator",
    "Leaves",
    "RequestIdentity",
    "Work",
    "current_request",
    "default_accelerator",
    "forget_program",
    "keeping_texts",
    "shutdown",
]
