"""Files kept of models without a folder of the user's: int8 weights and traces; listed, purged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rag_accel.errors import ConfigError

_DAY_S = 86400


def list_models(*, as_json: bool) -> int:
    """Print int8 weights, then models traced for OpenVINO, the least recently used first.

    Raises:
        ConfigError: the traced models cannot be read.
    """
    for kind, found in (("models with int8 weights", _weights()), ("traced models", _traces())):
        for said in found:
            print(json.dumps(said) if as_json else _line(said))
        if not as_json:
            print(f"{len(found)} {kind}, {sum(said['bytes'] for said in found) / 2**20:.1f} MiB")
    return 0


def purge_int8_weights(model: str | None) -> None:
    """Remove the int8 weights of a model by its name, or all."""
    from rag_accel.engines.llm.local.paged.int8_weights import purge_weights

    print(f"{purge_weights(model)} files removed")


def purge_traces() -> None:
    """Remove the traced models, with what was refused; they are made again.

    Raises:
        ConfigError: they cannot be read.
    """
    from rag_accel.engines.llm.local.paged.topology import remove_traces

    with _traces_readable():
        print(f"{remove_traces()} traced models removed")


def _weights() -> list[dict[str, Any]]:
    # It needs torch, which other commands do without.
    from rag_accel.engines.llm.local.paged.int8_weights import list_weights

    return [
        {
            "kind": "int8",
            "name": kept.path.stem,
            "model": kept.model,
            "bytes": kept.size,
            "unused_s": round(max(0.0, time.time() - kept.used)),
        }
        for kept in list_weights()
    ]


def _traces() -> list[dict[str, Any]]:
    from rag_accel.engines.llm.local.paged.topology import kept_traces

    with _traces_readable():
        found = kept_traces()
    return [
        {
            "kind": "trace",
            "name": kept.path.stem,
            "refused": kept.refused,
            "bytes": kept.size_bytes,
            "unused_s": round(kept.unused_s),
        }
        for kept in reversed(found)
    ]


@contextmanager
def _traces_readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError("the traced models cannot be read", found=str(error)) from error


def _line(said: dict[str, Any]) -> str:
    size = f"{said['bytes'] / 2**20:.1f} MiB"
    if said["kind"] == "int8":
        model = "unreadable" if said["model"] is None else said["model"]
        what = f"{size}, int8, model {model}"
    else:
        what = f"{size}, trace" if said["refused"] is None else f"refused: {said['refused']}"
    return f"{said['name'][:12]}  {what}, unused for {said['unused_s'] / _DAY_S:.1f} days"
