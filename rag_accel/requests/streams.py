"""Items of a list, forwarded while the list is still being written (Teola section 4.3).

A partial decoding is let in when its decoding may start, and ends when its item is there. At most
``credit`` items are on their way over one edge: forwarded, and not yet taken by what reads them.
Further ones wait here; the decoding never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, NamedTuple

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import EngineOutputError
from rag_accel.graph.item_lists import ItemReader
from rag_accel.graph.list_functions import ListFunction
from rag_accel.graph.primitives import Primitive
from rag_accel.scheduler.messages import EngineName, NodeKey

#: The engine of items that are taken off a list while it is written; nothing runs on it.
LIST_ITEMS = EngineName("list items")


class Due(NamedTuple):
    """A partial decoding that need not wait any more.

    It ends with ``item``, or becomes the function that takes the item from the whole list.
    """

    node: NodeKey
    primitive: Primitive
    item: str | None


@dataclass(slots=True)
class _List:
    """One list, from the first letter of its text until its function has read it."""

    function: ListFunction
    text: str
    credit: int
    #: what the text has given so far
    items: list[str] = field(default_factory=list[str])
    #: partial decodings that were let in and have no item yet
    waiting: dict[NodeKey, Primitive] = field(default_factory=dict[NodeKey, Primitive])
    #: items that were forwarded early, by the partial decoding that took them
    forwarded: dict[str, tuple[Primitive, str]] = field(
        default_factory=dict[str, tuple[Primitive, str]]
    )
    #: partial decodings whose item has not been taken yet
    on_edge: set[str] = field(default_factory=set[str])
    is_known: bool = False
    reader: ItemReader | None = None
    is_readable: bool = True

    def restart(self) -> None:
        """Read the text from its beginning again; forwarded items stay forwarded."""
        self.reader, self.is_readable = None, True
        self.items.clear()

    def read(self, text: str) -> None:
        """Take the next piece of the text; after an error, wait for the function instead."""
        if not self.is_readable:
            return
        try:
            if self.reader is None:
                self.reader = self.function.reader()
            self.items += self.reader.feed(text)
        except Exception:  # the function that reads the whole text will say what is wrong with it
            self.is_readable = False

    def due(self) -> Iterator[Due]:
        """Yield the decodings that need not wait any more, in the order of the list."""
        for node, primitive in sorted(self.waiting.items(), key=_place):
            if self.is_known:
                yield Due(node, replace(primitive, kind=PrimitiveKind.FUNCTION), None)
            elif primitive.attribute("item") < len(self.items) and len(self.on_edge) < self.credit:
                item = self.items[primitive.attribute("item")]
                self.forwarded[primitive.name] = (primitive, item)
                self.on_edge.add(primitive.name)
                yield Due(node, primitive, item)
            else:
                continue
            del self.waiting[node]


class ItemForwarding:
    """The partial decodings of one request. Thread-safe.

    Never completes a decoding: methods return the decodings that are due, and the caller completes
    them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: by the function that reads the list
        self._lists: dict[str, _List] = {}
        #: which lists are read off a decoding
        self._texts: dict[str, list[_List]] = {}
        #: whose item a primitive takes
        self._taken_by: dict[str, list[tuple[_List, str]]] = {}
        self._is_over = False

    def expect(self, primitives: Iterable[Primitive]) -> None:
        """Learn which of these new primitives are partial decodings, and which take their items."""
        new = {primitive.name: primitive for primitive in primitives}
        with self._lock:
            for primitive in new.values():
                if primitive.kind is PrimitiveKind.PARTIAL_DECODING:
                    self._list_of(primitive, new[primitive.attribute("list")])
            for primitive in new.values():
                for source in primitive.after:
                    partial = new.get(source)
                    if partial is not None and partial.kind is PrimitiveKind.PARTIAL_DECODING:
                        taken = (self._lists[partial.attribute("list")], partial.name)
                        self._taken_by.setdefault(primitive.name, []).append(taken)

    def reads(self, decoding: str) -> bool:
        """Tell whether lists are read off the text of a decoding while it is written."""
        return decoding in self._texts

    def begin(self, decoding: str) -> None:
        """Learn that a decoding starts, perhaps once more after a step that raised."""
        with self._lock:
            for text in self._texts.get(decoding, ()):
                text.restart()

    def restart(self, decoding: str) -> bool:
        """Forget a decoding's text, which failed; False if an item of it was forwarded."""
        with self._lock:
            texts = self._texts.get(decoding, ())
            if any(text.forwarded for text in texts):
                return False
            for text in texts:
                text.restart()
            return True

    def feed(self, decoding: str, text: str) -> Sequence[Due]:
        """Take the next piece of a decoding's text; return the decodings that it makes due."""
        with self._lock:
            for item_list in self._texts[decoding]:
                item_list.read(text)
            return self._due(self._texts[decoding])

    def granted(self, node: NodeKey, partial: Primitive) -> Sequence[Due]:
        """Let a partial decoding wait for its item, if it is not there yet."""
        with self._lock:
            found = self._lists[partial.attribute("list")]
            found.waiting[node] = partial
            return self._due([found])

    def ended(self, name: str, value: Any) -> Sequence[Due]:
        """Learn that a primitive has ended: perhaps it has taken an item, or read a whole list.

        Raises:
            EngineOutputError: if the list holds other items than those that were forwarded.
        """
        with self._lock:
            lists = [found for found, _ in self._taken_by.get(name, ())]
            for found, partial in self._taken_by.pop(name, ()):
                found.on_edge.discard(partial)
            whole = self._lists.get(name)
            if whole is not None:
                _check_forwarded(whole, value)
                whole.is_known = True
                lists.append(whole)
            return self._due(lists)

    def close(self) -> Sequence[NodeKey]:
        """Return all that still wait, once: the request is over, and their items are not needed."""
        with self._lock:
            self._is_over = True
            left = [node for list_ in self._lists.values() for node in list_.waiting]
            for list_ in self._lists.values():
                list_.waiting.clear()
            return left

    def _list_of(self, partial: Primitive, read: Primitive) -> None:
        if read.name not in self._lists:
            text = partial.attribute("text")
            found = _List(read.attribute("fn"), text, partial.attribute("credit"))
            self._lists[read.name] = found
            self._texts.setdefault(text, []).append(found)

    def _due(self, lists: Iterable[_List]) -> Sequence[Due]:
        return [] if self._is_over else [due for list_ in lists for due in list_.due()]


def _place(entry: tuple[NodeKey, Primitive]) -> int:
    place: int = entry[1].attribute("item")
    return place


def _check_forwarded(found: _List, value: Any) -> None:
    for partial, item in found.forwarded.values():
        try:
            in_list = partial.attribute("fn")(value)
        except Exception as error:  # a shorter list
            in_list = error
        if in_list != item:
            raise EngineOutputError(
                "a whole text holds another item than its pieces",
                where=f"item {partial.attribute('item') + 1} of {partial.attribute('list')}",
                found=f"{in_list!r} after {item!r}",
                valid="a final text that is its partial ones joined",
                hint="leave the pass 'pipeline_decoding' out of the option passes",
            )
