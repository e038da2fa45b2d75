"""The accelerators of this process that are still in use."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING

from rag_accel.scheduler.driver.ending import end_daemons_quietly

if TYPE_CHECKING:
    from rag_accel.accelerator.accelerator import Accelerator

live: weakref.WeakSet[Accelerator] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Close every accelerator still open; runs at interpreter exit."""
    end_daemons_quietly()
    for accelerator in list(live):
        accelerator.close()


def forget_program(program: str) -> None:
    """Have every accelerator forget a program whose object is gone."""
    for accelerator in list(live):
        accelerator.forget_program(program)


def keeping_texts(namespace: str | None) -> list[Accelerator]:
    """Return the accelerators whose engines keep what they have computed of documents.

    Args:
        namespace: tenant; None for all.
    """
    return [
        accelerator
        for accelerator in list(live)
        if accelerator.keeps_texts and namespace in (None, accelerator.options.namespace)
    ]
