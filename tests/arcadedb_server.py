"""A server of another kind that speaks Bolt: ArcadeDB, whose wheel brings its own Java runtime.

It stands in for Neo4j where there is none. It runs Cypher that reads and writes, but it makes no
vector index and no full-text index over Bolt. Run as a script, this module is that server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bench.neo4j_process import BoltServer

START_S = 60.0
DATABASE = "neo4j"


@pytest.fixture(scope="session")
def arcadedb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoltServer]:
    """Yield a server of this process's tests, started by the first that needs it."""
    # Not above: as a script this module needs neither.
    from bench.neo4j_process import BoltServer, free_port

    pytest.importorskip("arcadedb_embedded", reason="no ArcadeDB: arcadedb-embedded is missing")
    work = tmp_path_factory.mktemp("arcadedb")
    server = BoltServer(f"bolt://127.0.0.1:{free_port()}", "root", os.urandom(12).hex())
    with (work / "console.log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, work, server.uri.rpartition(":")[2], str(free_port())],
            cwd=work,
            env={**os.environ, "ARCADEDB_TEST_PASSWORD": server.password},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            assert process.stdout is not None
            # Its own log comes first; it ends without that line where it cannot start.
            if not any(line == b"ready\n" for line in process.stdout):
                pytest.fail(f"ArcadeDB did not start: {(work / 'console.log').read_text()}")
            yield server
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def arcadedb_driver(arcadedb_server: BoltServer) -> Iterator[Any]:
    """Yield a driver of the server's database ``DATABASE``, emptied."""
    with arcadedb_server.driver() as driver:
        driver.execute_query("MATCH (n) DETACH DELETE n", database_=DATABASE)
        yield driver


def serve(folder: Path, bolt_port: int, http_port: int) -> None:
    """Run the server until the standard input ends, as it does when the tests' process ends."""
    from arcadedb_embedded import ArcadeDBServer

    server = ArcadeDBServer(
        str(folder),
        os.environ["ARCADEDB_TEST_PASSWORD"],
        {
            "server_plugins": "Bolt:com.arcadedb.bolt.BoltProtocolPlugin",
            "bolt_port": bolt_port,
            "http_port": http_port,
        },
        jvm_kwargs={"heap_size": "512m"},
    )
    server.start()
    server.create_database(DATABASE)
    print("ready", flush=True)
    # From here on nothing reads what the server prints there.
    os.dup2(2, 1)
    sys.stdin.read()
    # The virtual machine would wait for threads of the server's.
    os._exit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
