"""Methods that embed a list chunk by chunk, whose texts an engine gets at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from rag_accel.accelerator import RequestIdentity
from rag_accel.adoption.embedding_calls import EmbeddingCall, EmbeddingPrefetch, taking_from
from rag_accel.adoption.owned_embedding import EmbeddingRecogniser
from rag_accel.interception.fallback import fail_open
from rag_accel.interception.leaf_call import is_nested
from rag_accel.interception.leaf_table import LeafMethod, leaf_class
from rag_accel.system.methods import plain_class

Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class EmbeddingsAhead:
    """A framework's method that embeds a list chunk by chunk, and the way to its texts.

    The method itself runs as always, around calls of the recogniser's methods; only what those
    calls are going to ask for is handed to the engine before.

    Args:
        recogniser: recognises the objects.
        argument: the name of its first argument, the list of texts.
        chunk_len: returns how many texts an object embeds in a call, given its plain class; None
            if what it is going to ask for cannot be told.
    """

    recogniser: EmbeddingRecogniser
    argument: str
    chunk_len: Callable[[Any, type], int | None]

    def owned(self, original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
        """Return the version of the method that hands its texts over before it begins."""
        return (_coroutine if leaf.flavour == "coroutine" else _plain)(self, original)

    def begin(
        self,
        identity: RequestIdentity,
        obj: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        on_loop: bool,
    ) -> EmbeddingPrefetch | None:
        """Hand the texts of a call over, if its object is recognised and needs several chunks."""
        texts = args[0] if args else kwargs.get(self.argument)
        if not leaf_class(type(obj)).may_be_owned or not _are_texts(texts) or is_nested(obj):
            return None
        cls = plain_class(type(obj))
        chunk_len = self.chunk_len(obj, cls)
        if chunk_len is None or len(texts) <= chunk_len:
            return None
        adopted = self.recogniser.known.adopt(obj, cls)
        if adopted is None or adopted.hosted is not None:
            return None
        call = EmbeddingCall(identity, adopted, obj, texts, "document")
        try:
            return call.submit(on_loop=on_loop)
        except Exception as error:
            fail_open(identity.accelerator, error, "embedding")
            return None


def _plain(how: EmbeddingsAhead, original: Method) -> Method:
    def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        with taking_from(how.begin(identity, self, args, kwargs, on_loop=False)):
            return original(self, *args, **kwargs)

    return scheduled


def _coroutine(how: EmbeddingsAhead, original: Method) -> Method:
    async def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        with taking_from(how.begin(identity, self, args, kwargs, on_loop=True)):
            return await original(self, *args, **kwargs)

    return scheduled


def _are_texts(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(type(text) is str for text in value)
