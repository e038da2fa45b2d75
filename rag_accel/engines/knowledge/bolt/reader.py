"""Queries that only read, over a driver of the official ``neo4j`` package, and their access."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString, cast

from rag_accel.errors import ConfigError

_LEAST_S = 0.001
_NOTE = "while a knowledge graph was read from its database"


@dataclass(frozen=True, slots=True)
class BoltAccess:
    """The database and rights of queries. Only queries with equal access ever share a call.

    The fields are those arguments of ``BoltGraph``.
    """

    database: str | None = None
    auth: Any = field(default=None, repr=False)
    impersonated_user: str | None = None
    bookmarks: Any = None
    timeout_s: float | None = 30.0

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(
                "bad time limit of a graph's queries",
                where="timeout_s",
                found=repr(self.timeout_s),
                valid="a number of seconds above 0, or None",
            )


class BoltReader:
    """Queries that only read, in sessions of their own: a caller's session is never used.

    Thread-safe, as the driver is: each query has a session that no other thread sees.

    Args:
        driver: a ``neo4j.Driver``, which stays the caller's.
        access: the database and rights.
    """

    def __init__(self, driver: Any, access: BoltAccess) -> None:
        if inspect.iscoroutinefunction(getattr(driver, "close", None)) or not callable(
            getattr(driver, "session", None)
        ):
            raise ConfigError(
                "a graph cannot be read over this object",
                where="driver",
                found=type(driver).__name__,
                valid="a driver from neo4j.GraphDatabase.driver, which is not asynchronous",
            )
        self._driver = driver
        self._access = access
        #: the queries that were sent
        self.trips = 0
        self._counting = threading.Lock()

    @property
    def timeout_s(self) -> float | None:
        return self._access.timeout_s

    def rows(
        self, statement: str, parameters: Mapping[str, Any], time_s: float | None = None
    ) -> list[list[Any]]:
        """Return the values of each record; one round trip.

        The server ends it after ``timeout_s``, or after ``time_s`` seconds if they are fewer.

        What the driver calls retryable, such as a pooled connection that has died, is tried once
        more. Any other exception is the driver's own object with a note, which holds no parameter.
        """
        try:
            return self._read(statement, parameters, time_s)
        except Exception as error:
            if not _is_retryable(error):
                error.add_note(_NOTE)
                raise
        try:
            return self._read(statement, parameters, time_s)
        except Exception as error:
            error.add_note(_NOTE)
            raise

    def _read(
        self, statement: str, parameters: Mapping[str, Any], time_s: float | None
    ) -> list[list[Any]]:
        from neo4j import Query

        query = Query(cast(LiteralString, statement), timeout=self._limit_s(time_s))
        with self._counting:
            self.trips += 1
        with self._driver.session(**self._session_settings()) as session:
            return [record.values() for record in session.run(query, dict(parameters))]

    def _limit_s(self, time_s: float | None) -> float | None:
        own = self._access.timeout_s
        if time_s is None:
            return own
        # A limit of 0 would be none.
        limit = max(time_s, _LEAST_S)
        return limit if own is None else min(own, limit)

    def _session_settings(self) -> dict[str, Any]:
        access = self._access
        settings: dict[str, Any] = {"default_access_mode": "READ", "fetch_size": -1}
        for name in ("database", "auth", "impersonated_user", "bookmarks"):
            if (value := getattr(access, name)) is not None:
                settings[name] = value
        if access.bookmarks is None:
            # So that a program reads what it has written with execute_query.
            settings["bookmark_manager"] = self._driver.execute_query_bookmark_manager
        return settings


def is_down(error: BaseException) -> bool:
    """Tell whether an error says that the server cannot be reached or refuses this access."""
    from neo4j.exceptions import AuthError, DriverError

    return isinstance(error, AuthError | DriverError)


def _is_retryable(error: BaseException) -> bool:
    tell = getattr(error, "is_retryable", None)
    return bool(tell()) if callable(tell) else False
