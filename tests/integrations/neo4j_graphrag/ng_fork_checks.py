"""Fork after a program was accelerated and say what the child found, as JSON.

Not collected: ``test_fork.py`` runs it, with the address and the login of a filled server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))

from forked_child import in_child
from neo4j import GraphDatabase
from ng_kit import GraphPrograms, steps

from neo4j_graphrag_rag_accel import accelerate, activate
from rag_accel import Accelerator
from rag_accel.accelerator import default_accelerator


def main(uri: str, user: str, password: str) -> None:
    """Run all checks."""

    def search(make: Callable[[Any], Any] = lambda one: one) -> str:
        with GraphDatabase.driver(uri, auth=(user, password)) as own:
            return repr(make(GraphPrograms(own).vector()).search(query_text="bridge"))

    def scheduled(call: Callable[[], str]) -> list[Any]:
        return [call(), steps(default_accelerator())["VectorRetriever"]]

    explicit = Accelerator()
    found: dict[str, Any] = {"expected": search()}
    with activate():
        search()
        found["activated"] = in_child(lambda: scheduled(search))
    accelerated = accelerate(
        GraphPrograms(GraphDatabase.driver(uri, auth=(user, password))).vector()
    )
    accelerated.search(query_text="bridge")
    found["accelerated"] = in_child(lambda: scheduled(lambda: search(accelerate)))
    bound = lambda one: accelerate(one, accelerator=explicit)  # noqa: E731
    search(bound)
    found["explicit"] = in_child(lambda: search(bound))
    found["parent"] = repr(accelerated.search(query_text="bridge"))
    accelerated.driver.close()
    explicit.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
