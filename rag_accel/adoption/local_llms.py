"""The program's own language models, and those of them that an engine may run as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from rag_accel.accelerator import Accelerator, RequestIdentity, Work
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.adoption.generation import GenerateCall, TokenStream, draw_seeds
from rag_accel.config import AdoptLLM
from rag_accel.engine_api import Engine, Message, PrimitiveKind
from rag_accel.engines.llm.local.choice import LocalModel
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError
from rag_accel.interception.fallback import CALLER_ERRORS, fail_open, with_fallback
from rag_accel.kv.prompt_chunks import LEAST_CHARACTERS
from rag_accel.leaves.early_answers import AskedPrompt
from rag_accel.leaves.early_beginnings import NotedPrompt
from rag_accel.scheduler.messages import EngineName
from rag_accel.system.locks import RenewedLock

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from rag_accel.engines.llm.local.text.tokens import TokenInput, TokenOutput
    from rag_accel.kv.segments import SegmentedPrompt

_WHERE = "llm"
_WOULD_SHARE = 'adopt_llm="batched" shares its steps'


@dataclass(slots=True)
class _KnownModel:
    """The recognised properties of one model object.

    Args:
        refusal: why no engine runs it; None if one may.
        unmade: why none with these bounds runs it, such as that their folder cannot be used.
        locals: what has its engines, by their bounds; none before the first and after the last.
    """

    refusal: str | None
    unmade: dict[LocalOptions, str] = field(default_factory=dict[LocalOptions, str])
    locals: WeakValueDictionary[LocalOptions, LocalModel] = field(
        default_factory=WeakValueDictionary[LocalOptions, LocalModel]
    )


_seen: WeakKeyDictionary[Any, _KnownModel] = WeakKeyDictionary()
#: Each engine keeps what it was made of, which nothing else does.
_made_of: WeakKeyDictionary[Engine, LocalModel] = WeakKeyDictionary()
_lock = RenewedLock()


def generate(identity: RequestIdentity, model: Any, holder: Any, call: GenerateCall) -> Any:
    """Return what a call returns, computed by the model's engine if one may run it.

    Args:
        identity: the run it belongs to.
        model: computes.
        holder: the object that has the model; the engine lives as long as one that has called it.
        call: what is asked for.
    """
    accelerator = identity.accelerator
    local = _adopted(accelerator, model, is_sampled=call.is_sampled)
    if local is None or not _has_room(local, call) or not _has_options(call):
        return call.plain(())
    try:
        engine = _engine(accelerator, local, holder)
    except Exception as error:
        if _is_refusal(error, local):
            return call.plain(())
        return _continued(accelerator, error, call, ())
    # In the caller's thread at once: a stream's works are made when it is read.
    seeds = draw_seeds(model, len(call.prompts), call.seed) if call.is_sampled else ()
    work_items = partial(_works, identity, engine, local.bounds, call, seeds)
    if call.stream is not None:
        return _streamed(identity, work_items, local.bounds, call, call.stream)

    def owned() -> Any:
        works = work_items()
        prompts = _noted_prompts(identity, call, works)
        if len(works) == 1:
            outputs = [accelerator.leaves.compute(identity, works[0], prompts[0])]
        else:
            outputs = accelerator.leaves.compute_all(identity, works)
        _take_answers(call, prompts, outputs)
        call.note([local.bounds.notes(output) or None for output in outputs])
        return call.result([output.tokens for output in outputs])

    return with_fallback(accelerator, owned, lambda: call.plain(()), _WHERE)


def prepared_engine(accelerator: Accelerator, model: Any, holder: Any) -> EngineAt | None:
    """Return the engine of a model's greedy calls, made if need be; None if none runs them.

    A model that has to be traced once on this machine is waited for, where a call would run it on
    torch until its process ends.
    """
    local = _adopted(accelerator, model)
    if local is None:
        return None
    try:
        return accelerator, _engine(accelerator, local, holder, waits=True)
    except Exception as error:
        if not _is_refusal(error, local):
            fail_open(accelerator, error, _WHERE)
        return None


def _engine(
    accelerator: Accelerator, local: LocalModel, holder: Any, *, waits: bool = False
) -> EngineName:
    return accelerator.own(local, _WHERE, partial(_make, local, waits=waits), holder=holder)


def _is_refusal(error: Exception, local: LocalModel) -> bool:
    """Tell whether an error says that no engine runs the model, rather than that one failed."""
    return isinstance(error, ConfigError) and local.bounds not in _seen[local.model].unmade


def _works(
    identity: RequestIdentity,
    engine: EngineName,
    bounds: LocalOptions,
    call: GenerateCall,
    seeds: Sequence[int],
) -> list[Work]:
    from rag_accel.engines.llm.local.text.tokens import TokenInput

    reuses = bounds.kv_reuse != "exact" and call.tokenizer is not None
    texts = list(identity.retrieved.texts()) if reuses else []
    inputs = [
        TokenInput(
            ids=ids,
            ends=call.ends,
            most=call.most,
            segments=_parts(identity, bounds, call, ids, texts) if texts else None,
            options={**call.sampling, "seed": seed},
        )
        for ids, seed in zip_longest(call.prompts, seeds)
    ]
    return [Work(engine, PrimitiveKind.DECODING, input_) for input_ in inputs]


def _parts(
    identity: RequestIdentity,
    bounds: LocalOptions,
    call: GenerateCall,
    ids: tuple[int, ...],
    texts: list[tuple[str, str]],
) -> SegmentedPrompt | None:
    """Return a prompt by its retrieved texts or paths; None where none are found in it."""
    from rag_accel.engines.llm.local.reuse.id_segments import segment_ids
    from rag_accel.engines.llm.local.reuse.id_trees import tree_of_ids

    asked = identity.retrieved.asked
    least = bounds.least_chunk_tokens if bounds.reuses_texts else None
    found = None
    if bounds.reuses_paths:
        found = tree_of_ids(
            *(ids, call.tokenizer, texts, asked),
            least_tokens=least,
            least_characters=LEAST_CHARACTERS,
        )
    if found is not None or least is None:
        return found
    return segment_ids(
        *(ids, call.tokenizer, texts, asked),
        least_tokens=least,
        least_characters=LEAST_CHARACTERS,
    )


def _noted_prompts(
    identity: RequestIdentity, call: GenerateCall, works: Sequence[Work]
) -> list[NotedPrompt | None]:
    """Record a program's prompts by their texts; None for each that is not recorded."""
    accelerator, tokenizer = identity.accelerator, call.tokenizer
    if tokenizer is None or not identity.program or not accelerator.begins_prompts(works[0].engine):
        return [None] * len(works)
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return [None] * len(works)
    noted: list[NotedPrompt | None] = []
    for work in works:
        messages = (Message("user", backend.decode(work.payload.ids, skip_special_tokens=False)),)
        is_settled = len(works) == 1 and call.stream is None and not call.is_sampled
        is_settled = is_settled and work.payload.segments is None
        remake = partial(_remade, replace(work.payload, ids=()), backend) if is_settled else None
        asked = AskedPrompt(work.engine, messages, work.payload, remake, has_beginnings=False)
        noted.append(accelerator.note_prompt(identity, asked))
    return noted


