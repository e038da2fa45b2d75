"""A language model behind servers as users name it; those that name it alike share an engine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, get_args
from weakref import WeakValueDictionary

from rag_accel.config import Options
from rag_accel.engine_api import Engine, EngineRequest, GenerationInput, GenerationOutput
from rag_accel.engines.http.errors import Secret, check_base_url
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.early_prompts import check_early
from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine
from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions
from rag_accel.engines.replicas.pool import EnginePool
from rag_accel.engines.replicas.pool_placement import PoolPlacement
from rag_accel.errors import ConfigError
from rag_accel.kv.reuse_request import ServedReuse
from rag_accel.system.locks import RenewedLock

_NAMES = (*(field.name for field in fields(VllmServerOptions)), "early")

#: Of several servers, another one is tried before the same one is tried again.
ELSEWHERE = RemoteOptions(max_retries=0)
DEFAULT_CONTEXT = 8192
MOST_SERVERS = 256
#: Characters of a prompt after which a beginning has a key, also within a message.
PIECE = 512


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server of a model.

    Args:
        base_url: such as ``http://localhost:8000/v1``.
        model: the model's name there; None for that of the ``RemoteLLM``.
        api_key: sent to this server only; None for that of the ``RemoteLLM``.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RemoteBounds:
    """The bounds of a model behind servers.

    Args:
        vllm: what servers of vLLM's are told besides.
        early: whether servers are also sent beginnings of prompts that are not whole yet.
    """

    vllm: VllmServerOptions
    early: bool = False

    @classmethod
    def of(cls, named: Mapping[str, Any], servers: Sequence[RemoteServer]) -> RemoteBounds:
        """Return bounds by name.

        Raises:
            ConfigError: a value out of range, or ``early`` where that cannot be.
        """
        told = {name: value for name, value in named.items() if name != "early"}
        bounds = cls(VllmServerOptions(**told), named.get("early", False))
        urls = [server.base_url for server in servers]
        check_early(bounds.early, bounds.vllm, urls, "RemoteLLM")
        return bounds

    @property
    def kv_reuse(self) -> str:
        return self.vllm.kv_reuse

    def notes(self, output: GenerationOutput) -> dict[str, Any]:
        return self.vllm.notes(output)


class RemoteModel:
    """A model behind servers, with what makes an engine of it.

    Args:
        servers: each with its own model and key.
        options: limits, timeouts and retries of each server's client.
        bounds: what servers of vLLM's are told.
    """

    reuses_paths = False

    def __init__(
        self, servers: Sequence[RemoteServer], options: RemoteOptions, bounds: RemoteBounds
    ) -> None:
        self.servers = servers
        self._options = options
        self.bounds = bounds
        #: chooses servers for its engines, and for clients of a program that ask them
        self.placement = PoolPlacement(len(servers))

    @property
    def name(self) -> str:
        """Return the model's name at the first server."""
        return self.servers[0].model or ""

    @property
    def reuses_texts(self) -> bool:
        """Tell whether servers are told of the retrieved texts of prompts."""
        return self.bounds.kv_reuse != "exact"

    def describe_parts(self) -> tuple[str, ...]:
        return tuple(f"served by {server.base_url} as {server.model}" for server in self.servers)

    def make(self, options: Options) -> Engine:
        """Return an engine; no server is asked.

        Raises:
            ImportError: ``openai`` is not installed.
        """
        clients = [self._client(server) for server in self.servers]
        if len(clients) == 1:
            return clients[0]
        return EnginePool(
            clients,
            names=[server.base_url for server in self.servers],
            keys=prompt_keys,
            placement=self.placement,
        )

    def _client(self, server: RemoteServer) -> OpenAICompatibleEngine:
        return OpenAICompatibleEngine(
            server.base_url,
            server.model or "",
            api_key=server.api_key,
            options=self._options,
            vllm=self.bounds.vllm,
            early=self.bounds.early,
        )


