"""``rag-accel cache fill --endpoint``: the states of a corpus, kept by a vLLM server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rag_accel.cli.corpus import read_corpus
from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engine_api import Message

#: Options that say how a model here computes; a server has its own.
_LOCAL = (
    "folder",
    "dtype",
    "chat_template",
    "neighbours",
    "neighbour_order",
    "neighbour_tokens",
    "embedder",
    "batch",
    "pool_bytes",
    "disk_bytes",
)
#: Options of the command that ``ServerFillOptions`` has by the same names.
_OPTIONS = ("model", "namespace", "concurrency")


def fill_endpoint(
    arguments: argparse.Namespace,
    prompt: Sequence[Message],
    progress: Callable[[int, int], None],
) -> int:
    """Have the server keep the states of texts, say what it did, and return the exit status.

    Raises:
        ConfigError: an option of the other way is given, the key is not in the environment, or as
            ``fill_server`` does.
    """
    from rag_accel.engines.llm.remote.filling import ServerFillOptions, fill_server

    refuse_unfit(arguments, "with --endpoint", _LOCAL)
    given = {name: getattr(arguments, name) for name in _OPTIONS}
    report = fill_server(
        arguments.endpoint,
        read_corpus(arguments.texts, metadata=arguments.metadata, strip=arguments.strip),
        prompt,
        options=ServerFillOptions(**{name: it for name, it in given.items() if it is not None}),
        api_key=_key(arguments.api_key_env),
        progress=progress,
    )
    computed = report.sent - report.found
    print(f"model {report.model}, behind a head of {report.head_tokens} tokens")
    print(f"{report.texts} texts, {report.left_out} left out (short or there twice)")
    print(f"{computed} states computed, {report.found} there already")
    if computed:
        each = report.seconds / computed * 1000
        print(f"{each:.1f} ms a state, {report.tokens} tokens in {report.seconds:.1f} s")
    return 0


def refuse_unfit(arguments: argparse.Namespace, where: str, names: Sequence[str]) -> None:
    """Refuse options of the other way of filling.

    Raises:
        ConfigError: one is given; names it.
    """
    given = [name for name in names if getattr(arguments, name) is not None]
    if given:
        flags = ["FOLDER" if name == "folder" else f"--{name.replace('_', '-')}" for name in given]
        raise ConfigError(
            "an option has no effect there",
            where=f"rag-accel cache fill, {where}",
            found=", ".join(flags),
        )


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(
            "there is no key in the environment",
            where="--api-key-env",
            found=variable,
            valid="the name of a variable that holds the server's key",
        )
    return key
