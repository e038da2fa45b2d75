"""Calls of ``generate`` of transformers that ask for greedy decoding or for sampling."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from rag_accel.adoption.generation import GenerateCall, TokenStream

#: Returns the tokens at which a stopping criterion ends; None for one that is not known.
StopTokens = Callable[[Any], frozenset[int] | None]

#: Settings that do nothing in greedy decoding, or that are read here. ``_sampling`` names others.
_READ = frozenset(
    {
        "_from_model_config",
        "assistant_confidence_threshold",
        "assistant_lookbehind",
        "bos_token_id",
        "disable_compile",
        "do_sample",
        "early_stopping",
        "eos_token_id",
        "epsilon_cutoff",
        "eta_cutoff",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_p",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "pad_token_id",
        "repetition_penalty",
        "target_lookbehind",
        "temperature",
        "top_h",
        "top_k",
        "top_p",
        "transformers_version",
        "typical_p",
    }
)
#: Arguments of ``generate`` beside settings.
_ARGUMENTS = frozenset(
    {"attention_mask", "generation_config", "input_ids", "stopping_criteria", "streamer"}
)
#: Methods that a call passes; one that was replaced may do anything.
_PASSED = (
    "generate",
    "prepare_inputs_for_generation",
    "_prepare_generation_config",
    "_prepare_generated_length",
    "_get_logits_processor",
    "_get_stopping_criteria",
    "_sample",
    "_update_model_kwargs_for_generation",
)


def read_call(
    stop_tokens: StopTokens, model: Any, kwargs: Mapping[str, Any]
) -> GenerateCall | None:
    """Return what a call of a model's ``generate`` asks for; None if that is anything else.

    Args:
        stop_tokens: reads the framework's stopping criteria.
        model: of transformers.
        kwargs: of the call.
    """
    try:
        return _read(stop_tokens, model, kwargs)
    except Exception:  # what cannot be read is the model's own to refuse
        return None


def _read(stop_tokens: StopTokens, model: Any, kwargs: Mapping[str, Any]) -> GenerateCall | None:
    if not _is_as_shipped(model) or _casts(model):
        return None
    settings = _settings(model, kwargs)
    stops = _stops(stop_tokens, kwargs.get("stopping_criteria"))
    ids = kwargs.get("input_ids")
    if settings is None or stops is None or ids is None or ids.device != model.device:
        return None
    sampling = _sampling(settings)
    prompts = _prompts(ids, kwargs.get("attention_mask"), settings.pad_token_id)
    most = _most(model, settings, kwargs, ids.shape[1])
    ends = _numbers(settings.eos_token_id)
    streamer = kwargs.get("streamer")
    is_one = len(prompts or ()) == 1  # only then do criteria look at each, and streamers work
    if (
        prompts is None
        or sampling is None
        or most < 1
        or not (is_one or (not stops and streamer is None))
    ):
        return None
    pad = settings.pad_token_id
    filler = pad if pad is not None else next(iter(ends), 0)
    return GenerateCall(
        prompts,
        most,
        frozenset(ends) | stops,
        partial(_with_prompts, ids, filler),
        None if streamer is None else _streamed(streamer, ids),
        partial(_plain, model, kwargs, most),
        sampling,
    )


def _plain(model: Any, kwargs: Mapping[str, Any], most: int, tokens: Sequence[int]) -> Any:
    """Make a call; behind tokens that its streamer was given, as many as are left of ``most``."""
    if not tokens:
        return model.generate(**kwargs)
    import torch

    ids, mask = kwargs["input_ids"], kwargs.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    given = torch.tensor([list(tokens)], dtype=ids.dtype, device=ids.device)
    kept = {name: value for name, value in kwargs.items() if name != "max_length"}
    behind = {
        "input_ids": torch.cat([ids, given], dim=1),
        "attention_mask": torch.cat([mask, torch.ones_like(given, dtype=mask.dtype)], dim=1),
        "max_new_tokens": most - len(tokens),
        "streamer": _Rest(kwargs["streamer"]),
    }
    return model.generate(**{**kept, **behind})


def _is_as_shipped(model: Any) -> bool:
    """Tell whether a model generates by its library's own code."""
    own = vars(model)
    return all(
        name not in own and _is_librarys(getattr(type(model), name, None)) for name in _PASSED
    )


def _is_librarys(function: Any) -> bool:
    """Tell whether a function is transformers' own, in decorators of torch's or its own alone."""
    homes = tuple(map(_home, ("torch", "transformers")))
    while type(function) is FunctionType and function.__code__.co_filename.startswith(homes):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            return function.__code__.co_filename.startswith(homes[1])
        function = inner
    return False


def _home(library: str) -> str:
    return os.path.dirname(sys.modules[library].__file__ or "") + os.sep


def _casts(model: Any) -> bool:
    import torch

    return torch.is_autocast_enabled(model.device.type)


