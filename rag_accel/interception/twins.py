"""Accelerated twins of a model, retriever, store or another object that does work.

The twin is an instance of a subclass of the object's class and shares the object's state (the same
``__dict__``), so whatever is changed through one is seen through the other.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rag_accel.accelerator import Accelerator, RequestIdentity, current_request
from rag_accel.engines.http.endpoint_limit import Urgency
from rag_accel.interception.fallback import logger
from rag_accel.interception.identity import identity_for, scoped
from rag_accel.interception.leaf_table import OWN, leaf_class, leaf_methods
from rag_accel.interception.patches import Interception
from rag_accel.interception.program import AcceleratedProgram
from rag_accel.interception.wrappers import SCHEDULED_CALL, FindIdentity, wrap
from rag_accel.system.classes import full_name
from rag_accel.system.locks import RenewedLock
from rag_accel.system.methods import mark_as, plain_class, unpatched
from rag_accel.system.weak_maps import WeakIdDict

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


#: Where it keeps what made its scheduled methods.
_MAKE = "__rag_accel_make__"

#: Returns the scheduled methods of a class's twins, by name, for an accelerator or for none.
MakeMethods = Callable[[type, Accelerator | None], dict[str, Any]]

_lock = RenewedLock()  # reentrant: making a class runs code of its bases, which may accelerate more
#: What a twin was made of, and the patches on what that holds: in a slot of its own, so that a
#: program that reaches its twin is collected with it.
_ORIGIN = "__rag_accel_origin__"
#: The program of an accelerated object whose calls are requests, made when it is first asked for.
_PROGRAM = "__rag_accel_program__"
_classes: weakref.WeakValueDictionary[tuple[int, int], type] = weakref.WeakValueDictionary()


class _Unannounced:
    """The first base of a twin's class, which keeps the hooks for subclasses from running for it.

    A program's ``__init_subclass__`` may keep a registry, ask for arguments or refuse.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if plain_class(cls) is cls:  # the program's own, made of a twin's class
            super().__init_subclass__(**kwargs)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if plain_class(cls) is cls:
            parent: Any = super()
            parent.__pydantic_init_subclass__(**kwargs)


class _NoTwinError(Exception):
    """A class cannot have another subclass; the message says why."""


#: Why classes have no twins, in a few words.
_refused: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def _note_refusal(cls: type, error: Exception) -> None:
    """Log once for a class that its objects are returned as they are."""
    if cls not in _refused:
        _refused[cls] = str(error)
        logger.warning(
            "%s cannot be accelerated and runs plainly: its class cannot have another subclass: %s",
            full_name(cls),
            _refused[cls],  # its text: a kept record would keep the error and its frames
        )


def leaf_wrappers(cls: type, accelerator: Accelerator | None) -> dict[str, Any]:
    """Return the scheduled leaf methods of a class."""

    def find(obj: Any) -> RequestIdentity | None:
        return identity_for(accelerator)

    known = leaf_class(cls)
    assert known.base is not None, "only leaf objects have leaf methods"
    methods = {leaf.name: wrap(cls, leaf, find) for leaf in leaf_methods(cls)}
    body = {name: method for name, method in methods.items() if method is not None}
    if known.base in known.framework.entries:
        names = known.framework.entries[known.base]
        body.update(_own_entries(cls, known.base, names, find))
    return body


def twin(obj: Any, accelerator: Accelerator | None, make: MakeMethods = leaf_wrappers) -> Any:
    """Return the accelerated twin of ``obj``; a twin's twin is itself if nothing else is asked.

    An object whose class cannot have another subclass is returned as it is, with a warning.

    Args:
        obj: what does work, or has others do it.
        accelerator: whose scheduler the twin uses; None for that of the moment.
        make: makes the methods in which it differs from ``obj``.
    """
    if is_twin(obj):
        cls = type(obj)
        if accelerator is None or getattr(cls, OWN) is accelerator:
            return obj
        obj = original(obj)
    try:
        made = _sharing(obj, _subclass(type(obj), accelerator, make))
    except _NoTwinError as error:
        _note_refusal(type(obj), error)
        return obj
    # What the object holds is scheduled too, for as long as the twin lives. So lives the object:
    # its class may free what both of them use when it goes.
    held = leaf_class(type(obj)).framework.held_by(obj)
    holds_leaves = any(leaf is not obj for leaf in held)
    inner = Interception() if holds_leaves else None
    object.__setattr__(made, _ORIGIN, (obj, inner))
    return made


def program_twin(obj: Any, accelerator: Accelerator | None, make: MakeMethods) -> Any:
    """Do as ``twin`` for a program: what it holds is intercepted from now on."""
    made = twin(obj, accelerator, make)
    if is_twin(made):
        program_of(made)
    return made


def is_twin(obj: Any) -> bool:
    return plain_class(type(obj)) is not type(obj)


def why_no_twin(cls: type) -> str | None:
    """Return why objects of a class were returned as they are, if they were."""
    return _refused.get(cls)


