"""Copies of models that share weights, so that a model of the user's is never changed."""

from __future__ import annotations

import copy
from typing import Any

import torch

from rag_accel.engines.llm.local.model.attention import NAME, register


def shared_copy(model: Any) -> Any:
    """Return a copy of a model, in evaluation, whose weights are in the model's own memory.

    Modules and settings are its own. Its parameters are other objects in the same memory: weights
    that are written in place change in both, those that are moved or cast stay as they were here.
    """
    weights = {
        id(weight): torch.nn.Parameter(weight.detach(), requires_grad=False)
        for weight in model.parameters()
    }
    buffers = {id(buffer): buffer.detach() for buffer in model.buffers()}
    return copy.deepcopy(model, {**weights, **buffers}).eval()


def packed_copy(model: Any) -> Any:
    """Return a copy that shares the model's weights and attends by packed rows."""
    register()
    made = shared_copy(model)
    made.set_attn_implementation(NAME)
    return made


def always() -> bool:
    """Return True, of a model that nobody else has: it has not changed."""
    return True
