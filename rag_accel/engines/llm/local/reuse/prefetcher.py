"""A prefetcher of the states of texts that may be in a prompt soon."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.store import ChunkStore

Head = tuple[int, ...]

#: The latest heads that texts may be kept behind, of each of so many namespaces.
MOST_HEADS = 4
MOST_NAMESPACES = 64
#: Of one hint, the texts that count, and their characters; longer ones are passed over.
MOST_TEXTS = 64
MOST_CHARACTERS = 1 << 16


class Heads:
    """The heads of late prompts by namespace. One thread notes them, any may ask."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[Head, ...]] = OrderedDict()

    def note(self, namespace: str, head: Head) -> None:
        """Learn of a prompt's head."""
        known = self._latest.pop(namespace, ())
        others = [other for other in known if other != head]
        self._latest[namespace] = (head, *others[: MOST_HEADS - 1])
        if len(self._latest) > MOST_NAMESPACES:
            self._latest.popitem(last=False)

    def of(self, namespace: str) -> tuple[Head, ...]:
        """Return those of a namespace, the latest first."""
        return self._latest.get(namespace, ())


class Prefetcher:
    """Hints of one engine on their way to its store. Any thread may give one.

    Args:
        store: reads ahead what it keeps.
        model: identifies the weights.
        encode: returns the tokens that a text has alone; called by one thread of the store's.
        least_tokens: shorter texts are never kept.
        behind_others: whether their states behind other texts are used, too.
    """

    def __init__(
        self,
        store: ChunkStore,
        model: str,
        encode: Callable[[str], Sequence[int]],
        least_tokens: int,
        behind_others: bool,
    ) -> None:
        self.heads = Heads()
        self._store = store
        self._model = model
        self._encode = encode
        self._least_tokens = least_tokens
        self._behind_others = behind_others

    def take(self, documents: Sequence[str], namespace: str) -> None:
        """Let the store prefetch the states of texts behind late heads; returns at once."""
        heads = self.heads.of(namespace)
        if heads and documents:
            texts = tuple(documents[:MOST_TEXTS])
            self._store.hint(partial(self._keys, texts, namespace, heads))

    def _keys(self, texts: Sequence[str], namespace: str, heads: Sequence[Head]) -> Iterator[bytes]:
        pieces = [tuple(self._encode(form)) for form in _forms(texts)]
        for head in heads:
            alone = ChunkSource(self._model, namespace, head)
            sources = (alone.behind_others(), alone) if self._behind_others else (alone,)
            for ids in pieces:
                if len(ids) >= self._least_tokens:
                    yield from (source.key(ids) for source in sources)


def _forms(texts: Sequence[str]) -> Iterator[str]:
    """Yield each text in the forms in which it is found in a prompt."""
    for text in texts:
        if len(text) <= MOST_CHARACTERS:
            yield from dict.fromkeys((text, text.strip()))
