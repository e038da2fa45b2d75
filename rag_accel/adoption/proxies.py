"""Local objects whose own methods can run on a client that gathers its callers' work.

A store or reranker of a known class does all it does itself: filters, thresholds, look-ups, its
errors. For one call it is replaced by a *proxy*: the same object, but for the client that
computes, which brings its work to an owned engine. So nothing of what the class does around that is
written here again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from rag_accel.adoption.generation import GenerateHooks
from rag_accel.adoption.known_classes import ClassRow, NotAdoptedError, overrides
from rag_accel.adoption.served_models import ServerHooks
from rag_accel.config import Options
from rag_accel.engine_api import Engine, PrimitiveKind
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.system.classes import does_the_same, full_name, known_base
from rag_accel.system.methods import plain_class


@dataclass(frozen=True, slots=True)
class ClientWork:
    """The work a proxy's client submits to an engine.

    Args:
        client: the object that computes; what shares it shares an engine.
        name: what its engine is called.
        make: builds the engine.
        kind: what the engine does.
        payload: what to do.
        size: how many items that is.
    """

    client: Any
    name: str
    make: Callable[[], Engine]
    kind: PrimitiveKind
    payload: Any
    size: int = 1


@dataclass(frozen=True, slots=True)
class Ask:
    """The way of one object's proxy to the scheduler in one run.

    Args:
        is_on_loop: whether the proxy is made for a coroutine.
        compute: returns what the third argument reads from what an engine made of work; what the
            second one, the plain call, returns after an internal error.
        generation: how engines continue prompts.
        gate: returns the way of calls to their endpoint; None where they are not limited.
        share: returns what a call returns, given a key and the call, or the answer of an equal call
            in flight if the third argument tells that it is whole.
        server: returns the hooks of a model on a server; None where its calls are not changed.
        in_pool: calls off the loop, in more threads than the loop's executor has.
    """

    is_on_loop: bool
    compute: Callable[[ClientWork, Callable[[], Any], Callable[[Any], Any]], Any]
    generation: GenerateHooks
    gate: Callable[[], EndpointGate | None]
    share: Callable[[Hashable, Callable[[], Any], Callable[[Any], bool]], Any]
    server: Callable[[], ServerHooks | None]
    in_pool: Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ProxyClass:
    """A class whose objects can have proxies.

    Args:
        methods: what makes it what it is; a subclass that overrides one is another.
        obstacle: returns why a proxy of an object is of no use, and what would change that; None
            where it is of use. Asked in every call.
        make: makes one.
        name: what its objects are called.
        acts: how their methods run on proxies.
        unless: the settings that switch that off.
        model: returns the language model that an object calls, which has a say in how it runs.
        tell: returns what a method has returned with how the texts of its prompts were computed,
            given the stand-in that it ran on; only asked where the model reuses texts.
        is_served: whether its objects send prompts to a server, which is told of their texts.
        effects: what acts beside, by the option that switches it; nothing acts where all are off.
        check: raises ``NotAdoptedError`` where a proxy of an object of this plain class is of no
            use. Asked in every call, before ``obstacle``.
        cross_encoder: returns the cross-encoder of sentence-transformers that scores for an object.
        is_of_use: tells in a call whether its run gains from a proxy of an object; by default where
            there is no ``obstacle``, which may take longer to look for.
        samples: tells whether an object draws its model's tokens, unless a call says otherwise.
    """

    methods: tuple[str, ...]
    obstacle: Callable[[Any], str | None]
    make: Callable[[Any, Ask], Any]
    name: str
    acts: str
    unless: tuple[str, ...]
    model: Callable[[Any], Any] | None = None
    tell: Callable[[Any, Any], Any] | None = None
    is_served: bool = False
    effects: Mapping[str, str] = field(default_factory=dict[str, str])
    check: Callable[[Any, type], object] | None = None
    cross_encoder: Callable[[Any], Any] | None = None
    is_of_use: Callable[[Any, Ask], bool] | None = None
    samples: Callable[[Any], bool] = lambda obj: False

    def why_not(self, obj: Any) -> str | None:
        """Return why a proxy of an object is of no use; None if it is of use."""
        if self.check is not None:
            try:
                self.check(obj, plain_class(type(obj)))
            except NotAdoptedError as error:
                return str(error)
        return self.obstacle(obj)

    def describe(self, options: Options) -> str | None:
        """Return how an object with proxies runs under options; None if nothing acts on it."""
        effects = [text for option, text in self.effects.items() if getattr(options, option)]
        if self.effects and not effects:
            return None
        return f"recognised {self.name}: {'; '.join((self.acts, *effects))}"

    def switched_off(self, options: Options) -> str:
        """Return which options switch off all effects; empty if some effect is on."""
        if any(getattr(options, name) for name in self.effects):
            return ""
        return " and ".join(f"{name} is off; {name}=True" for name in self.effects)


#: What acts on recognised models, stores and rerankers, and what switches it off.
LOCAL_LLM = (
    "its own methods run; greedy calls of all requests share steps, sampled ones where asked"
)
LOCAL_LLM_UNLESS = (
    "`adopt_llm=off`",
    "beams, or a logits processor that the engine does not have",
    "sampling, or another dtype than float32, unless `adopt_llm=batched`",
    "an architecture that the engine does not know",
)
OWN_METHODS = "its own methods run"
LIMITED = {"endpoint_limits": "once its endpoint refuses calls, they wait for their turn"}
LIMITED_LLM = f"{OWN_METHODS}; {LIMITED['endpoint_limits']}"
LIMITED_LLM_UNLESS = ("`endpoint_limits=False`",)
SERVED_LLM = (
    f"{LIMITED_LLM}; with `kv_reuse=full` or `fused` a vLLM server is told of retrieved texts, with"
    " a `RemoteLLM` calls go to any of its servers"
)
RERANKER = "its own method runs; pairs of all requests share batches"
RERANKER_UNLESS = ("more than one score a pair", "a replaced `predict`")
HOSTED_RERANKER = {"single_flight": "equal calls in flight are one", **LIMITED}


class ProxyClasses:
    """The classes of a framework whose objects can have proxies.

    Args:
        known: them, by full name.
    """

    def __init__(self, known: Mapping[str, ProxyClass]) -> None:
        self._known = known
        self._of_classes: WeakKeyDictionary[type, ProxyClass | None] = WeakKeyDictionary()

    def rows(self) -> Iterator[ClassRow]:
        """Yield what is known of each class."""
        for name, known in self._known.items():
            yield ClassRow(name, "; ".join((known.acts, *known.effects.values())), known.unless)

    def why_not(self, obj: Any) -> str | None:
        """Return why an object of a known class has no proxies; None if it has some."""
        cls = plain_class(type(obj))
        base, known = known_base(cls, self._known), self.find(cls)
        if base is None:
            return None
        return overrides(cls, base) if known is None else known.why_not(obj)

    def fitting(self, obj: Any) -> ProxyClass | None:
        """Return what is known of an object's class; None unless a proxy of it is of use."""
        known = self.find(plain_class(type(obj)))
        return known if known is not None and known.why_not(obj) is None else None

    def find(self, cls: type) -> ProxyClass | None:
        """Return what is known of a plain class: it is a known one or does what that does."""
        if cls not in self._of_classes:
            base = known_base(cls, self._known)
            known = None if base is None else self._known[full_name(base)]
            is_same = known is None or base is None or does_the_same(cls, base, known.methods)
            self._of_classes[cls] = known if is_same else None
        return self._of_classes[cls]


def replaced(obj: Any, **attributes: Any) -> Any:
    """Return an object of the same class and state, but for these attributes.

    Those that a pydantic object keeps apart, as private, are replaced there.
    """
    other = object.__new__(type(obj))
    for name in ("__pydantic_fields_set__", "__pydantic_extra__"):
        if hasattr(obj, name):
            object.__setattr__(other, name, getattr(obj, name))
    if hasattr(obj, "__pydantic_private__"):
        private = obj.__pydantic_private__
        apart = {name: attributes.pop(name) for name in private or () if name in attributes}
        held = {**private, **apart} if apart else private
        object.__setattr__(other, "__pydantic_private__", held)
    object.__setattr__(other, "__dict__", {**vars(obj), **attributes})
    return other
