"""The calls of one accelerated program, each run as a request of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from rag_accel.accelerator import Accelerator, RequestIdentity, current_request, default_accelerator
from rag_accel.config import is_enabled, is_switch_set
from rag_accel.engines.http.endpoint_limit import Urgency
from rag_accel.graph.ragraph import RAGraph
from rag_accel.interception.fallback import fail_open
from rag_accel.interception.identity import activated, current_run, lent
from rag_accel.interception.leaf_call import inside
from rag_accel.interception.patches import Interception
from rag_accel.interception.wrappers import StreamScope
from rag_accel.leaves.identity import leaf_depth
from rag_accel.leaves.recorded_prompts import Values

_numbers = count(1)


#: reads what a program was given, by name
Given = Callable[[], Values]
#: returns how far the place that runs is from a program's end; None if unknown
Shape = Callable[[], int | None]


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
        #: of its requests at endpoints, unless one is a batch
        self.urgency = Urgency.ORDINARY
        self._interception = Interception(self.name)
        self._shape = shape
        self._lent = lent_ids

    def __copy__(self) -> AcceleratedProgram:
        return self

    def __deepcopy__(self, memo: object) -> AcceleratedProgram:
        return self

    @property
    def accelerator(self) -> Accelerator:
        return self.own or activated() or default_accelerator()

    @contextmanager
    def run(self, given: Given = dict, *, is_batch: bool = False) -> Iterator[StreamScope]:
        """Run a stream as a request or as part of one; give the scope that its code runs in."""
        call = self._call(given, is_batch)
        if call is None:
            yield nullcontext
            return
        call.begin()
        try:
            yield call.scope
        finally:
            call.close()

    def call(
        self, given: Given = dict, *, is_batch: bool = False
    ) -> AbstractContextManager[ProgramCall | None]:
        """Run a block as a request or as part of one; give it, or ``None`` if it is neither.

        Args:
            given: reads what the program was given, for the prompts that are made of it.
            is_batch: whether nobody waits for its single results.
        """
        return self._call(given, is_batch) or _NOTHING

    def _call(self, given: Given, is_batch: bool) -> ProgramCall | None:
        identity, is_new = self._identity(given)
        if identity is None:
            return None
        if is_new:
            identity.urgency = Urgency.BATCH if is_batch else self.urgency
        shape = self._shape
        if shape is not None and not identity.accelerator.options.use_skeleton:
            shape = None
        return ProgramCall(identity, is_new, shape, self._lent)

    def _identity(self, given: Given) -> tuple[RequestIdentity | None, bool]:
        """Return the request that a call belongs to, and whether it begins with this call."""
        if is_switch_set() and not is_enabled():
            return None, False
        outer = current_run(self.own)
        if outer is not None:
            return outer, False
        accelerator = self.accelerator
        try:
            return accelerator.open_request(self.name, given=given), True
        except Exception as error:
            fail_open(accelerator, error, self.name)
            return None, False


_NOTHING = nullcontext[None]()


@dataclass(slots=True, eq=False, repr=False)
class ProgramCall:
    """A block that runs as a request of its own, or as part of one.

    Args:
        identity: the request.
        is_new: whether it begins and ends with this block.
        shape: of the program, if it is known. One of what is around the program is the better one.
        lent_ids: ids of its leaves that its framework calls in threads without a context.
    """

    identity: RequestIdentity
    is_new: bool
    shape: Shape | None = None
    lent_ids: frozenset[int] = frozenset()
    _depth: Any = field(init=False)
    _run: Any = field(init=False)

    @property
    def scope(self) -> StreamScope:
        """Return scopes in which work that outlives the block is part of the request."""
        if self.shape is None:
            return partial(inside, None, self.identity)
        return partial(ProgramCall, self.identity, False, self.shape)

    def begin(self) -> None:
        """Begin the request, if it is this block's."""
        if self.lent_ids and self.is_new:
            lent[self.identity] = self.lent_ids

    def close(self) -> None:
        """End the request, if it is this block's."""
        if self.is_new:
            if self.lent_ids:
                lent.pop(self.identity, None)
            self.identity.close()

    def keep(self) -> ExitStack:
        """Return a function that ends the request in place of this block."""
        kept = ExitStack()
        kept.callback(ProgramCall(self.identity, self.is_new, None, self.lent_ids).close)
        self.is_new = False
        return kept

    def __enter__(self) -> ProgramCall:
        if self.lent_ids:
            self.begin()
        if self.shape is not None:
            self._depth = leaf_depth.set(leaf_depth.get() or self.shape)
        self._run = current_request.set(self.identity)
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *raised: object) -> None:
        if kind is not None and self.is_new and self.identity.spans is not None:
            self.identity.spans.error = kind.__name__
        try:
            current_request.reset(self._run)
            if self.shape is not None:
                leaf_depth.reset(self._depth)
        except ValueError:
            pass  # a coroutine that nobody ended is closed by the garbage collector, anywhere
        if self.is_new:
            self.close()


def intercepting(make: Callable[[Any, str, object], RAGraph]) -> Callable[[Any], RAGraph]:
    """Return what makes a program's graph. While that lives, leaf calls are intercepted."""

    def plan_of(program: Any) -> RAGraph:
        name = f"{type(program).__name__}#{next(_numbers)}"
        return make(program, name, Interception(name))

    return plan_of
