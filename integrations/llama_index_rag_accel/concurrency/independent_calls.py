"""Methods of LlamaIndex whose calls do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index_rag_accel.concurrency.layers import Method, layers_of
from rag_accel.interception.leaf_table import plain_class, plain_method
from rag_accel.system.classes import full_name
from rag_accel.system.methods import digest_of

#: Runs calls that do not need each other, or one by one if it must, given what they may use, too.
#: Returns their results in order; raises the error of the first, in order, that fails. Of
#: coroutines, it returns one itself.
RunCalls = Callable[[Sequence[Callable[[], Any]], Sequence[object]], Any]


@dataclass(frozen=True, slots=True)
class IndependentCalls:
    """One method that makes independent calls one by one.

    Args:
        body: the same with its calls run by its first argument.
        digest: of the source that does the same.
        helper: the method that makes one call, and the digest of its source; empty if the calls
            are methods of other objects.
        classes: full names of the classes whose objects are known; empty if the calls' own
            thread-safety is told of the object itself.
        applies: tells whether an object, as it is set up now, makes them one by one.
        is_leafs: whether the calls are made by what is a leaf itself, and then has no permit yet.
        are_several: tells of the arguments whether there may be more than one call.
    """

    body: Method
    digest: str
    helper: tuple[str, str] | None
    classes: frozenset[str] = frozenset()
    applies: Callable[[Any], bool] = lambda obj: True
    is_leafs: bool = False
    are_several: Callable[..., bool] = lambda *args, **kwargs: True

    def fits(self, obj: Any, named: Sequence[str]) -> bool:
        """Tell whether an object makes its calls as it is known here.

        Args:
            obj: the object.
            named: full names of classes that are thread-safe, beside those known.
        """
        cls = plain_class(type(obj))
        if self.classes and full_name(cls) not in (*self.classes, *named):
            return False
        return self._has_helper(cls, obj) and self.applies(obj)

    def _has_helper(self, cls: type, obj: Any) -> bool:
        if self.helper is None:
            return True
        name, digest = self.helper
        if name in vars(obj):
            return False
        layers = layers_of(plain_method(cls, name))
        return layers is not None and digest_of(layers.function.__code__) == digest
