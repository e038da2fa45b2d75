"""Compute each item of a stream inside a scope that its consumer never sees.

A context variable set around a ``yield`` would leak into whoever consumes the stream, and could
not be reset by a consumer in another context; so it is set for each item anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")
Scope = Callable[[], AbstractContextManager[None]]


def stepped(items: Iterator[T], scope: Scope, *, closes: bool = True) -> Iterator[T]:
    """Yield the items, each computed inside ``scope()``; closing this closes them if asked to."""
    try:
        while True:
            with scope():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
    except GeneratorExit:
        close = getattr(items, "close", None) if closes else None
        if close is not None:
            with scope():
                close()
        raise


async def astepped(
    items: AsyncIterator[T], scope: Scope, *, closes: bool = True
) -> AsyncGenerator[T, None]:
    """Yield the items, each computed inside ``scope()``; closing this closes them if asked to."""
    try:
        while True:
            with scope():
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    except GeneratorExit:
        aclose = getattr(items, "aclose", None) if closes else None
        if aclose is not None:
            with scope():
                await aclose()
        raise