def _remade(call: TokenInput, tokenizer: Tokenizer, messages: tuple[Message, ...]) -> TokenInput:
    """Return a call of another prompt, as its tokenizer makes tokens of the text."""
    (message,) = messages
    ids = tokenizer.encode(message.content, add_special_tokens=False).ids
    return replace(call, ids=tuple(ids))


def _take_answers(
    call: GenerateCall, prompts: Sequence[NotedPrompt | None], outputs: Sequence[TokenOutput]
) -> None:
    """Keep answers' texts, which later prompts of a program may hold."""
    for prompt, output in zip(prompts, outputs, strict=True):
        if prompt is not None:
            prompt.take(call.tokenizer.decode(output.tokens, skip_special_tokens=True))


def why_plain(accelerator: Accelerator, model: Any, *, is_sampled: bool = False) -> str | None:
    """Return why no engine runs a model's greedy calls, or sampled ones; None if one does."""
    adopt = accelerator.options.adopt_llm
    if adopt == "off":
        return "adopt_llm is off"
    seen = _look_at(model)
    if seen.refusal is not None:
        return seen.refusal
    made = [ref() for ref in seen.locals.valuerefs()]  # in one step, whatever other threads add
    if any(local is not None and not local.is_same for local in made):
        return _note(model, "it was changed after its engine was made")
    bounds = accelerator.local_llms.bounds(model)
    if bounds in seen.unmade:
        return seen.unmade[bounds]
    if bounds.reuses_paths and _has_windows(model):
        return f"kv_reuse is {bounds.kv_reuse}, and a layer of it sees a window of positions only"
    return _now(model, adopt, is_approximate=bounds.is_approximate, is_sampled=is_sampled)


