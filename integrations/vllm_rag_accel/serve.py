"""A server of vLLM's with reuse of texts: ``python -m vllm_rag_accel.serve MODEL --kv-folder DIR``.

It takes every option of vLLM's OpenAI-compatible server and adds those that reuse needs.
"""

from __future__ import annotations

import json
import runpy
import sys
import warnings
from collections.abc import Sequence

from vllm_rag_accel.worker import PATH

_USAGE = "usage: python -m vllm_rag_accel.serve MODEL --kv-folder DIR [options of vLLM's server]"


def server_arguments(given: Sequence[str]) -> list[str]:
    """Return the arguments of vLLM's own server for those of this one.

    An option that is given stays as it is; what reuse needs and is not given is added.

    Raises:
        SystemExit: no folder is named, or there is no model.
    """
    arguments: list[str] = []
    folder: str | None = None
    rest = iter(given)
    for argument in rest:
        if argument == "--kv-folder":
            folder = next(rest, None)
        elif argument.startswith("--kv-folder="):
            folder = argument.partition("=")[2]
        else:
            arguments.append(argument)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]
    names = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    if "--kv-transfer-config" in names and folder is not None:
        raise SystemExit(f"{_USAGE}\n--kv-folder is part of --kv-transfer-config: name one")
    if "--kv-transfer-config" not in names:
        if not folder:
            raise SystemExit(
                f"{_USAGE}\n--kv-folder is missing: where the states of texts are kept"
            )
        arguments += ["--kv-transfer-config", json.dumps(transfer_config(folder))]
    added = {"--worker-cls": [PATH], "--enable-prompt-tokens-details": []}
    for name, values in added.items():
        if name not in names:
            arguments += [name, *values]
    return arguments


def transfer_config(folder: str) -> dict[str, object]:
    """Return the value of ``--kv-transfer-config``."""
    return {
        "kv_connector": "RagAccelConnector",
        "kv_connector_module_path": "vllm_rag_accel.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"folder": folder},
    }


def main() -> None:
    """Run the server until it is stopped."""
    arguments = server_arguments(sys.argv[1:])
    sys.argv = [sys.argv[0], *arguments]
    warnings.filterwarnings("ignore", "The `python -m vllm", DeprecationWarning)
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
