"""Let an owned engine compute, and the plain way where the engine, not the program, failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from rag_accel.accelerator import Accelerator
from rag_accel.interception.identity import MEANT, fail_open

T = TypeVar("T")


def owned_or_plain(
    accelerator: Accelerator, owned: Callable[[], T], plain: Callable[[], T], where: str
) -> T:
    """Return ``owned()``; if that fails, ``plain()``, whose own error is what the program sees.

    Where the plain way succeeds the failure was ours: counted and logged, raised when strict.
    """
    try:
        return owned()
    except MEANT:
        raise
    except Exception as error:
        result = plain()
        fail_open(accelerator, error, where)
        return result


async def aowned_or_plain(
    accelerator: Accelerator,
    owned: Callable[[], Awaitable[T]],
    plain: Callable[[], Awaitable[T]],
    where: str,
) -> T:
    """Do as ``owned_or_plain`` on the caller's loop."""
    try:
        return await owned()
    except MEANT:
        raise
    except Exception as error:
        result = await plain()
        fail_open(accelerator, error, where)
        return result