def is_approximate(accelerator: Accelerator, model: Any) -> bool:
    """Tell whether a model's engine reuses the state of retrieved texts, or has int8 weights."""
    return accelerator.local_llms.bounds(model).is_approximate


def describe(accelerator: Accelerator, model: Any, *, samples: bool) -> str:
    """Return how a model's calls run, which are sampled as a rule or not."""
    idle = why_plain(accelerator, model, is_sampled=samples)
    if idle is not None and why_plain(accelerator, model) is not None:
        return f"local language model, plain: {idle}"
    bounds = accelerator.local_llms.bounds(model)
    kv_reuse = bounds.kv_reuse
    local = _seen[model].locals.get(bounds)
    runs = () if local is None else local.describe_parts()
    if kv_reuse != "exact":
        kind = f"kv_reuse is {kv_reuse}, approximate"
    elif bounds.weights != "own":
        kind = f"{bounds.weights} weights, approximate"
    else:
        kind = "exact" if _dtype(model) == "float32" else "batched, approximate"
    calls = "greedy and sampled" if accelerator.options.adopt_llm == "batched" else "greedy"
    owned = f"recognised local language model: owned engine ({kind}), {calls} calls of all requests"
    others = f"others run plainly ({idle})" if idle else "others run plainly"
    return "; ".join((f"{owned} share steps, {others}", *runs))


def _adopted(
    accelerator: Accelerator, model: Any, *, is_sampled: bool = False
) -> LocalModel | None:
    if why_plain(accelerator, model, is_sampled=is_sampled) is not None:
        return None
    bounds = accelerator.local_llms.bounds(model)
    known = _seen[model].locals
    with _lock.lock:
        local = known.get(bounds)
        if local is None:
            local = known[bounds] = LocalModel(model, None, None, None, bounds)
        return local


def _look_at(model: Any) -> _KnownModel:
    try:
        found = _seen.get(model)
    except TypeError:  # it has no weak references, or no hash
        return _KnownModel("it is no model of transformers")
    if found is None:
        refusal = _refusal(model)
        with _lock.lock:
            found = _seen.setdefault(model, _KnownModel(refusal))
    return found


def _refusal(model: Any) -> str | None:
    from rag_accel.engines.llm.local.model.families import check_model

    try:
        check_model(model)
    except ConfigError as error:
        return f"{error.what}: {error.found}"
    return None


def _has_windows(model: Any) -> bool:
    from rag_accel.engines.llm.local.model.families import has_windows

    return has_windows(model)


def _now(model: Any, adopt: AdoptLLM, *, is_approximate: bool, is_sampled: bool) -> str | None:
    """Return what keeps a model from being run as it is at this moment.

    Where texts are reused or weights are int8, answers are approximate anyhow.
    """
    if any(module.training for module in model.modules()):
        return "it is in training mode"
    if adopt == "batched":
        return None
    is_exact = _dtype(model) == "float32" or is_approximate
    reasons = [] if is_exact else [f"computes in {_dtype(model)}"]
    reasons += ["samples"] if is_sampled else []
    return f"it {' and '.join(reasons)}; {_WOULD_SHARE}" if reasons else None


