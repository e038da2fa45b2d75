"""What every call asks of the classes of its object, which is looked at once."""

from __future__ import annotations

import gc
from abc import ABC
from types import SimpleNamespace

from rag_accel.interception.leaf_table import holds
from rag_accel.system.weak_maps import ByClass


def test_a_class_is_looked_at_once_and_forgotten_with_it() -> None:
    looked: list[str] = []

    def look(cls: type) -> bool:
        looked.append(cls.__name__)
        return False

    tell = ByClass(look)
    made = type("Made", (), {})
    assert [tell(made), tell(made), tell(int)] == [False, False, False]
    assert looked == ["Made", "int"]
    at = id(made)
    assert tell.get(at) is False
    del made
    gc.collect()
    assert tell.get(at) is None
    tell.clear()
    assert tell(int) is False
    assert looked == ["Made", "int", "int"]


class Part(ABC):  # noqa: B024 - has no methods
    """A base class of parts."""


class Derived(Part):
    """A part that derives from it."""


class Registered:
    """A part that is registered as one."""


class Proxy:
    """An object that says it is of another class."""

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Derived


def test_an_object_holds_what_isinstance_says_is_a_part() -> None:
    parts = (Part,)
    assert holds(SimpleNamespace(a=1, b="b", c=Derived()), parts)
    assert holds(SimpleNamespace(a=[Derived()]), parts)
    assert holds(SimpleNamespace(a=[object(), Derived()]), parts)
    assert holds(SimpleNamespace(a=(object(), Proxy())), parts)
    assert holds(SimpleNamespace(a=Proxy()), parts)
    assert not holds(SimpleNamespace(a=[], b=object(), c=[1]), parts)


def test_a_class_that_is_registered_later_is_a_part_from_then_on() -> None:
    parts = (Part,)
    holder = SimpleNamespace(a=Registered())
    assert not holds(holder, parts)
    Part.register(Registered)
    assert holds(holder, parts)
