"""The part of ``rag-accel doctor`` on what computes local language models here."""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING, Any

from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engines.llm.local.paged.topology import KeptTrace

_LIBRARIES = ("torch", "transformers")
_ID_LETTERS = 12


def examine_local_models() -> dict[str, Any]:
    """Return what can compute local language models, as plain JSON values; compiles nothing.

    ``missing`` names the libraries without which there is no such model, and then nothing follows.
    ``operator_inputs`` is the number of inputs that OpenVINO's paged attention takes, None where it
    cannot be used, for the reason ``refused``. ``traces`` are those kept in ``folder``, or the
    reason why they were refused; None where they cannot be read, for the reason ``unreadable``.
    """
    missing = [name for name in _LIBRARIES if util.find_spec(name) is None]
    if missing:
        return {"missing": missing}
    from rag_accel.engines.llm.local.paged.topology import kept_folder, kept_traces

    found: dict[str, Any] = {"missing": [], **_operator(), "folder": str(kept_folder())}
    try:
        return {**found, "traces": [_trace(trace) for trace in kept_traces()]}
    except (OSError, ConfigError) as error:
        return {**found, "traces": None, "unreadable": str(error)}


def format_local_models(found: dict[str, Any]) -> str:
    """Return what was found as text."""
    lines = ["local language models:"]
    if found["missing"]:
        return "\n".join([*lines, _line("runner", f"none: missing {', '.join(found['missing'])}")])
    lines.append(_line("torch", "runs all models that are supported"))
    lines.append(_line("paged attention", _said_of_operator(found)))
    if found["traces"] is None:
        return "\n".join([*lines, _line("kept traces", found["unreadable"])])
    size = sum(trace["size_bytes"] for trace in found["traces"])
    refused = sum(trace["refused"] is not None for trace in found["traces"])
    kept = len(found["traces"]) - refused
    said = f"{kept} of models, {refused} refused, {size / 2**20:.1f} MiB in {found['folder']}"
    lines.append(_line("kept traces", said))
    for trace in found["traces"]:
        if trace["refused"] is not None:
            told = f"refused: {trace['refused']} (rag-accel cache purge --traces forgets it)"
            lines.append(_line(f"  {trace['id']}", told))
    return "\n".join(lines)


def _line(name: str, said: str) -> str:
    return f"  {name:<24}{said}"


def _said_of_operator(found: dict[str, Any]) -> str:
    if found["operator_inputs"] is None:
        return f"not to be had: {found['refused']}"
    return f"of OpenVINO {found['openvino']}, with {found['operator_inputs']} inputs as expected"


def _operator() -> dict[str, Any]:
    if util.find_spec("openvino") is None:
        reason = "OpenVINO is not installed: pip install 'rag-accel[fast]'"
        return {"openvino": None, "operator_inputs": None, "refused": reason}
    try:
        from rag_accel.engines.compiled.compiled_forms import openvino
        from rag_accel.engines.llm.local.paged.graph import count_operator_inputs

        version = str(openvino().__version__)  # first, without its telemetry
    except Exception as error:  # of libraries that do not load, in any way
        reason = f"OpenVINO cannot be imported: {error}"
        return {"openvino": None, "operator_inputs": None, "refused": reason}
    try:
        inputs = count_operator_inputs()
    except Exception as error:  # of native code, in any way
        return {"openvino": version, "operator_inputs": None, "refused": str(error)}
    return {"openvino": version, "operator_inputs": inputs, "refused": None}


def _trace(trace: KeptTrace) -> dict[str, Any]:
    return {
        "id": trace.path.stem[:_ID_LETTERS],
        "size_bytes": trace.size_bytes,
        "unused_s": round(trace.unused_s),
        "refused": trace.refused,
    }
