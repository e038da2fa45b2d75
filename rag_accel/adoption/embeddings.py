"""Embedding models inside framework objects, described so that an owned engine can run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

from rag_accel.adoption.known_classes import ClassRow, NotAdoptedError, overrides
from rag_accel.config import Options
from rag_accel.engine_api import Engine
from rag_accel.engines.embedding.hosted_engine import ServerAnswer
from rag_accel.engines.embedding.model_encoding import ModelEncoding
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.errors import ConfigError
from rag_accel.system.classes import does_the_same, full_name, known_base

#: Asks a server for texts, by a gate where its calls are limited.
AskByGate = Callable[[list[str], EndpointGate | None], ServerAnswer]
#: Returns an object that sends by a gate; what it is given is not changed.
Limit = Callable[[Any, EndpointGate], Any]


@dataclass(frozen=True, slots=True)
class HostedCalls:
    """A snapshot of an embeddings object's calls to its server: client, model, parameters.

    Args:
        group: equal where a call would be the same.
        max_texts: texts in one call.
        ask: asks the server once by a gate, without trying again; raises what the client raises.
        alone: returns the object for a caller whose shared call failed after so many attempts; it
            makes the rest.
        attempts: that the client makes of a call.
        ask_queries: asks for queries, where they are asked for otherwise than documents.
        blocks_loops: whether its coroutines ask without leaving the loop meanwhile.
    """

    group: str
    max_texts: int
    ask: AskByGate
    alone: Callable[[int], Any]
    attempts: int
    ask_queries: AskByGate | None = None
    blocks_loops: bool = False

    def asks(self, role: Literal["query", "document"]) -> AskByGate:
        return self.ask_queries or self.ask if role == "query" else self.ask


@dataclass(frozen=True, slots=True)
class AdoptedEmbeddings:
    """An embeddings object as work for an owned engine.

    Args:
        model: the object that computes; objects that share it share an engine.
        variant: settings that make another engine of the same model.
        make: builds the engine under an accelerator's options.
        prepare: what the object does to each text before the model sees it.
        describe: says what runs the model under an accelerator's options.
        hosted: how it asks its server; None for a model that computes here.
        through_sync: whether its coroutines call its other methods, what stands around which is
            part of a coroutine then.
        encoding: how it embeds, of a model that may be copied to other devices.
        devices: those that its owner has listed for it; None for those of the accelerator.
        shows_progress: whether a bar shows how far a call is.
    """

    model: Any
    variant: str
    make: Callable[[Options], Engine]
    prepare: Callable[[str], str]
    describe: Callable[[Options], str]
    hosted: HostedCalls | None = None
    through_sync: bool = False
    encoding: ModelEncoding | None = None
    devices: tuple[Any, ...] | None = None
    shows_progress: bool = False


def _method(cls: type, name: str) -> Any:
    return getattr(cls, name, None)


Adopter = Callable[[Any, type], AdoptedEmbeddings]


@dataclass(frozen=True, slots=True)
class EmbeddingsClass:
    """A class of embeddings that an owned engine can run.

    Args:
        adopt: returns how an engine runs an object, a plain class and ``plain_method`` given;
            raises ``NotAdoptedError`` where its settings do not allow it.
        acts: what acts on its objects.
        unless: the settings that switch that off.
        limit: returns an object that sends by a gate; None for a class that sends nothing.
    """

    adopt: Adopter
    acts: str
    unless: tuple[str, ...]
    limit: Limit | None = None


class KnownEmbeddings:
    """The embeddings classes of a framework that an owned engine can run.

    Args:
        known: them by full name.
        methods: what makes such a class what it is; a subclass that overrides one is another.
    """

    def __init__(self, known: Mapping[str, EmbeddingsClass], methods: Sequence[str]) -> None:
        self._known = known
        self._methods = methods
        self._of_classes: WeakKeyDictionary[type, Adopter | None] = WeakKeyDictionary()
        self._limits: WeakKeyDictionary[type, Limit | None] = WeakKeyDictionary()

    def rows(self) -> Iterator[ClassRow]:
        """Yield what is known of each class."""
        for name, known in self._known.items():
            yield ClassRow(name, known.acts, known.unless)

    def may_adopt(self, cls: type) -> bool:
        """Tell whether objects of a class may be run by an owned engine."""
        return self._find(cls) is not None

    def adopt(self, obj: Any, cls: type) -> AdoptedEmbeddings | None:
        """Return how an owned engine can run ``obj``, which is a plain ``cls``; None if not."""
        adopter = self._find(cls)
        if adopter is None:
            return None
        try:
            return adopter(obj, cls)
        except NotAdoptedError:
            return None

    def limited(self, obj: Any, cls: type, gate: EndpointGate) -> Any:
        """Return ``obj`` as it sends by a gate; itself if its class is not known to send."""
        if cls not in self._limits:
            known = None if self._find(cls) is None else self._known_of(cls)
            self._limits[cls] = None if known is None else known.limit
        limit = self._limits[cls]
        return obj if limit is None else limit(obj, gate)

    def _known_of(self, cls: type) -> EmbeddingsClass | None:
        names = map(full_name, cls.__mro__)
        return next((self._known[name] for name in names if name in self._known), None)

    def why_not(self, obj: Any, cls: type) -> str | None:
        """Return why no engine runs ``obj``, whose class is known; None if one does."""
        known = known_base(cls, self._known)
        if known is None:
            return None
        adopter = self._find(cls)
        if adopter is None:
            return overrides(cls, known)
        try:
            adopter(obj, cls)
        except NotAdoptedError as error:
            return str(error)
        return None

    def _find(self, cls: type) -> Adopter | None:
        if cls not in self._of_classes:
            self._of_classes[cls] = self._look_up(cls)
        return self._of_classes[cls]

    def _look_up(self, cls: type) -> Adopter | None:
        known = known_base(cls, self._known)
        if known is None or not does_the_same(cls, known, self._methods):
            return None
        return self._known[full_name(known)].adopt


def adopt_sentence_transformer(
    model: Any,
    query_kwargs: Mapping[str, Any],
    document_kwargs: Mapping[str, Any],
    prepare: Callable[[str], str],
    devices: tuple[Any, ...] | None = None,
) -> AdoptedEmbeddings:
    """Describe a ``SentenceTransformer`` with the arguments of ``encode`` for both roles.

    Objects of different frameworks that hold one model share its engine if their arguments come to
    the same; a prompt counts by its text, not by its name.

    Raises:
        ConfigError: an argument that an owned engine cannot honour.
    """
    from rag_accel.engines.embedding.models import encode_arguments

    queries = _spelled_out(model, encode_arguments(query_kwargs, "query_encode_kwargs"))
    documents = _spelled_out(model, encode_arguments(document_kwargs, "encode_kwargs"))
    encoding = ModelEncoding(model, queries, documents)
    return AdoptedEmbeddings(
        model=model,
        variant=encoding.variant,
        make=encoding.engine,
        prepare=prepare,
        describe=partial(_described, model),
        encoding=encoding,
        devices=devices,
    )


def adopt_plain_model(
    model: Any,
    query_kwargs: Mapping[str, Any],
    document_kwargs: Mapping[str, Any],
    prepare: Callable[[str], str] = str,
) -> AdoptedEmbeddings:
    """Do as ``adopt_sentence_transformer``.

    Raises:
        NotAdoptedError: no engine computes the same.
    """
    from rag_accel.engines.embedding.models import has_plain_encode

    # An ``encode`` that was replaced may look at who calls it, or at its texts as a whole.
    if not has_plain_encode(model):
        raise NotAdoptedError("the encode of its model is replaced, or is another class's")
    try:
        return adopt_sentence_transformer(model, query_kwargs, document_kwargs, prepare)
    except ConfigError as error:
        raise NotAdoptedError(f"{error.where}: {error.what}", error.valid or "") from None


#: What acts on local models, and what switches it off.
LOCAL_MODEL = "texts of all requests share batches; compiled where OpenVINO is installed"
LOCAL_UNLESS = ("arguments of encode that change its result's form", "a replaced encode")


def _spelled_out(model: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the text of a prompt in place of its name, or without an empty one.

    A name that the model does not know stays: ``encode`` is to refuse it.
    """
    named = kwargs.get("prompt_name")
    prompts = getattr(model, "prompts", None) or {}
    if kwargs.get("prompt") is not None or named not in prompts:
        return dict(kwargs)
    others = {name: value for name, value in kwargs.items() if name not in _PROMPT}
    if prompts[named] or getattr(model, "default_prompt_name", None) is not None:
        return {**others, "prompt": prompts[named]}
    return others


