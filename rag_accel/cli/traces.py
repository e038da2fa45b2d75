"""``rag-accel cache traces``: the language models that were traced for OpenVINO."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.paged.topology import KeptTrace

_DAY_S = 86400


def add_traces_verb(verbs: Any) -> None:
    """Add the verb to those of ``cache``."""
    traces = verbs.add_parser(
        "traces", help="show the models traced for OpenVINO's paged attention, or forget them"
    )
    traces.add_argument("--purge", action="store_true", help="remove them; they are made again")
    traces.set_defaults(run=_traces)


def _traces(arguments: argparse.Namespace) -> int:
    # It needs torch, which other commands do without.
    from rag_accel.engines.llm.local.paged.topology import kept_traces, remove_traces

    try:
        if arguments.purge:
            print(f"{remove_traces()} traced models removed")
            return 0
        found = kept_traces()
    except OSError as error:
        raise ConfigError("the traced models cannot be read", found=str(error)) from error
    for trace in found:
        print(_line(trace))
    size = sum(trace.size_bytes for trace in found)
    print(f"{len(found)} traced models, {size / 2**20:.1f} MiB")
    return 0


def _line(trace: KeptTrace) -> str:
    what = f"{trace.size_bytes / 2**20:.1f} MiB"
    if trace.refused is not None:
        what = f"refused: {trace.refused}"
    return f"{trace.path.stem[:12]}  {what}, unused for {trace.unused_s / _DAY_S:.1f} days"
