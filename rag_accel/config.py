"""Every option in one frozen object: argument > ``RAG_ACCEL_*`` variable > default.

Each field is one option; its unit stands in its name and its range in its metadata. Unknown names
are errors, and ``origins()`` says where each effective value came from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, Literal, TypedDict, Unpack, get_args, get_origin, get_type_hints

from rag_accel.errors import ConfigError

ENV_PREFIX = "RAG_ACCEL_"
MASTER_SWITCH = "RAG_ACCEL"
#: no option: whether an accelerated process prints what acts in it
SUMMARY = "RAG_ACCEL_SUMMARY"

_SWITCH_KEY = os.fsencode(MASTER_SWITCH)
#: what os.environ looks into; without it, os.environ itself
_is_in_environment = getattr(
    getattr(os.environ, "_data", None), "__contains__", lambda key: MASTER_SWITCH in os.environ
)

OnFull = Literal["wait", "raise"]
AdoptLLM = Literal["exact", "batched", "off"]
EmbeddingRuntime = Literal["auto", "torch", "bf16", "int8"]
KvReuse = Literal["exact", "fused", "full", "dependency", "fused+dependency", "full+dependency"]
Telemetry = Literal["off", "spans", "spans+steps"]
Origin = Literal["argument", "environment", "default"]

#: options that there were, with what to use instead
REMOVED_OPTIONS = {
    "mode": "leave it out: accelerate() intercepts any program; rag_accel.plan_of(program) makes a "
    "graph of a LangChain program, for Accelerator.run",
}

_SWITCH = {
    **dict.fromkeys(("1", "true", "on", "yes"), True),
    **dict.fromkeys(("0", "false", "off", "no"), False),
}


def _option(default: Any, doc: str, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


class OptionArguments(TypedDict, total=False):
    """The options of ``Options`` as keyword arguments."""

    strict: bool
    on_full: OnFull
    max_requests: int
    max_batch: int
    batch_wait_ms: float
    deadline_s: float | None
    step_timeout_s: float
    shutdown_s: float
    threads: int | None
    call_threads: int
    offload_blocking: bool
    parallel_calls: bool
    thread_safe_classes: tuple[str, ...]
    single_flight: bool
    max_loops: int
    passes: str
    use_skeleton: bool
    namespace: str
    reproducible: bool
    embedding_runtime: EmbeddingRuntime
    endpoint_limits: bool
    hosted_cache_mb: float
    hosted_cache_s: float
    embedding_slo_s: float | None
    member_tolerance: float | None
    adopt_llm: AdoptLLM | Literal[False]
    kv_reuse: KvReuse
    kv_folder: str | None
    trace_events: int
    telemetry: Telemetry


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one accelerator and of everything accelerated through it."""

    strict: bool = _option(
        False,
        "raise internal errors instead of running the call without acceleration; for tests",
    )
    on_full: OnFull = _option(  # noqa: RUF009 - a dataclass field, never shared
        "wait",
        "what a drop-in does when `max_requests` are live: `wait` in the caller's own thread "
        "or task, or `raise` BusyError; `raise` also refuses a new request whose texts an "
        "embedder of several members would end later than `embedding_slo_s`",
    )
    max_requests: int = _option(
        4096,
        "requests that may be live at once",
        1,
        1_000_000,
    )
    max_batch: int = _option(
        64,
        "items one of our engines that computes here may take into one step; a model on a "
        "device or server of its own takes what that takes",
        1,
        65_536,
    )
    batch_wait_ms: float = _option(
        3.0,
        "upper bound on an idle engine's wait for a newcomer that is known to come; 5 % of "
        "the step is another",
        0.0,
        1000.0,
    )
    deadline_s: float | None = _option(
        None,
        "deadline of a request that names none",
        0.0,
    )
    step_timeout_s: float = _option(
        120.0,
        "a step longer than this marks its engine lost; a call of our HTTP engine may take "
        "longer: `RemoteOptions` bounds each silence (`read_timeout_s`, 120) and the whole "
        "call with its attempts (`total_timeout_s`, 1800)",
        0.01,
    )
    shutdown_s: float = _option(
        5.0,
        "how long closing waits for running steps",
        0.0,
        600.0,
    )
    threads: int | None = _option(
        None,
        "cores a step of our engines may use; by default the affinity mask, cut to the "
        "container's quota",
        1,
        4096,
    )
    call_threads: int = _option(
        64,
        "threads for sync-only calls of async callers",
        1,
        4096,
    )
    offload_blocking: bool = _option(
        True,
        "make blocking calls of LlamaIndex's async methods in such threads, where all that is "
        "called is known to be thread-safe",
    )
    parallel_calls: bool = _option(
        True,
        "run calls that do not need each other at the same time, where all that is called is "
        "known to be thread-safe",
    )
    thread_safe_classes: tuple[str, ...] = _option(
        (),
        "your classes whose objects may be called from several threads at once, and functions "
        "like that, as `package.module.Class`, joined by commas in the environment; needed by "
        "`offload_blocking` and `parallel_calls`",
    )
    single_flight: bool = _option(
        True,
        "share one run among equal concurrent calls of an owned engine, or of a server",
    )
    max_loops: int = _option(
        64,
        "times a loop of a RAGraph may turn",
        1,
        1_000_000,
    )
    passes: str = _option(
        "default",
        "passes over a `RAGraph` and its queued work: `default` (all, but `decompose_stages`, "
        "`pipeline_decoding` and `rerank_by_source` only for a request that comes while no other "
        "lives, and where their estimates say that they save time), `all`, `none`, or names "
        "joined by commas",
    )
    use_skeleton: bool = _option(
        True,
        "start the calls of a compiled LangGraph's nodes by how far they are from its end",
    )
    namespace: str = _option(
        "",
        "tenant; results are never shared with another's",
    )
    reproducible: bool = _option(
        False,
        "compute so that floats repeat bit by bit whatever else is computed",
    )
    embedding_runtime: EmbeddingRuntime = _option(  # noqa: RUF009 - a dataclass field, never shared
        "auto",
        "what runs recognised models on the CPU: `auto` compiles them where OpenVINO is "
        "installed, `torch` never does; `bf16` and `int8` compile them with fewer bits: "
        "vectors are near, not the same, and `explain()` names the smallest cosine; `int8` finds "
        "other texts, as an `ApproximateVectorsWarning` says",
    )
    endpoint_limits: bool = _option(
        True,
        "let calls to an endpoint wait for their turn once it refuses some (HTTP 429, 503,"
        " timeouts), as many in flight as it bears, interactive programs before batches; before its"
        " first refusal nothing waits",
    )
    hosted_cache_mb: float = _option(
        64.0,
        "most memory, in MiB, for vectors of embeddings on servers, cached by text, model, endpoint"
        " and key; 0 caches none",
        0.0,
        65_536.0,
    )
    hosted_cache_s: float = _option(
        300.0,
        "how long such a vector is used; a model that changes behind its name without telling is "
        "noticed after that time at the latest",
        0.0,
        86_400.0,
    )
    embedding_slo_s: float | None = _option(
        None,
        "latency target of an embedding call on an embedder of several members; a request's own "
        "deadline takes precedence. With neither, each text goes to the member that finishes it "
        "first",
        0.001,
    )
    member_tolerance: float | None = _option(
        None,
        "how far a vector of a member of such an embedder may be from the first member's, in any "
        "component, for texts tried at the beginning; such a member also needs a cosine of 0.9999 "
        "and the same five nearest in the same order, and `explain()` tells how near it is. Within "
        "1e-6 members join without it",
        0.0,
        1.0,
    )
    adopt_llm: AdoptLLM = _option(  # noqa: RUF009 - a dataclass field, never shared
        "exact",
        "which of the program's Hugging Face language models share steps here: `exact` those in "
        "float32, whose greedy texts stay the same; `batched` those in bfloat16 too, whose texts "
        "then depend on the batch, as they do with a `kv_reuse` other than `exact`, and sampled "
        "calls, each drawn from a seed of torch's generator; `off`, or False, none",
    )
    kv_reuse: KvReuse = _option(  # noqa: RUF009 - a dataclass field, never shared
        "exact",
        "how local language models compute the retrieved chunks of their prompts: `exact` in each "
        "prompt; `full` splices in the KV cache of an earlier prompt, which is approximate; "
        "`fused` recomputes a share of the tokens, approximate, too; `dependency` computes the "
        "relation paths of a prompt as a tree, each token seeing its own path; `fused+dependency` "
        "and `full+dependency` do both in one prompt. It applies to the "
        "program's own Hugging Face models as well, `full` and `fused` also to its models on vLLM "
        "servers; a `LocalLLM` or a component that names it takes precedence",
    )
    kv_folder: str | None = _option(
        None,
        "where local language models that reuse chunks or relation paths keep their KV caches "
        "between processes of one user; without it, in memory only",
    )
    trace_events: int = _option(
        8192,
        "trace entries kept in memory; a borrowed call that did not wait is one",
        0,
        10_000_000,
    )
    telemetry: Telemetry = _option(  # noqa: RUF009 - a dataclass field, never shared
        "off",
        "spans of requests, their stages and calls through the process's OpenTelemetry tracer "
        "provider: `spans`, or `spans+steps` with one of each step of our engines; never a text",
    )

    def __post_init__(self) -> None:
        if self.adopt_llm is False:
            object.__setattr__(self, "adopt_llm", "off")
        hints = _hints()
        for spec in fields(self):
            _check(spec.name, getattr(self, spec.name), hints[spec.name], spec.metadata)

    @classmethod
    def load(
        cls, environ: Mapping[str, str] | None = None, **arguments: Unpack[OptionArguments]
    ) -> Options:
        """Merge arguments over environment variables over defaults.

        Raises:
            ConfigError: on an unknown name or a value outside its range.
        """
        hints = _hints()
        _reject_unknown(arguments, hints)
        read = _from_environment(os.environ if environ is None else environ, hints)
        return cls(**{**dict(read), **arguments})

    def merged(self, **arguments: Unpack[OptionArguments]) -> Options:
        """Return a copy with some options replaced; unknown names raise ConfigError."""
        _reject_unknown(arguments, _hints())
        return replace(self, **arguments)

    def origins(self, environ: Mapping[str, str] | None = None) -> dict[str, Origin]:
        """Say where each value came from: an argument, the environment or the default."""
        source = os.environ if environ is None else environ
        from_env = dict(_from_environment(source, _hints()))
        result: dict[str, Origin] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name in from_env:
                # A default cannot have overridden a variable: only an argument can.
                same = from_env[spec.name] == value
                result[spec.name] = "environment" if same else "argument"
            else:
                result[spec.name] = "default" if value == spec.default else "argument"
        return result