_PROMPT = frozenset({"prompt", "prompt_name"})


def _described(model: Any, options: Options) -> str:
    from rag_accel.engines.embedding.compiled_model import describe
    from rag_accel.engines.embedding.models import default_threads
    from rag_accel.engines.embedding.sentence_encoder import runs_on_cpu
    from rag_accel.engines.helper_threads import describe_parallel

    runs = describe(model, "torch" if options.reproducible else options.embedding_runtime)
    if not options.reproducible:
        runs += describe_parallel(default_threads(runs_on_cpu(model)))
    return f"recognised local model: owned engine, texts of all requests share batches; {runs}"


#: What acts on embeddings on servers, and what switches it off.
SERVER = "small requests share calls, equal texts are asked for once, vectors are cached"
SERVER_UNLESS = (
    "a key, token or header that a function gives",
    "hooks, an auth or a transport in http_client",
    "max_retries=0",
    "a method that neither the library nor a known tracer wrote",
)


def server_class(
    calls: Callable[[Any, type], HostedCalls],
    limit: Limit,
    unless: tuple[str, ...] = SERVER_UNLESS,
) -> EmbeddingsClass:
    """Return a class of embeddings on servers, whose small requests may share calls."""

    def adopt(obj: Any, cls: type) -> AdoptedEmbeddings:
        return adopt_server(calls(obj, cls))

    return EmbeddingsClass(adopt, SERVER, unless, limit)


def adopt_server(hosted: HostedCalls) -> AdoptedEmbeddings:
    """Describe an object whose small requests may share calls of a server with those of others."""
    return AdoptedEmbeddings(
        model=adopt_server,  # one engine asks all servers, and keeps no object alive
        variant="",
        make=_hosted,
        prepare=as_it_is,
        describe=_describe_hosted,
        hosted=hosted,
    )


def _hosted(options: Options) -> Engine:
    from rag_accel.engines.embedding.hosted_engine import HostedEmbeddingEngine

    return HostedEmbeddingEngine()


def as_it_is(text: str) -> str:
    return text


def _describe_hosted(options: Options) -> str:
    cached = f", vectors are cached for {options.hosted_cache_s:g} s"
    return (
        "recognised server: queries and short lists of all requests share its calls, a longer list"
        f" is sent where its caller is{cached if options.hosted_cache_mb else ''}"
    )
