"""Measure what a program gets in company: among slow neighbours, failing members and edits.

- Quick questions to a graph in Neo4j beside two users that ask for a hub of 100,000 edges, each
  query limited to a second: through a ``BoltGraph``, and by the driver called from as many threads.
  Both must find the same. The server is that of ``NEO4J_URI``, or one started from ``NEO4J_HOME``;
  without one a row says ``missing`` and the ratio is left out.
- Eight callers of a ``MemoryGraph`` while it is edited five times a second from an event loop; what
  is added has to be merged several times meanwhile. What they find afterwards must be what a graph
  made anew gives.
- An embedder of two members, a server on a loopback port and a function: the server falls silent,
  or is down for a second.
- Clients of an embedder of two emulated devices, three times as many as it can answer within the
  limit; they come again when they were told to.

Ratios:
    hub_median: against the driver called from as many threads over the same data: ms of a quick
        question through us / by the driver (lower is better); median over questions.
    edits_5s: against the same callers without edits: questions a second beside five edits a second
        / without; once.
    add_ms: against a loop that has nothing else to do: ms for which ``MemoryGraph.add`` holds an
        event loop beside the callers (lower is better); p99 over edits.
    silent_over_slo: against a limit of a second for each query: seconds of the slowest query while
        the preferred member is silent / the limit (lower is better); maximum over queries.
    back_s: against a server that is up again: seconds until it is given a query, after it was down
        for a second (lower is better); once.
    admitted_in_limit: against three times too many clients: share of those admitted that are
        answered within 1.2 times the limit; over all answers.
    admitted_of_capacity: against the same members without a limit: answers a second under three
        times overload / theirs; once.
    one_user: against the driver called directly: time of one user's quick question through us / by
        the driver (lower is better; accepted: at most 1.03), with nobody at the hub; median
        over pairs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bench.answers import too_many
from bench.company.edits import edit_figures
from bench.company.hub import hub_times
from bench.company.members import back_s, silent_over_slo
from bench.company.overload import overload
from bench.graph.bolt_waves import bolt_server
from bench.neo4j_process import reason_without_server
from bench.paired import one_user
from bench.results import Row, SuiteResult, sizes_of

_logger = logging.getLogger("bench.company")

OURS = "rag_accel"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        triples: of the graph that is edited.
        callers: that ask it.
        edited_s: how long it is edited, in seconds.
        is_quick: fewer questions at the hub, fewer queries to members, shorter overload.
    """

    triples: int = 300_000
    callers: int = 8
    edited_s: float = 60.0
    is_quick: bool = False


QUICK = Sizes(is_quick=True)
FULL = Sizes(edited_s=300.0)

Found = tuple[list[Row], dict[str, float]]


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    rows, found = list[Row](), dict[str, float]()
    for part in (_hub, _edits, _members, _overload):
        more_rows, more = part(chosen)
        _logger.info("%s", more)
        rows += more_rows
        found |= more
    return SuiteResult(
        "company",
        tuple(rows),
        found,
        emulated=True,
        sizes=sizes_of(chosen),
        wrong=too_many(rows, "different_answers"),
    )


def _hub(sizes: Sizes) -> Found:
    workload = "quick questions beside two users at a hub, Neo4j"
    if reason := reason_without_server():
        _logger.warning("hub_median is left out: %s", reason)
        return [Row(OURS, workload, "missing", 1.0, None, 1)], {}
    with bolt_server() as server:
        seen = hub_times(server, sizes.is_quick)
    rows, alone = one_user({"a quick question, one user, Neo4j": seen.alone_ms})
    return rows, {"hub_median": seen.median, **alone}


def _edits(sizes: Sizes) -> Found:
    seen = edit_figures(sizes.triples, sizes.callers, sizes.edited_s)
    workload = f"{sizes.callers} callers, {sizes.triples} triples, 5 edits a second"
    rows = [
        Row(OURS, workload, "add_median_ms", seen.add_ms_median, None, 1),
        Row(OURS, workload, "merges", seen.merges, None, 1),
        Row(OURS, workload, "different_answers", seen.different_answers, None, 1),
    ]
    return rows, {"edits_5s": seen.edits_5s, "add_ms": seen.add_ms_p99}


def _members(sizes: Sizes) -> Found:
    return [], {
        "silent_over_slo": silent_over_slo(sizes.is_quick),
        "back_s": back_s(sizes.is_quick),
    }


def _overload(sizes: Sizes) -> Found:
    seen = overload(sizes.is_quick)
    workload = "three times too many clients, two emulated members"
    rows = [
        Row(OURS, workload, "worst_s", seen.worst_s, None, seen.answers),
        Row(OURS, workload, "refusals", seen.refusals, None, seen.refusals),
        Row(OURS, workload, "retry_after_s", seen.retry_after_s, None, seen.refusals),
    ]
    return rows, {
        "admitted_in_limit": seen.admitted_in_limit,
        "admitted_of_capacity": seen.admitted_of_capacity,
    }
