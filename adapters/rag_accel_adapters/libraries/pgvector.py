"""Searches of Postgres's vector extension over SQLAlchemy's asynchronous engines, for their row.

A store makes each search a statement on a connection of the engine's pool. Those that wait at the
same time are one statement: a ``UNION ALL`` of all, of which each part is planned, typed and run
as alone. (``unnest ... CROSS JOIN LATERAL`` with text for vectors was measured slower: each row
that is scanned parses its query again.)
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.proxies import Ask
from rag_accel.adoption.remote_stores import (
    BatchedClient,
    ReadSearch,
    SearchedClient,
    client_work,
    turn,
)
from rag_accel.engines.retrieval.batched_search_engine import ASK_ALONE
from rag_accel.system.classes import full_name
from rag_accel.system.methods import is_tracers, module_of
from rag_accel.system.weak_maps import ByClass
from rag_accel_adapters.libraries.as_shipped import check_object
from rag_accel_adapters.libraries.openai_clients import is_value

PGVECTOR_UNLESS = (
    "an engine with a `creator`, listeners but a tracer's, or settings that are no plain data",
    "a hybrid search's second statement, and embeddings that the database computes",
)

_MODULE = "sqlalchemy.ext.asyncio.engine"
_DIALECTS = "sqlalchemy.dialects.postgresql."
#: classes of settings that hold nothing of a caller's
_SETTINGS = frozenset({"ssl.SSLContext", "psycopg.adapt.AdaptersMap"})
#: names in the store's search that connections have, too
_USED = frozenset({"engine", "execute"})
#: most parameters of a statement: asyncpg's limit; psycopg's is Postgres's, 65,535
MAX_PARAMETERS = 32_767
#: a search, as the store writes it
_SEARCH = re.compile(
    r"SELECT .+ as distance\s+FROM (?P<table>.+?)\s+(?:WHERE .+)?"
    r"ORDER BY .+ :query_embedding LIMIT :dense_limit;\s*",
    re.DOTALL,
)
_SETTING = re.compile(r"SET LOCAL [\w.]+ = '?[\w.]+'?;?")
#: a parameter in a statement's text, as SQLAlchemy finds it
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")


def _check_engine(engine: Any) -> None:
    check_object(engine, "engine")
    inner = engine.sync_engine
    check_object(inner, "the engine's engine")
    check_object(inner.pool, "the engine's pool")
    if not full_name(type(inner.dialect)).startswith(_DIALECTS):
        raise NotAdoptedError(f"its dialect is a {full_name(type(inner.dialect))}", f"{_DIALECTS}*")
    for part in (inner, inner.pool, inner.dialect):
        for event in part.dispatch._event_names:
            for listener in getattr(part.dispatch, event):
                _check_listener(listener, event)
    if not is_value(dict(inner.get_execution_options())):
        raise NotAdoptedError("its execution options are no plain data")
    _check_creator(inner.pool._creator)


def _check_listener(listener: Any, event: str) -> None:
    module = module_of(listener)
    if not (is_tracers(listener) or module.startswith("sqlalchemy.")):
        raise NotAdoptedError(
            f"a listener of {module} to {event!r} may look at who calls",
            "no listeners of the program's",
        )


def _check_creator(creator: Any) -> None:
    """Check that a pool connects by its engine's own function, with settings that do not change."""
    name = "create_engine.<locals>.connect"
    if type(creator) is not FunctionType or creator.__code__.co_qualname != name:
        raise NotAdoptedError(
            f"a creator of {module_of(creator)} makes its connections", "an engine made of a URL"
        )
    cells = zip(creator.__code__.co_freevars, creator.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells}
    for name, value in held["cparams"].items():
        if not is_value(value) and full_name(type(value)) not in _SETTINGS:
            raise NotAdoptedError(f"its setting {name} is a {full_name(type(value))}", "plain data")


def _read_search(engine: Any, given: Mapping[str, Any]) -> ReadSearch | None:
    text, parameters = given["statement"], given["parameters"]
    found = _SEARCH.fullmatch(text)
    names = list(dict.fromkeys(_PARAMETER.findall(text)))
    if found is None or sorted(names) != sorted(parameters) or not is_value(dict(parameters)):
        return None
    if 2 * len(names) > MAX_PARAMETERS:
        return None
    # Names of a filter's parameters are drawn by chance.
    order = {name: f"p{at}" for at, name in enumerate(names)}
    statement = _renamed(text.rstrip().rstrip(";"), order)
    query = {order[name]: parameters[name] for name in names}
    key = (statement, given["settings"], order["dense_limit"], id(given["loop"]))
    return ReadSearch(query, key, found["table"])


def _renamed(statement: str, names: Mapping[str, str]) -> str:
    return _PARAMETER.sub(lambda found: f":{names[found[1]]}", statement)