def _dtype(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")


def _note(model: Any, refusal: str) -> str:
    _look_at(model).refusal = refusal
    return refusal


def _has_room(local: LocalModel, call: GenerateCall) -> bool:
    """Tell whether prompts and completions are in the model's context and fit into the pool."""
    from rag_accel.engines.llm.local.model.families import ModelShape

    shape = ModelShape.of(local.model.config)
    most = max(map(len, call.prompts)) + call.most
    token = 2 * shape.layers * shape.heads * shape.dim * local.model.dtype.itemsize
    return most <= shape.context and 2 * most * token <= local.bounds.pool_bytes


def _has_options(call: GenerateCall) -> bool:
    """Tell whether the options of a call are in the ranges of the sampler."""
    from rag_accel.engines.llm.local.text.sampling import read_options

    try:
        read_options(call.sampling)
    except ConfigError:
        return False
    return True


def _make(local: LocalModel, *, waits: bool) -> Engine:
    import torch

    with torch.inference_mode(False):  # whatever mode its first caller is in
        try:
            loaded = local.load_for_tokens(waits=waits)
        except Exception as error:
            if local.bounds.weights == "own":
                _note(local.model, _unmade(error))
            else:  # with its own weights it may run all the same
                _look_at(local.model).unmade[local.bounds] = _unmade(error)
            raise
        try:
            engine = local.make_for_tokens(loaded)
        except Exception as error:
            _look_at(local.model).unmade[local.bounds] = _unmade(error)
            raise
    _made_of[engine] = local
    return engine


def _unmade(error: Exception) -> str:
    reason = error.what if isinstance(error, ConfigError) else type(error).__name__
    return f"its engine could not be made: {reason}"


def _streamed(
    identity: RequestIdentity,
    work_items: Callable[[], list[Work]],
    bounds: LocalOptions,
    call: GenerateCall,
    stream: TokenStream,
) -> Any:
    """Give out tokens as they come; after an error of the engine, the plain call goes on."""
    tokens: list[int] = []
    try:
        (work,) = works = work_items()
        prompts = _noted_prompts(identity, call, works)

        def note(output: TokenOutput) -> None:
            _take_answers(call, prompts, [output])
            call.note([bounds.notes(output) or None])

        for token in _tokens(identity, work, note):
            if not tokens:
                stream.begin()
            stream.put(token)
            tokens.append(token)
    except Exception as error:
        if tokens:
            call.note([bounds.notes(None) or None])
        return _continued(identity.accelerator, error, call, tokens)
    stream.end()
    return call.result([tokens])


def _continued(
    accelerator: Accelerator, error: Exception, call: GenerateCall, tokens: Sequence[int]
) -> Any:
    """Return what a call returns without an engine, behind the tokens that its stream was given.

    An error that is the caller's ends it as it ends other calls: who reads the stream waits in
    another thread and raises it there.
    """
    if isinstance(error, CALLER_ERRORS) or accelerator.options.strict:
        is_raised = call.stream is not None and call.stream.fail(error)
        if is_raised and call.is_thread:
            return call.result([tokens])
        raise error
    if call.stream is not None and tokens and _is_whole(call, tokens):
        call.stream.end()
        result = call.result([tokens])
    else:
        result = call.plain(tokens)
    fail_open(accelerator, error, _WHERE)
    return result


def _is_whole(call: GenerateCall, tokens: Sequence[int]) -> bool:
    return len(tokens) == call.most or tokens[-1] in call.ends


def _tokens(
    identity: RequestIdentity, work: Work, note: Callable[[TokenOutput], None]
) -> Iterator[int]:
    for piece in identity.accelerator.leaves.stream(identity, work):
        if isinstance(piece, str):
            yield from map(int, piece.split())
        else:
            note(piece)
