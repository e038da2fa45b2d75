"""The size of each room only falls: a budget of lines that a deletion lowers.

A new mechanism raises the budget of its room by one entry of ``RAISES``, which names the mechanism
and what it replaces or merges with. Nothing else raises one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

#: A budget is a number of lines rounded up to hundreds. One that exceeds its room by more than
#: this is to be lowered.
SLACK = 200

#: room -> its budget in physical lines of Python
BUDGETS: dict[str, int] = {
    "adapters/rag_accel_adapters": 4_200,
    "bench": 25_700,
    "demo/rag_accel_demo": 2_100,
    "integrations/langchain_rag_accel": 3_100,
    "integrations/llama_index_rag_accel": 3_600,
    "integrations/neo4j_graphrag_rag_accel": 300,
    "integrations/vllm_rag_accel": 2_400,
    "rag_accel": 1_100,
    "rag_accel/accelerator": 2_700,
    "rag_accel/adoption": 3_700,
    "rag_accel/cli": 1_500,
    "rag_accel/engine_api": 1_100,
    "rag_accel/engines": 900,
    "rag_accel/engines/compiled": 700,
    "rag_accel/engines/devices": 4_000,
    "rag_accel/engines/embedding": 2_800,
    "rag_accel/engines/http": 700,
    "rag_accel/engines/knowledge": 3_900,
    "rag_accel/engines/llm": 12_200,
    "rag_accel/engines/ray": 1_500,
    "rag_accel/engines/replicas": 3_000,
    "rag_accel/engines/rerank": 700,
    "rag_accel/engines/retrieval": 4_200,
    "rag_accel/fidelity": 2_000,
    "rag_accel/graph": 3_700,
    "rag_accel/interception": 3_800,
    "rag_accel/kv": 5_800,
    "rag_accel/leaves": 1_000,
    "rag_accel/passes": 1_700,
    "rag_accel/profile": 1_300,
    "rag_accel/requests": 3_200,
    "rag_accel/sample": 1_700,
    "rag_accel/scheduler": 5_100,
    "rag_accel/server": 900,
    "rag_accel/serving": 3_000,
    "rag_accel/system": 1_100,
    "rag_accel/telemetry": 1_100,
    "rag_accel/testing": 1_400,
    "rag_accel/workflows": 1_200,
    "tests": 112_400,
}


class Raise(NamedTuple):
    """A new mechanism and the lines that its room may grow by.

    Args:
        room: a key of ``BUDGETS``.
        lines: lines that the room may have beyond its budget.
        mechanism: what the lines do for a user.
        replaces: what they replace or merge with, by name.
    """

    room: str
    lines: int
    mechanism: str
    replaces: str


def _raises(mechanism: str, replaces: str, rooms: dict[str, int]) -> tuple[Raise, ...]:
    return tuple(Raise(room, lines, mechanism, replaces) for room, lines in rooms.items())


RAISES = (
    *_raises(
        "results are published by rules, a headline has an interval, and sentences have figures",
        "copies by hand, and figures of earlier runs that were typed into pages",
        {"bench": 300, "tests": 550},
    ),
    *_raises(
        "one command measures on a bare machine what is gained on its card",
        "measurements on cards that needed every package and files of models",
        {"bench": 1_400, "tests": 400},
    ),
    *_raises(
        "each suite of programs says what one user's request takes against plain, by one function",
        "one user in shapes of some suites' own, and a measure of early prompts beside another",
        {"bench": 200, "tests": 200},
    ),
    *_raises(
        "a site of the pages with a search and a reference, and what has run, in explanations",
        "docstrings that only readers of the code found",
        {"tests": 100},
    ),
    *_raises(
        "a page shows engines, queues, steps and requests, while they run or from a recording",
        "a trace that only another program's viewer draws",
        {
            "rag_accel/accelerator": 50,
            "rag_accel/profile": 200,
            "rag_accel/serving": 100,
            "tests": 300,
        },
    ),
    *_raises(
        "spans say provider, device and results, and traces go on across HTTP",
        "a model's name as all that spans had of objects, and traces that servers began again",
        {
            "rag_accel/accelerator": 50,
            "rag_accel/profile": 100,
            "rag_accel/telemetry": 150,
            "tests": 200,
        },
    ),
    *_raises(
        "a release is one command, checked with numpy alone and in all versions that are accepted",
        "installing from a checkout, one version of Python, and lower bounds that nobody had tried",
        {"tests": 350},
    ),
    *_raises(
        "hot clusters of an index in a file or in memory lie in a faster memory",
        "indexes that had to fit into memory, and lists that were read alike",
        {"rag_accel/engines/retrieval": 1_450, "rag_accel/cli": 100, "bench": 200, "tests": 700},
    ),
    *_raises(
        "spans of requests go to the user's OpenTelemetry exporter, figures to his Prometheus",
        "a collector of figures that only the project's own server had",
        {
            "rag_accel/accelerator": 400,
            "rag_accel/profile": 200,
            "rag_accel/telemetry": 300,
            "tests": 500,
        },
    ),
    *_raises(
        "any engine runs in child processes, alone or in a list with others",
        "children of embedders alone, and hosting that only actors of Ray had",
        {"rag_accel/engines/replicas": 300, "tests": 250},
    ),
    *_raises(
        "a processor that slows an accelerator of its process takes no part",
        "a line of the docs that told users to measure it",
        {"rag_accel/engines/devices": 150, "tests": 100},
    ),
    *_raises(
        "editors and type checkers know the options of Accelerator and Server",
        "options that were any keyword of any type",
        {"rag_accel": 50},
    ),
    *_raises(
        "local models take tools",
        "refusals of tools",
        {
            "integrations/langchain_rag_accel": 200,
            "integrations/llama_index_rag_accel": 100,
            "rag_accel/adoption": 50,
            "rag_accel/engine_api": 50,
            "rag_accel/engines/llm": 250,
            "tests": 600,
        },
    ),
    *_raises(
        "new texts of a prompt are encoded behind each other, and used where any of them is",
        "states that only cache fill computed, and only kv_recipe read",
        {"rag_accel/engines/llm": 150, "integrations/vllm_rag_accel": 150},
    ),
    *_raises(
        "answers begin with what their search has found so far, where it is likely to be final",
        "handles for states of speculation that no engine ever gave",
        {
            "bench": 600,
            "rag_accel/passes": 50,
            "rag_accel/requests": 350,
            "rag_accel/scheduler": 200,
            "tests": 750,
        },
    ),
    *_raises(
        "searches of clustered indexes run in pieces, and later ones join between two of them",
        "the second face of each index, and its threads that wait for each other",
        {
            "bench": 300,
            "rag_accel/engines/retrieval": 550,
            "tests": 600,
        },
    ),
    *_raises(
        "long searches stop early by a rule that is learned from the user's own questions",
        "a number of clusters that users guess",
        {
            "bench": 150,
            "rag_accel/cli": 150,
            "rag_accel/engines/retrieval": 850,
            "tests": 950,
        },
    ),
    *_raises(
        "late requests and a staged server of coded lists are arms of the suite of workflows",
        "a setting that changes what a ratio means",
        {"bench": 150, "tests": 50},
    ),
    *_raises(
        "requests with a deadline go by the time left for their plan, and begin nothing too late",
        "a second record of what programs take, and a second constant of patience",
        {
            "adapters/rag_accel_adapters": 100,
            "rag_accel/engine_api": 50,
            "rag_accel/engines/http": 50,
            "rag_accel/scheduler": 350,
            "tests": 900,
        },
    ),
    *_raises(
        "calls that user code makes one after the other are answered together",
        "separate notes of prompts and answers by each kind of call",
        {
            "bench": 150,
            "rag_accel/adoption": 50,
            "rag_accel/leaves": 350,
            "rag_accel/scheduler": 50,
            "tests": 650,
        },
    ),
    *_raises(
        "rag-accel profile predicts from a plain run what acceleration brings a program",
        "trials of each option by hand, and calls that were counted but not timed",
        {
            "bench": 200,
            "rag_accel/cli": 300,
            "rag_accel/interception": 200,
            "rag_accel/profile": 300,
            "tests": 400,
        },
    ),
    *_raises(
        "servers get beginnings of prompts early, where they are named for it",
        "keys of whole messages by which prompts were placed",
        {"bench": 500, "rag_accel/engines/llm": 200, "tests": 500},
    ),
    *_raises(
        "passes that overlap one request's work are applied where they are expected to gain",
        "a list of passes that are off by default",
        {"rag_accel/passes": 100, "rag_accel/graph": 50, "tests": 450},
    ),
    *_raises(
        "a LangChain program is a graph that can be executed",
        "the option mode, and the translation with its runs and batches",
        {"rag_accel": 50, "rag_accel/graph": 100},
    ),
    *_raises(
        "programs of LlamaIndex and LangGraph are graphs that can be executed, drawn in explain()",
        "LangGraph's drawing as the source of depths, and a class for the calls of each framework",
        {"adapters/rag_accel_adapters": 600, "rag_accel/interception": 50, "tests": 900},
    ),
    *_raises(
        "equal calls of rerankers on servers are one, and wait for their turn",
        "two switches of endpoint limits, and a check of classes for each kind of endpoint",
        {"adapters/rag_accel_adapters": 200, "rag_accel/engines/http": 100, "tests": 400},
    ),
    *_raises(
        "beginnings of prompts behind user code are prefilled early, in idle time",
        "moves of primitives past user code, which split_prefill would need",
        {
            "rag_accel/passes": 100,
            "rag_accel/requests": 200,
            "rag_accel/scheduler": 300,
            "tests": 600,
        },
    ),
    *_raises(
        "a program's next prompt is begun while it searches, from its third run on",
        "a second client and counter of early beginnings",
        {
            "integrations/langchain_rag_accel": 100,
            "integrations/llama_index_rag_accel": 100,
            "rag_accel/accelerator": 200,
            "rag_accel/adoption": 50,
            "rag_accel/leaves": 500,
            "tests": 500,
        },
    ),
    *_raises(
        "calls of LangChain's composites run side by side in auto mode",
        "a check of LlamaIndex and two lists of obstacles, now one for both",
        {"adapters/rag_accel_adapters": 200, "rag_accel/adoption": 100},
    ),
    *_raises(
        "prepare() makes models ready before the first request",
        "warm-up requests in services, the demo and notebooks",
        {"rag_accel/accelerator": 200, "rag_accel/adoption": 100, "tests": 400},
    ),
    *_raises(
        "the demo ends in a verdict and a page, and charts show what notebooks measure",
        "the tables of the quick demo, times that notebooks hid, and the bars of bench --plots",
        {"demo/rag_accel_demo": 1_100, "bench": 100, "tests": 1_000},
    ),
    *_raises(
        "programs run on loops that raise for blocking calls, and int8 vectors tell their fidelity",
        "a reading of the cgroup for each accelerator and engine",
        {"rag_accel/system": 50, "tests": 200},
    ),
    *_raises(
        "hosted embeddings share calls under tracers and gateways, and say why they do not",
        "refusals of whatever a program sets, and functions of leaf_table",
        {"adapters/rag_accel_adapters": 300, "rag_accel/adoption": 400},
    ),
    *_raises(
        "embeddings of Ollama, TEI and LlamaIndex's Azure share calls and wait for their turn",
        "a call for each text of each caller",
        {"adapters/rag_accel_adapters": 400, "tests": 500},
    ),
    *_raises(
        "each part says why nothing acts on it, in explain(), coverage(), a warning and one line",
        "one sentence for every class without an engine, and the report of rag-accel run",
        {
            "integrations/langchain_rag_accel": 50,
            "integrations/llama_index_rag_accel": 50,
            "integrations/neo4j_graphrag_rag_accel": 50,
            "rag_accel/cli": 50,
            "rag_accel/interception": 300,
            "tests": 500,
        },
    ),
    *_raises(
        "calls wait for their turn at endpoints that refuse some, interactive before batch",
        "the retries of the openai client, and a bound for all programs that users guess",
        {
            "adapters/rag_accel_adapters": 200,
            "rag_accel/adoption": 100,
            "rag_accel/engines/http": 1_000,
            "rag_accel/leaves": 50,
            "tests": 1_600,
        },
    ),
    *_raises(
        "searches of remote stores that wait go together in one call",
        "searches of such stores one by one",
        {
            "adapters/rag_accel_adapters": 250,
            "rag_accel/engines": 50,
            "rag_accel/engines/retrieval": 200,
            "rag_accel/adoption": 200,
            "tests": 1_050,
        },
    ),
    *_raises(
        "searches of remote stores share calls only where that is measured to be faster",
        "calls that were shared wherever searches overlapped",
        {"rag_accel/adoption": 150, "tests": 350},
    ),
    *_raises(
        "every engine with threads is refused by name in a forked child",
        "three checks of engines that had one",
        {"rag_accel/engines": 50},
    ),
    *_raises(
        "clients of openai 2 and langgraph dev are tested in environments of their own",
        "one make target for each environment",
        {"tests": 600},
    ),
    *_raises(
        "suites of endpoints that refuse calls and of usual stacks, with a page of what acts",
        "two classes of scripted servers",
        {"bench": 1_400},
    ),
    *_raises(
        "a suite of stores on servers, whose servers tests start too",
        "the start of Chroma's server in its tests",
        {"bench": 450},
    ),
    *_raises(
        "equal hosted texts are asked for once, vectors are cached, lone callers wait for nobody",
        "a gathering wait of each call, and shared calls in the context of the first caller",
        {
            "rag_accel": 50,
            "rag_accel/adoption": 200,
            "rag_accel/engines/embedding": 450,
            "rag_accel/telemetry": 100,
            "tests": 800,
        },
    ),
    *_raises(
        "sampled calls of local models share steps",
        "calls that were left plain",
        {
            "adapters/rag_accel_adapters": 50,
            "rag_accel/adoption": 100,
            "rag_accel/engines/llm": 50,
            "tests": 600,
        },
    ),
    *_raises(
        "weights of 8 bits are measured against others', and sampled users against plain ones",
        "int8 weights that were compared with ours only, one class for one engine of others",
        {"bench": 400},
    ),
    *_raises(
        "an embedding model with int8 weights is checked against its own vectors",
        "measured costs of a local model's runners, whose room falls by more",
        {"rag_accel/fidelity": 200},
    ),
    *_raises(
        "texts and relation paths of one prompt are both reused",
        "two engines over one store, of texts and of paths, which one engine of spans is now",
        {"tests": 400},
    ),
    *_raises(
        "the programs of the guides run as printed, and the container's command serves",
        "lists of notebooks and pages in the README",
        {"tests": 300},
    ),
    *_raises(
        "rag-accel batch runs a program over the rows of a file and goes on where it stopped",
        "loops around programs, two displays of progress, and two searches for integrations",
        {
            "bench": 150,
            "integrations/llama_index_rag_accel": 100,
            "rag_accel/cli": 500,
            "rag_accel/interception": 50,
            "rag_accel/serving": 50,
            "tests": 700,
        },
    ),
)


def _room_of(file: Path) -> str:
    """Return the room of a source file: its folder, two levels deep where rooms hold rooms."""
    folders = file.relative_to(ROOT).parts[:-1]
    if folders[0] in ("tests", "bench"):
        return folders[0]
    deep = 3 if folders[:2] == ("rag_accel", "engines") else 2
    return "/".join(folders[:deep])


def _sources() -> Iterator[Path]:
    for top in ("rag_accel", "integrations", "adapters", "demo", "bench", "tests"):
        for folder, inner, names in os.walk(ROOT / top):
            inner[:] = [name for name in inner if name != "__pycache__"]
            yield from (Path(folder, name) for name in names if name.endswith(".py"))


@pytest.fixture(scope="module")
def sizes() -> Counter[str]:
    """Return the lines of each room."""
    lines: Counter[str] = Counter()
    for file in _sources():
        lines[_room_of(file)] += file.read_bytes().count(b"\n")
    return lines


def test_every_room_has_a_budget_and_every_budget_a_room(sizes: Counter[str]) -> None:
    assert set(sizes) == set(BUDGETS)


@pytest.mark.parametrize("room", BUDGETS)
def test_no_room_exceeds_its_budget(sizes: Counter[str], room: str) -> None:
    allowed = BUDGETS[room] + sum(entry.lines for entry in RAISES if entry.room == room)
    assert sizes[room] <= allowed, (
        f"{room} has {sizes[room]:,} lines of {allowed:,}: delete what the change replaces, "
        "or name the new mechanism in RAISES"
    )


@pytest.mark.parametrize("room", BUDGETS)
def test_a_deletion_lowers_the_budget(sizes: Counter[str], room: str) -> None:
    allowed = BUDGETS[room] + sum(entry.lines for entry in RAISES if entry.room == room)
    assert allowed - sizes[room] <= SLACK, (
        f"{room} has {sizes[room]:,} lines of {allowed:,}: "
        f"lower its budget to {-(-sizes[room] // 100) * 100}"
    )


def test_a_raise_names_its_room_its_mechanism_and_what_it_replaces() -> None:
    for entry in RAISES:
        assert entry.room in BUDGETS
        assert entry.lines > 0
        assert len(entry.mechanism.split()) > 2
        assert len(entry.replaces.split()) > 1