@cache
def _hints() -> dict[str, Any]:
    """Return the type of each option; resolving them is most of the cost of making an Options."""
    return get_type_hints(Options)


def is_enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether accelerated objects may use the scheduler: ``RAG_ACCEL=0`` turns all off."""
    if environ is None:
        # Asked by every call: a look-up that fails takes 1.5 us in os.environ, this one 0.1.
        if not _is_in_environment(_SWITCH_KEY):
            return True
        environ = os.environ
    return _is_on(environ, MASTER_SWITCH)


def is_summary_on() -> bool:
    """Tell whether an accelerated process prints what acts in it: not with its variable at 0."""
    return _is_on(os.environ, SUMMARY)


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "1").strip().lower() not in ("0", "off", "false", "no")


#: tells, faster than ``is_enabled`` and without a frame, whether the switch is set to anything
is_switch_set: Callable[[], bool] = partial(_is_in_environment, _SWITCH_KEY)


def _reject_unknown(arguments: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ConfigError(
            "unknown option",
            where=", ".join(unknown),
            valid=", ".join(sorted(known)),
            hint=REMOVED_OPTIONS.get(unknown[0], "check the spelling"),
        )


def _from_environment(
    environ: Mapping[str, str], hints: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key in sorted(environ):
        if not key.startswith(ENV_PREFIX) or key == SUMMARY:
            continue
        name = key[len(ENV_PREFIX) :].lower()
        if name not in hints:
            known = ", ".join(ENV_PREFIX + option.upper() for option in sorted(hints))
            raise ConfigError(
                "unknown option in the environment", where=key, valid=known, hint="unset it"
            )
        found.append((name, _parse(key, environ[key], hints[name])))
    return found


def _parse(key: str, text: str, hint: Any) -> Any:
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if text.strip().lower() in ("", "none") and type(None) in get_args(hint):
        return None
    if get_origin(hint) is tuple:
        return tuple(name.strip() for name in text.split(",") if name.strip())
    if isinstance(kinds[0], str) or kinds[0] is str:
        return text
    try:
        return _SWITCH[text.strip().lower()] if kinds[0] is bool else kinds[0](text)
    except (KeyError, ValueError):
        valid = ", ".join(_SWITCH) if kinds[0] is bool else kinds[0].__name__
        raise ConfigError("bad option value", where=key, found=repr(text), valid=valid) from None


def _check(name: str, value: Any, hint: Any, meta: Mapping[str, Any]) -> None:
    if get_origin(hint) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(
                "bad option value", where=name, found=repr(value), valid="a tuple of strings"
            )
        return
    choices = get_args(hint)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise ConfigError(
                "bad option value", where=name, found=repr(value), valid=" | ".join(choices)
            )
        return
    if value is None and type(None) in choices:
        return
    kind = next((k for k in choices if k is not type(None)), hint)
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError("bad option value", where=name, found=repr(value), valid=kind.__name__)
    low, high = meta.get("low"), meta.get("high")
    too_low = low is not None and value < low
    too_high = high is not None and value > high
    if too_low or too_high or value != value:
        bounds = f"from {low}" + (f" to {high}" if high is not None else "")
        raise ConfigError("option out of range", where=name, found=repr(value), valid=bounds)
