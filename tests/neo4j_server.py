"""A real Neo4j server for tests, started once a run by the first that needs it.

``NEO4J_HOME`` names an unpacked server, which may be read-only, or ``NEO4J_URI`` one that runs,
with ``NEO4J_USERNAME`` and ``NEO4J_PASSWORD``. Without either, tests that need one are skipped. The
processes of one run share the server, and a test has its database for itself.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pytest

from bench.neo4j_process import (
    BoltServer,
    reason_without_server,
    running_server,
    started,
    stopped,
)


@pytest.fixture(scope="session")
def neo4j_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> BoltServer:
    """Return the server of this run; skip without one."""
    # A record of an error holds it, with all that it went through, for as long as the test.
    logging.getLogger("neo4j").setLevel(logging.CRITICAL)
    if reason := reason_without_server():
        pytest.skip(reason)
    if running := running_server():
        return running
    home = Path(os.environ["NEO4J_HOME"]).resolve()
    return shared_server(home, run_folder(tmp_path_factory), request.config)


@pytest.fixture
def neo4j_driver(
    request: pytest.FixtureRequest,
    neo4j_server: BoltServer,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """Yield a driver of an empty database that no other test uses meanwhile."""
    assert request.node.get_closest_marker("neo4j"), "a test on the server needs the mark neo4j"
    monkeypatch.setattr("neo4j._async_compat.network._bolt_socket.BoltSocketBase.at_eof", is_at_eof)
    with (
        locked(run_folder(tmp_path_factory) / "neo4j-turn"),
        neo4j_server.driver(notifications_min_severity="OFF") as driver,
    ):
        if holds_something(driver):
            pytest.skip("the database of NEO4J_URI holds data or indexes, and tests delete both")
        try:
            yield driver
        finally:
            empty(driver)


def is_at_eof(connection: Any) -> bool:
    """Tell whether a connection of the driver's has ended, without a change of its time limit.

    The driver (5.28) releases one twice where a query fails, and then two threads may look at it.
    As it looks itself, it changes the time limit of the other's reading, which fails or never ends.
    """
    raw = connection._socket
    if raw.fileno() < 0:  # closed
        return True
    if connection._peeked or not select.select([raw], [], [], 0.0)[0]:
        return False
    return not raw.recv(1, socket.MSG_PEEK)


def holds_something(driver: Any) -> bool:
    """Tell whether the default database has a node, a constraint or an index made by a user."""
    return bool(driver.execute_query("MATCH (n) RETURN n LIMIT 1").records or schema(driver))


def schema(driver: Any) -> list[tuple[str, str]]:
    """Return the kind and the name of each constraint and index; constraints first."""
    return [
        (kind, record["name"])
        for kind, plural in (("CONSTRAINT", "CONSTRAINTS"), ("INDEX", "INDEXES"))
        for record in driver.execute_query(f"SHOW {plural} YIELD name, type").records
        if record["type"] != "LOOKUP"
    ]


def empty(driver: Any) -> None:
    """Delete all nodes, constraints and indexes of the default database."""
    driver.execute_query("MATCH (n) DETACH DELETE n")
    for kind, name in schema(driver):
        quoted = name.replace("`", "``")
        driver.execute_query(f"DROP {kind} `{quoted}` IF EXISTS")


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this run see."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Hold the lock of a file, which one process has at a time."""
    import fcntl

    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def shared_server(home: Path, folder: Path, config: pytest.Config) -> BoltServer:
    """Return the run's server: started by the first process that asks, stopped after the last."""
    import fcntl

    users = (folder / "neo4j-users").open("a+")
    fcntl.flock(users, fcntl.LOCK_SH)
    config.add_cleanup(users.close)
    with locked(folder / "neo4j-server") as file:
        file.seek(0)
        if known := file.read():
            return BoltServer(**json.loads(known))
        work = folder / "neo4j"
        process, server = started(home, work)
        json.dump(asdict(server), file)

    def stop() -> None:
        # The others still work with it; each lets go of its lock as it ends.
        fcntl.flock(users, fcntl.LOCK_EX)
        with locked(folder / "neo4j-server") as file:
            file.truncate(0)  # who asks later starts another
        stopped(process)
        shutil.rmtree(work, ignore_errors=True)

    config.add_cleanup(stop)
    return server