def program_of(made: Any) -> AcceleratedProgram:
    """Return the program of a twin; its calls run as requests of it."""
    try:
        return object.__getattribute__(made, _PROGRAM)
    except AttributeError:
        cls = type(made)
        program = AcceleratedProgram(plain_class(cls).__name__, getattr(cls, OWN))
        object.__setattr__(made, _PROGRAM, program)
        return program


def known_program(made: Any) -> AcceleratedProgram | None:
    """Return the program of a twin, None for an object whose calls are no requests."""
    try:
        return object.__getattribute__(made, _PROGRAM) if is_twin(made) else None
    except AttributeError:
        return None


def twin_name(made: Any) -> str | None:
    """Return the name of a twin's program, None for an object whose calls are no requests."""
    program = known_program(made)
    return None if program is None else program.name


#: accelerated objects whose calls are interactive though they are no requests of a program
_interactive: WeakIdDict[bool] = WeakIdDict()


def mark_interactive(made: Any, program: AcceleratedProgram | None) -> None:
    """Let the calls of an accelerated object go before others at their endpoint."""
    if program is not None:
        program.urgency = Urgency.INTERACTIVE
    else:
        _interactive.add(made, True)


def is_interactive(obj: Any) -> bool:
    """Tell whether an object that is no program was marked so."""
    return obj in _interactive


def _sharing(obj: Any, cls: type) -> Any:
    try:
        made = object.__new__(cls)
    except TypeError as error:  # an object of C that only its own class can make
        raise _NoTwinError(repr(error)) from error
    for slot in _slots(type(obj)):
        if hasattr(obj, slot):
            object.__setattr__(made, slot, getattr(obj, slot))
    return made


def _slots(cls: type) -> Iterator[str]:
    yield "__dict__"
    for base in cls.__mro__:
        names = base.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def original(made: Any) -> Any:
    """Return the object of a twin; a twin that its own class made gets an equal of its base."""
    try:
        return object.__getattribute__(made, _ORIGIN)[0]
    except AttributeError:
        return _sharing(made, plain_class(type(made)))


def _subclass(cls: type, accelerator: Accelerator | None, make: MakeMethods) -> type:
    """Return the one subclass for this class and accelerator; it goes with its last twin."""
    key = (id(cls), id(accelerator))
    with _lock.lock:
        known = _classes.get(key)
        if known is None or plain_class(known) is not cls or getattr(known, OWN) is not accelerator:
            known = _classes[key] = _make_subclass(cls, accelerator, make)
        return known


def _make_subclass(cls: type, accelerator: Accelerator | None, make: MakeMethods) -> type:
    lacking = [("__dict__", cls.__dictoffset__), ("__weakref__", cls.__weakrefoffset__)]
    body: dict[str, Any] = {
        "__slots__": (_ORIGIN, _PROGRAM, *(name for name, offset in lacking if not offset)),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__rag_accel__": True,
        OWN: accelerator,
        _MAKE: staticmethod(make),
        "__reduce_ex__": _reduce,
        "__copy__": _copy,
        "__deepcopy__": _deepcopy,
        "__hash__": cls.__hash__,  # pydantic asks the first base, which has none of its own
    }
    if hasattr(cls, "__del__"):
        body["__del__"] = _keep  # the original frees what they share
    methods = followed_methods(cls, functools.partial(make, cls, accelerator))
    try:
        return type(cls)(cls.__name__, (_Unannounced, cls), {**body, **methods})
    except Exception as error:  # of the program's metaclass, which may refuse what it likes
        raise _NoTwinError(repr(error)) from error


def _own_entries(
    cls: type, base: type, names: tuple[str, str], find: FindIdentity
) -> dict[str, Any]:
    """Return the entry methods that a class has written itself.

    Such a method need not pass the leaf method, so the run of what it calls begins here.
    """
    plain, coroutine = (getattr(cls, name) for name in names)

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with scoped(current_request, find(self)):
            return plain(self, *args, **kwargs)

    @functools.wraps(coroutine)
    async def acall(self: Any, *args: Any, **kwargs: Any) -> Any:
        with scoped(current_request, find(self)):
            return await coroutine(self, *args, **kwargs)

    entries = dict(zip(names, (call, acall), strict=True))
    return {name: entry for name, entry in entries.items() if _is_own(cls, base, name)}


def _is_own(cls: type, base: type, name: str) -> bool:
    return getattr(cls, name) is not getattr(base, name)


def _keep(made: Any) -> None:
    """Free nothing."""


def _reduce(made: Any, protocol: int) -> tuple[Any, ...]:
    return (twin, (original(made), *_made_with(made)))


def _copy(made: Any) -> Any:
    return twin(copy.copy(original(made)), *_made_with(made))


def _deepcopy(made: Any, memo: dict[int, Any] | None = None) -> Any:
    return twin(copy.deepcopy(original(made), memo), *_made_with(made))


def _made_with(made: Any) -> tuple[Accelerator | None, MakeMethods]:
    cls = type(made)
    return getattr(cls, OWN), getattr(cls, _MAKE)
