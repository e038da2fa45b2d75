"""The methods of a twin's class, rebuilt when those of its original's class change.

A program, a tracer or a test may replace a method in a class at any time, and put it back. Through
a twin it is seen as through the original: each call looks whether the class still has the method
that the twin's was made of. One that replaces a method is scheduled in its place; what stands there
as something else, a mock or a static method say, runs as the class gives it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rag_accel.interception.fallback import logger
from rag_accel.interception.wrappers import SCHEDULED_CALL
from rag_accel.system.methods import mark_as, unpatched

Method = Callable[..., Any]
#: Returns the scheduled methods of a class, by name.
MakeAll = Callable[[], Mapping[str, Any]]


def followed_methods(cls: type, make: MakeAll) -> dict[str, Any]:
    """Return the methods that ``make`` gives for a class, each as of the time of its call."""
    return {
        name: _following(_Followed(cls, name, made, make)) if hasattr(cls, name) else made
        for name, made in make().items()
    }


class _Followed:
    """A method of a class by its name, and its wrapper."""

    __slots__ = ("_before", "_cls", "_make", "_names", "_plain", "_value", "call", "method", "name")

    def __init__(self, cls: type, name: str, method: Method, make: MakeAll) -> None:
        self._cls = cls
        self._make = make
        self.name = name
        #: what was made of it
        self.method = method
        #: what stands in the twin's class
        self.call: Method | None = None
        self._look()
        self._plain = unpatched(self._value)
        if not _is_method(self._plain):
            self.method = self._as_it_stands

    def now(self) -> Method:
        name = self.name
        if self._names.get(name) is self._value:
            for names in self._before:
                if name in names:
                    break
            else:
                return self.method
        return self._renewed()

    def _look(self) -> None:
        """Note where the method stands, and which classes would come before."""
        before: list[Mapping[str, Any]] = []
        for cls in self._cls.__mro__:
            if self.name in vars(cls):
                break
            before.append(vars(cls))
        else:
            cls = object
        self._before = tuple(before)
        self._names: Mapping[str, Any] = vars(cls)
        self._value = self._names.get(self.name)

    def _renewed(self) -> Method:
        self._look()
        plain = unpatched(self._value)
        if plain is not self._plain:  # more than patched by us, or no longer so
            self.method = self._made_of(plain)
            self._plain = plain
        return self.method

    def _made_of(self, plain: Any) -> Method:
        made = None
        if _is_method(plain):
            try:
                made = self._make().get(self.name)
            except Exception as error:  # of any origin: it runs as the class gives it
                logger.debug("%s is not scheduled: %s", self.name, repr(error))
        if made is None:
            return self._as_it_stands
        assert self.call is not None, "a method is called that stands in no class"
        mark_as(self.call, made)
        return made

    def _as_it_stands(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        bind = getattr(type(self._plain), "__get__", None)
        method = self._plain if bind is None else bind(self._plain, obj, type(obj))
        return method(*args, **kwargs)


def _is_method(value: Any) -> bool:
    """Tell whether an attribute of a class is bound to an object as a function is."""
    cls = type(value)  # a proxy says that it is of the class of what it stands for
    return hasattr(cls, "__get__") and not issubclass(cls, staticmethod | classmethod | property)


def _following(followed: _Followed) -> Method:
    """Return the method that stands in the twin's class."""
    made = followed.method
    if inspect.iscoroutinefunction(made):

        @functools.wraps(made)
        async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await followed.now()(self, *args, **kwargs)

        return _known(acall, made, followed)

    @functools.wraps(made)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return followed.now()(self, *args, **kwargs)

    return _known(call, made, followed)


def _known(call: Method, made: Method, followed: _Followed) -> Method:
    def scheduled(identity: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = followed.now()
        its_own = getattr(method, SCHEDULED_CALL, None)
        if its_own is None:
            return method(obj, *args, **kwargs)
        return its_own(identity, obj, *args, **kwargs)

    followed.call = call
    mark_as(call, made)
    if hasattr(made, SCHEDULED_CALL):
        setattr(call, SCHEDULED_CALL, scheduled)
    return call