def _settings(model: Any, kwargs: Mapping[str, Any]) -> Any | None:
    """Return the settings that count for a call; None if one of them asks for something else."""
    from transformers import GenerationConfig

    given = kwargs.get("generation_config")
    others = {name: value for name, value in kwargs.items() if name not in _ARGUMENTS}
    settings, unknown = model._prepare_generation_config(given, **others)
    if unknown:
        return None
    usual = GenerationConfig()
    usual = {**vars(usual), **usual._get_default_generation_params()}
    for name, value in vars(settings).items():
        default = usual.get(name)
        is_usual = value is None or value == default or (value is False and default is None)
        if not is_usual and name not in _READ and not _is_internal(name):
            return None
    return settings


def _sampling(settings: Any) -> dict[str, Any] | None:
    """Return the options of the choice of tokens; None if an engine's sampler lacks one of them.

    Numbers that transformers refuses, such as a whole one as a temperature, are its to refuse.
    """
    penalty = settings.repetition_penalty
    found = {} if penalty in (None, 1.0) else {"repetition_penalty": penalty}
    floats = list(found.values())
    if settings.do_sample:
        temperature = 1.0 if settings.temperature is None else settings.temperature
        floats.append(temperature)
        found["temperature"] = temperature
        found.update((name, getattr(settings, name)) for name in ("top_p", "top_k", "min_p"))
        if temperature <= 0 or settings.top_h is not None or _cuts(settings):
            return None
    return found if all(type(number) is float for number in floats) else None


def _cuts(settings: Any) -> bool:
    """Tell whether sampling leaves out tokens by a rule that is not read here."""
    typical = settings.typical_p is not None and settings.typical_p < 1
    return typical or any(
        cutoff is not None and 0 < cutoff < 1
        for cutoff in (settings.epsilon_cutoff, settings.eta_cutoff)
    )


def _is_internal(name: str) -> bool:
    return name in ("_commit_hash", "_original_object_hash")


def _stops(stop_tokens: StopTokens, criteria: Any) -> frozenset[int] | None:
    found: set[int] = set()
    for criterion in criteria or ():
        tokens = stop_tokens(criterion)
        if tokens is None:
            return None
        found |= tokens
    return frozenset(found)


def _most(model: Any, settings: Any, kwargs: Mapping[str, Any], size: int) -> int:
    """Return the most tokens that may follow a prompt of ``size``, as transformers counts them."""
    if settings.max_new_tokens is not None:
        return settings.max_new_tokens
    given = kwargs.get("generation_config")
    named = (
        kwargs.get("max_length"),
        None if given is None else given.max_length,
        model.generation_config.max_length,
    )
    if any(one is not None for one in named):
        return settings.max_length - size
    context = getattr(model.config, "max_position_embeddings", None)
    most = settings.max_length + size
    return (most if context is None else min(most, context)) - size


def _prompts(ids: Any, mask: Any, pad: int | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the ids of each prompt without padding; None if it is not all on the left."""
    rows = ids.tolist()
    if mask is None:
        is_clear = len(rows) == 1 and (pad is None or pad not in rows[0])
        return (tuple(rows[0]),) if is_clear and rows[0] else None
    masks = mask.tolist()
    found: list[tuple[int, ...]] = []
    for row, seen in zip(rows, masks, strict=True):
        padding = seen.index(1)  # a row of padding alone is an error of the caller's
        if len(row) != len(seen) or any(one != 1 for one in seen[padding:]):
            return None
        if any(seen[:padding]):
            return None
        found.append(tuple(row[padding:]))
    return tuple(found)


def _numbers(ends: Any) -> list[int]:
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def _with_prompts(ids: Any, filler: int, rows: Sequence[Sequence[int]]) -> Any:
    """Return prompts and completions ``[prompt, token]``, int64, shorter ones filled up."""
    import torch

    size = max(map(len, rows))
    filled = [[*row, *[filler] * (size - len(row))] for row in rows]
    return torch.cat([ids, torch.tensor(filled, dtype=ids.dtype, device=ids.device)], dim=1)


def _streamed(streamer: Any, ids: Any) -> TokenStream:
    """Return a receiver for a streamer of transformers, which is given tensors on the CPU."""
    import torch

    return TokenStream(
        begin=lambda: streamer.put(ids.cpu()),
        put=lambda token: streamer.put(torch.tensor([token])),
        end=streamer.end,
        fail=partial(_fail, streamer),
    )


def _fail(streamer: Any, error: Exception) -> bool:
    from transformers import AsyncTextIteratorStreamer, TextIteratorStreamer

    if not isinstance(streamer, TextIteratorStreamer | AsyncTextIteratorStreamer):
        streamer.end()
        return False
    changed: Any = streamer
    usual, changed.stop_signal = changed.stop_signal, _RaisingSignal(error)
    try:
        changed.end()
    finally:
        changed.stop_signal = usual
    return True


class _RaisingSignal:
    """The last item of a streamer's queue: a reader compares each, and with this one raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):  # an item that a reader compares while this is the signal
            return False
        raise self._error


class _Rest:
    """A streamer that leaves out the prompt, which its own was given already."""

    def __init__(self, streamer: Any) -> None:
        self._streamer, self._has_begun = streamer, False

    def put(self, value: Any) -> None:
        if self._has_begun:
            self._streamer.put(value)
        self._has_begun = True

    def end(self) -> None:
        self._streamer.end()
