"""A server of vLLM's with reuse of texts: ``python -m vllm_rag_accel.serve MODEL --kv-folder DIR``.

It takes every option of vLLM's OpenAI-compatible server and adds those that reuse needs.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from rag_accel.errors import ServedRequestError
from rag_accel.kv.reuse_request import ReuseRequestError, read_reuse_request, salt_refusal
from rag_accel.system.parents import end_with
from vllm_rag_accel.worker import PATH

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_USAGE = "python -m vllm_rag_accel.serve MODEL --kv-folder DIR [options of vLLM's server]"
#: Seconds that vLLM is given to end its processes once its parent has gone.
_GRACE_S = 10.0


def server_arguments(given: Sequence[str]) -> list[str]:
    """Return the arguments of vLLM's own server for those of this one.

    An option that is given stays as it is; what reuse needs and is not given is added.

    Raises:
        SystemExit: no folder is named, or there is no model.
    """
    own, arguments = _own_options().parse_known_args(given)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]
    names = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    added: dict[str, list[str]] = {"--enable-prompt-tokens-details": []}
    if not own.no_kv_folder:
        added["--worker-cls"] = [PATH]
        if "--kv-transfer-config" not in names:
            if not own.kv_folder:
                raise SystemExit(
                    f"usage: {_USAGE}\n--kv-folder is missing: where the states of texts are kept"
                )
            bounds = {"memory_bytes": own.kv_memory_bytes, "disk_bytes": own.kv_disk_bytes}
            bounds["max_age_s"] = own.kv_max_age_s
            added["--kv-transfer-config"] = [json.dumps(transfer_config(own.kv_folder, **bounds))]
        elif own.kv_folder is not None:
            raise SystemExit(
                f"usage: {_USAGE}\n--kv-folder is part of --kv-transfer-config: name one"
            )
    for name, values in added.items():
        if name not in names:
            arguments += [name, *values]
    # One option for each middleware: those that are given stay.
    return [*arguments, "--middleware", f"vllm_rag_accel.serve.{SaltCheck.__name__}"]


def _own_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(usage=_USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("--kv-folder", nargs="?")
    parser.add_argument("--kv-memory-bytes", type=int)
    parser.add_argument("--kv-disk-bytes", type=int)
    parser.add_argument("--kv-max-age-s", type=float)
    parser.add_argument("--no-kv-folder", action="store_true")
    parser.add_argument("--parent", type=int)
    return parser


def choose_runner(environment: MutableMapping[str, str]) -> None:
    """Choose the model runner that computes texts, unless the environment names one; say so."""
    if _RUNNER not in environment:
        environment[_RUNNER] = "0"
        message = f"rag_accel: {_RUNNER}=0, as model runner V2 computes no texts of its own"
        print(message, file=sys.stderr)


def transfer_config(folder: str, **bounds: float | None) -> dict[str, object]:
    """Return the value of ``--kv-transfer-config``.

    Args:
        folder: where files are kept.
        bounds: further options of the connector; None for its default.
    """
    given = {name: value for name, value in bounds.items() if value is not None}
    return {
        "kv_connector": "RagAccelConnector",
        "kv_connector_module_path": "vllm_rag_accel.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"folder": folder, **given},
    }


class SaltCheck:
    """Middleware that answers a request under a ``cache_salt`` that is not its own with 400.

    A request that passes it, such as one of another server command, is refused by the connector
    and computed as a whole.

    Args:
        app: reads the body, once it has let the client in.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Any
    ) -> None:
        parts: list[bytes] = []

        async def checked() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    _check_salt(b"".join(parts))
                    parts.clear()
            return message

        await self._app(scope, checked, send)


def _check_salt(body: bytes) -> None:
    """Raise an answer of 400 where a body's request may not be computed under its salt."""
    if b"cache_salt" not in body and b"kv_transfer_params" not in body:
        return
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):  # the server says so itself
        return
    if not isinstance(values, dict):
        return
    salt, params = (values.get(name) for name in ("cache_salt", "kv_transfer_params"))
    try:
        wanted = read_reuse_request(params)
    except ReuseRequestError:  # the connector says so in the answer
        wanted = None
    refused = salt_refusal(wanted, salt)
    if refused is not None:
        from fastapi import HTTPException  # of which the server makes its own form of errors

        own = None if wanted is None else wanted.salt()
        error = ServedRequestError(
            refused,
            where="cache_salt",
            found=f"{salt!r:.100}",
            valid="one that is not of the form 'rag-accel ...'" if own is None else repr(own),
            hint="send both fields of ReuseRequest.fields()",
        )
        raise HTTPException(error.status, str(error))


def main() -> None:
    """Run the server until it is stopped, or the process of ``--parent`` has ended."""
    arguments = server_arguments(sys.argv[1:])
    parent = _own_options().parse_known_args(sys.argv[1:])[0].parent
    if parent is not None:
        end_with(parent, _end_group)
    choose_runner(os.environ)
    sys.argv = [sys.argv[0], *arguments]
    warnings.filterwarnings("ignore", "The `python -m vllm", DeprecationWarning)
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


def _end_group() -> None:
    """End the server, and by force whatever of its process group is left: it leads its own."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
