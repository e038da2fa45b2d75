"""The calls of one accelerated program, each run as a request of the scheduler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Protocol

from rag_accel.accelerator import Accelerator, RequestIdentity, default_accelerator
from rag_accel.adoption.owned_or_plain import fail_open
from rag_accel.config import is_enabled
from rag_accel.interception.identity import activated, current_run, lent, scoped
from rag_accel.interception.leaf_call import inside
from rag_accel.interception.patches import Interception
from rag_accel.interception.wrappers import StreamScope
from rag_accel.leaves.leaves import leaf_depth

_numbers = count(1)


class Shape(Protocol):
    """What is known of a program before it runs."""

    def here(self) -> int | None:
        """Return how far the place that runs is from the program's end; None if unknown."""
        ...


class AcceleratedProgram:
    """A program: its accelerator, its name there, and its shape if it has one.

    All that is made of one accelerated object shares it. While it lives, leaf calls are
    intercepted.

    Args:
        name: what the program is called; a number makes it distinct.
        own: the accelerator it was given, if any.
        shape: how far its parts are from its end.
        lent_ids: ids of its leaves that its framework calls in threads without a context.
    """

    def __init__(
        self,
        name: str,
        own: Accelerator | None,
        shape: Shape | None = None,
        lent_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.own = own
        self.name = f"{name}#{next(_numbers)}"
        self._interception = Interception(self.name)
        self._shape = shape
        self._lent = lent_ids

    def __copy__(self) -> AcceleratedProgram:
        return self

    def __deepcopy__(self, memo: object) -> AcceleratedProgram:
        return self

    @property
    def accelerator(self) -> Accelerator:
        """Return the accelerator that schedules it."""
        return self.own or activated() or default_accelerator()

    def run(self) -> AbstractContextManager[StreamScope]:
        """Run a call as a request or as part of one; give the scope that its code runs in."""
        identity, is_new = self._identity()
        if identity is None:
            return nullcontext(nullcontext)
        shape = self._shape
        # A shape of what is around this program is the better one.
        if shape is None or not identity.accelerator.options.use_skeleton:
            scope = partial(inside, None, identity)
        else:
            scope = partial(_shaped, identity, shape)
        return _Request(identity, scope, self._lent) if is_new else nullcontext(scope)

    def _identity(self) -> tuple[RequestIdentity | None, bool]:
        """Return the request that a call belongs to, and whether it begins with this call."""
        if not is_enabled():
            return None, False
        outer = current_run(self.own)
        if outer is not None:
            return outer, False
        accelerator = self.accelerator
        try:
            return accelerator.open_request(self.name), True
        except Exception as error:
            fail_open(accelerator, error, self.name)
            return None, False


class _Request:
    """A request of its own, open while the block runs."""

    __slots__ = ("_identity", "_lent", "_scope")

    def __init__(
        self, identity: RequestIdentity, scope: StreamScope, lent_ids: frozenset[int]
    ) -> None:
        self._identity = identity
        self._scope = scope
        self._lent = lent_ids

    def __enter__(self) -> StreamScope:
        if self._lent:
            lent[self._identity] = self._lent
        return self._scope

    def __exit__(self, *raised: object) -> None:
        identity = self._identity
        if self._lent:
            lent.pop(identity, None)
        identity.close()


class _shaped(inside):  # noqa: N801 - used as a function
    """A block that is part of a run whose shape is known."""

    __slots__ = ("_depth", "_shape")

    def __init__(self, identity: RequestIdentity, shape: Shape) -> None:
        super().__init__(None, identity)
        self._shape = shape

    def __enter__(self) -> None:
        super().__enter__()
        self._depth = scoped(leaf_depth, leaf_depth.get() or self._shape.here)
        self._depth.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._depth.__exit__(*raised)
        super().__exit__(*raised)