class RemoteLLM:
    """A language model behind one or more OpenAI-compatible servers, for ``Accelerator(llm=...)``.

    ``ChatRagAccel(model=RemoteLLM(...))`` and ``RagAccelLLM(model=RemoteLLM(...))`` hold one, too.
    Those that name the same servers and options share an engine on an accelerator, with its stages.
    A request
    goes to the server that would end it soonest; of those about as near, to the one that had the
    beginning of its prompt, or its retrieved texts, last. What a server that fails has not begun to
    answer goes to another one.

    Args:
        servers: base URLs such as ``http://localhost:8000/v1``, each a text or a ``RemoteServer``;
            or just one.
        model: the model's name there.
        api_key: of servers without one of their own.
        options: limits, timeouts and retries of each server; by default, a call is not repeated at
            a server where there are others.
        context: the most tokens of a prompt and its completion, for LlamaIndex.
        bounds: ``kv_reuse``, ``recompute_ratio``, ``kv_recipe``, ``priority`` and
            ``most_waiting`` of ``VllmServerOptions``, by name; None for those that are not named.
            ``early=True`` also sends the beginning of a prompt while the rest is not known, for
            servers that keep beginnings: a completion of one token, only while nothing else is
            there.

    Raises:
        ConfigError: no server, one twice, a bad URL or key, a value out of range, or ``early``
            with a provider's server or with approximate ``kv_reuse``.
    """

    def __init__(
        self,
        servers: str | RemoteServer | Sequence[str | RemoteServer],
        model: str | None = None,
        *,
        api_key: str | None = None,
        options: RemoteOptions | None = None,
        context: int = DEFAULT_CONTEXT,
        **bounds: Any,
    ) -> None:
        several = (servers,) if isinstance(servers, str | RemoteServer) else tuple(servers)
        self._servers = tuple(_completed(server, model, api_key) for server in several)
        _check_servers(self._servers)
        self._options = options or (ELSEWHERE if len(several) > 1 else RemoteOptions())
        self._context = _checked_context(context)
        #: the bounds that are named
        self.named: Mapping[str, Any] = {
            name: value for name, value in bounds.items() if value is not None
        }
        if unknown := sorted(self.named.keys() - set(_NAMES)):
            raise ConfigError(
                "a model behind servers has no such bound",
                where="RemoteLLM",
                found=", ".join(unknown),
                valid=", ".join(_NAMES),
            )
        RemoteBounds.of(self.named, self._servers)

    def __repr__(self) -> str:
        urls = ", ".join(repr(server.base_url) for server in self._servers)
        named = "".join(f", {name}={value!r}" for name, value in self.named.items())
        return f"RemoteLLM([{urls}], {self.name!r}{named})"

    @property
    def name(self) -> str:
        """Return the model's name at the first server."""
        return self._servers[0].model or ""

    @cached_property
    def context(self) -> int:
        return self._context

    def with_named(
        self, *, dtype: str | None = None, chat_template: str | None = None, **named: Any
    ) -> RemoteLLM:
        """Return the model with a component's own arguments over these.

        Raises:
            ConfigError: as the class, or an argument that is the server's.
        """
        theirs = {"dtype": dtype, "chat_template": chat_template}
        if given := [name for name, value in theirs.items() if value is not None]:
            raise ConfigError(
                "servers load their model by themselves",
                where="RemoteLLM",
                found=", ".join(given),
                valid=", ".join(_NAMES),
            )
        own = {name: value for name, value in named.items() if value is not None}
        if not own:
            return self
        return RemoteLLM(
            self._servers,
            options=self._options,
            context=self._context,
            **{**self.named, **own},
        )

    def is_same_model(self, other: Any) -> bool:
        return isinstance(other, RemoteLLM) and self._servers == other._servers

    def resolved(self, defaults: Mapping[str, Any]) -> RemoteModel:
        """Return the model that is run.

        Args:
            defaults: bounds by name where none is named here; those that no server takes are
                left out.

        Raises:
            ConfigError: a value out of range.
        """
        taken = {name: value for name, value in defaults.items() if name in _NAMES}
        texts = str(taken.pop("kv_reuse", "")).partition("+")[0]  # a server computes no trees
        if texts in get_args(ServedReuse):
            taken["kv_reuse"] = texts
        bounds = RemoteBounds.of({**taken, **self.named}, self._servers)
        return remote_model(self._servers, self._options, bounds)


_lock = RenewedLock()
_known: WeakValueDictionary[tuple[Any, ...], RemoteModel] = WeakValueDictionary()


def remote_model(
    servers: tuple[RemoteServer, ...], options: RemoteOptions, bounds: RemoteBounds
) -> RemoteModel:
    """Return the model; the same object for equal arguments while it is in use."""
    key = (servers, options, bounds)
    with _lock.lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = RemoteModel(servers, options, bounds)
        return found


def prompt_keys(request: EngineRequest) -> Mapping[Hashable, int]:
    """Return the beginnings and the retrieved texts of a prompt, with their lengths.

    A server has computed those of an earlier prompt, and may keep them; of another tenant's it
    keeps nothing.
    """
    payload = request.payload
    return keys_of(payload, request.namespace) if isinstance(payload, GenerationInput) else {}


def keys_of(payload: GenerationInput, namespace: str) -> Mapping[Hashable, int]:
    """Return the keys of a tenant's prompt."""
    keys: dict[Hashable, int] = {}
    beginning = hash(namespace)
    for message in payload.messages:
        beginning = hash((beginning, message.role))
        for start in range(0, len(message.content), PIECE):
            piece = message.content[start : start + PIECE]
            beginning = hash((beginning, piece))
            keys["beginning", beginning] = len(piece)
    for span in payload.chunk_spans:
        text = payload.messages[span.message].content[span.start : span.stop]
        keys["text", hash((namespace, text))] = len(text)
    return keys


def _completed(server: str | RemoteServer, model: str | None, api_key: str | None) -> RemoteServer:
    if not isinstance(server, RemoteServer):
        server = RemoteServer(server)
    base_url, name = check_base_url(server.base_url), server.model or model
    if not name:
        raise ConfigError(
            "the model of a server has no name",
            where=f"RemoteLLM, {base_url}",
            valid="RemoteLLM(servers, model), or RemoteServer(base_url, model)",
        )
    key = server.api_key or api_key
    if key:
        Secret(key)  # refuses what no header can carry
    return replace(server, base_url=base_url, model=name, api_key=key)


def _check_servers(servers: Sequence[RemoteServer]) -> None:
    urls = [server.base_url for server in servers]
    if not 1 <= len(urls) <= MOST_SERVERS or len(set(urls)) < len(urls):
        raise ConfigError(
            "these cannot be the servers of a model",
            where="RemoteLLM(servers)",
            found=", ".join(urls[:9]) or "none",
            valid=f"1 to {MOST_SERVERS} base URLs, each once",
        )


def _checked_context(context: Any) -> int:
    if not isinstance(context, int) or isinstance(context, bool) or context < 1:
        raise ConfigError(
            "option out of range", where="RemoteLLM.context", found=repr(context), valid="from 1"
        )
    return context