def _search(engine: Any, given: Mapping[str, Any], queries: list[dict[str, Any]]) -> Sequence[Any]:
    """Search in the loop of the callers, whose connections are bound to it."""
    searching = _asearch(engine, given, queries)
    try:
        return asyncio.run_coroutine_threadsafe(searching, given["loop"]).result()
    except RuntimeError:  # the loop is closed: nobody waits there
        searching.close()
        raise


async def _asearch(
    engine: Any, given: Mapping[str, Any], queries: list[dict[str, Any]]
) -> Sequence[Any]:
    sqlalchemy: Any = sys.modules["sqlalchemy"]
    statement, settings, limit, _ = given["key"]
    # To few numbers of parts, so that their statements are prepared once; those too many give
    # nothing, and are not run.
    padding = (1 << (len(queries) - 1).bit_length()) - len(queries)
    parts, values = list[str](), dict[str, Any]()
    for at, query in enumerate([*queries, *[{**queries[0], limit: 0}] * padding]):
        names = {name: f"{name}_{at}" for name in query}
        parts.append(f"SELECT {at}, one.* FROM ({_renamed(statement, names)}) AS one")
        values |= {names[name]: value for name, value in query.items()}
    async with engine.connect() as connection:
        for setting in settings:
            await connection.execute(sqlalchemy.text(setting))
        found = await connection.execute(sqlalchemy.text(" UNION ALL ".join(parts)), values)
    _, *names = found.keys()
    if len(set(names)) < len(names):
        raise ValueError("columns of the same name cannot be told apart")
    rows: list[list[Any]] = [[] for _ in queries]
    for place, *row in found:
        rows[place].append(tuple(row))
    return [(names, some) for some in rows]


PGVECTOR = SearchedClient(
    name=f"{_MODULE}.AsyncEngine",
    method="connect",
    parameters=frozenset(),
    check=_check_engine,
    read=_read_search,
    search=_search,
)


class BatchedEngine(BatchedClient):
    """An engine whose connections make searches together with those of other callers."""

    def connect(self) -> _BatchedConnection:
        return _BatchedConnection(*self._batched)


def _version_obstacle(store: type) -> str | None:
    for cls in store.__mro__:
        search = vars(cls).get("_AsyncPGVectorStore__query_collection")
        if search is not None:
            used = {*search.__code__.co_names} & {*dir(sys.modules[_MODULE].AsyncConnection)}
            return f"this version asks its connection for {min(used)}" if used - _USED else None
    return "this version searches by another method"


#: returns why searches of a class of stores, in its version, cannot be read; None if they can
version_obstacle = ByClass(_version_obstacle)


class _BatchedConnection:
    """A connection that is taken from its pool when it is needed: for a search that is alone."""

    def __init__(self, engine: Any, row: SearchedClient, ask: Ask) -> None:
        self._engine, self._row, self._ask = engine, row, ask
        self._settings: tuple[str, ...] = ()
        self._opened: Any = None

    async def __aenter__(self) -> _BatchedConnection:
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(*error)

    async def execute(self, statement: Any, parameters: Any = None, **more: Any) -> Any:
        text = getattr(statement, "text", None)
        if self._opened is None and not more and type(text) is str:
            if parameters is None and _SETTING.fullmatch(text):
                self._settings += (text,)
                return _result([], [])
            if type(parameters) is dict:
                return await self._search(text, parameters, partial(self._plain, statement))
        return await self._plain(statement, parameters, **more)

    async def _plain(self, statement: Any, parameters: Any, **more: Any) -> Any:
        if self._opened is None:
            opened = self._engine.connect()
            await opened.__aenter__()
            self._opened = opened
            for setting in self._settings:
                await opened.execute(sys.modules["sqlalchemy"].text(setting))
        return await self._opened.execute(statement, parameters, **more)

    async def _search(self, text: str, parameters: dict[str, Any], execute: Any) -> Any:
        engine, row = self._engine, self._row
        plain = partial(execute, parameters)
        given: dict[str, Any] = {
            **{"statement": text, "parameters": parameters},
            **{"settings": self._settings, "loop": asyncio.get_running_loop()},
        }
        try:
            read = row.read(engine, given)
        except Exception:  # the engine itself says what is wrong, if anything is
            read = None
        if read is None:
            return await plain()
        with turn(engine, row, read) as shares:
            if not shares:
                return await plain()
            search = partial(row.search_together, engine, {**given, "key": read.key})
            most = min(row.max_queries, MAX_PARAMETERS // len(read.query))
            # A power of two, as a statement is padded to one.
            work = client_work(engine, read, 1 << most.bit_length() - 1, search)
            found = await self._ask.acompute(work, plain)
            if found is ASK_ALONE:
                return await plain()
            return _result(*found) if type(found) is tuple else found


def _result(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Any:
    result: Any = sys.modules["sqlalchemy.engine.result"]
    return result.IteratorResult(result.SimpleResultMetaData(names), iter(rows))
