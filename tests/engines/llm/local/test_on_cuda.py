"""Local language models on a CUDA device: the answers of ``generate``, and reused states."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tiny_chat
from chunk_prompts import A, B, C, answer, asked, tokens
from cuda_kit import needs_cuda, torch, unchanged_switches
from fake_runner import finish, tokenizer, value
from real_model import chat
from real_model import model as real_model
from real_model import tokenizer as real_tokenizer
from tiny_models import MODELS, fresh, ids_of, own_logits, packed_logits, part, runner_for

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.config import Options
from rag_accel.engine_api import EngineRequest, GenerationInput, Message, PrimitiveKind, WorkId
from rag_accel.engines.llm.local.choice import local_model
from rag_accel.engines.llm.local.engine import LocalLLMEngine
from rag_accel.engines.llm.local.model import attention, cuda_attention
from rag_accel.engines.llm.local.model.loading import load
from rag_accel.engines.llm.local.options import LocalOptions
from rag_accel.errors import ConfigError

pytestmark = needs_cuda

DTYPES = ("float32", "bfloat16")
PROMPTS = [ids_of(length, seed) for seed, length in enumerate((70, 37, 5))]
#: Logits of the tiny models in float32, on one device.
CLOSE = 1e-4


@cache
def model(dtype: str = "float32", device: str = "cuda") -> Any:
    """Return the tiny chat model on a device; who changes it takes a copy."""
    return copy.deepcopy(tiny_chat.model()).to(device, getattr(torch, dtype)).eval()


def engine(
    source: Any = None, words: Any = None, *, pool_bytes: int = 1 << 26, **options: Any
) -> LocalLLMEngine:
    chosen = LocalOptions(pool_bytes=pool_bytes, **options)
    loaded = load(source or model(), words or tokenizer(), options=chosen)
    return LocalLLMEngine(loaded.runner, loaded.tokenizer, eos=loaded.ends, options=chosen)


def turns(at: int) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in chat(at))


def work(at: int, most: int) -> EngineRequest:
    payload = GenerationInput(turns(at), max_tokens=most)
    return EngineRequest(WorkId(str(at)), str(at), PrimitiveKind.DECODING, payload)


def texts(made: LocalLLMEngine, count: int, most: int) -> list[str]:
    """Return the answers of chats that are computed together."""
    made.submit([work(at, most) for at in range(count)])
    outputs = finish(made, *map(str, range(count)))
    return [value(outputs, str(at)).text for at in range(count)]


def generated(source: Any, words: Any, at: int, most: int) -> str:
    """Return what ``generate`` makes of a chat alone, on the model's device."""
    messages = [{"role": role, "content": content} for role, content in chat(at)]
    ids = words.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(source.device)
    ids.pop("token_type_ids", None)
    with torch.inference_mode():
        made = source.generate(**ids, max_new_tokens=most, do_sample=False, pad_token_id=0)
    return words.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("name", MODELS)
def test_packed_rows_in_float32_are_the_models_own(name: str) -> None:
    source = fresh(name).to("cuda")
    found = packed_logits(runner_for(source), PROMPTS, Random(1))
    for ids, logits in zip(PROMPTS, found, strict=True):
        assert logits.device.type == "cuda"
        assert (logits - own_logits(source, ids)).abs().max() <= CLOSE


@pytest.fixture
def fresh_proof() -> Iterator[None]:
    cuda_attention._is_proved.cache_clear()
    yield
    cuda_attention._is_proved.cache_clear()


def in_pieces(source: Any, ids: list[int], ends: list[int]) -> Any:
    """Return the logits of a prompt, computed by packed rows up to one end after the other."""
    runner = runner_for(source)
    lane = runner.pool.take(len(ids))
    return torch.cat([runner.run([part(lane, ids, *piece)]) for piece in pairwise(ends)])


def close(found: Any, expected: Any, dtype: str) -> bool:
    share = {"float32": CLOSE, "bfloat16": 2**-4}[dtype]
    return bool((found - expected).abs().max() <= share * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_of_a_long_prompt_need_no_mask(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def masked(*_: Any) -> None:
        raise AssertionError("a prompt's rows were computed with a mask")

    source, ids = fresh("llama", getattr(torch, dtype)).to("cuda"), ids_of(90, 1)
    expected = own_logits(source, ids)
    monkeypatch.setattr(attention, "masked_attention", masked)
    with unchanged_switches():
        for ends in ([0, 90], [0, 33, 80, 90]):
            assert close(in_pieces(source, ids, ends), expected, dtype)


@pytest.mark.usefixtures("fresh_proof")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", ["missing", "other"])
def test_a_kernel_that_is_not_proved_is_not_used(
    dtype: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = cuda_attention.causal_attention

    def faulty(*given: Any) -> Any:
        if fault == "missing":
            raise AttributeError("no such operator")
        return kernel(*given) + 1

    for module in (attention, cuda_attention):
        monkeypatch.setattr(module, "causal_attention", faulty)
    source, ids = fresh("llama", getattr(torch, dtype)).to("cuda"), ids_of(90, 1)
    assert not cuda_attention.can_leave_out_masks(source.device, source.dtype, 16)
    assert close(in_pieces(source, ids, [0, 33, 90]), own_logits(source, ids), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_that_the_program_switches_off_are_not_used(dtype: str) -> None:
    backends = torch.backends.cuda
    backends.enable_flash_sdp(False)
    backends.enable_mem_efficient_sdp(False)
    try:
        source, ids = fresh("llama", getattr(torch, dtype)).to("cuda"), ids_of(90, 1)
        assert not cuda_attention.can_leave_out_masks(source.device, source.dtype, 16)
        assert close(in_pieces(source, ids, [0, 33, 90]), own_logits(source, ids), dtype)
    finally:
        backends.enable_flash_sdp(True)
        backends.enable_mem_efficient_sdp(True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_family_is_proved_at_its_load(name: str, dtype: str) -> None:
    source = fresh(name, getattr(torch, dtype)).to("cuda")
    with unchanged_switches():
        loaded = load(source, needs_tokenizer=False, pool_bytes=1 << 24)
    assert loaded.chosen.name == "torch"
    assert loaded.runner.pool.keys.device.type == "cuda"  # type: ignore[attr-defined]


def test_chats_together_are_what_generate_makes_of_each() -> None:
    made = engine()
    try:
        with unchanged_switches():
            found = texts(made, 8, 12)
    finally:
        made.close()
    assert found == [generated(model(), tokenizer(), at, 12) for at in range(8)]


@pytest.mark.slow
def test_long_answers_of_a_real_model_are_what_generate_makes() -> None:
    source = copy.deepcopy(real_model()).to("cuda")
    made = engine(source, real_tokenizer(), pool_bytes=1 << 29)
    try:
        found = texts(made, 20, 32)
    finally:
        made.close()
    assert found == [generated(source, real_tokenizer(), at, 32) for at in range(20)]


def test_a_step_takes_no_cores_of_the_processor() -> None:
    made, named = engine(), engine(max_threads=2)
    try:
        assert (made.profile.max_threads, named.profile.max_threads) == (0, 2)
    finally:
        made.close()
        named.close()


@pytest.mark.parametrize("counted", [True, False])
def test_a_request_after_weights_were_written_is_refused_by_name(counted: bool) -> None:
    own = copy.deepcopy(model())
    bounds = LocalOptions(runner="torch", pool_bytes=1 << 26)
    graph = RAGraph().add_generation("answer", prompt="{input}", max_tokens=4)
    graph.add_edge(START, "answer").add_edge("answer", END)
    with Accelerator(llm=local_model(own, tokenizer(), bounds=bounds).make(Options())) as acc:
        assert acc.run(graph, input="Which document is it?")
        with torch.no_grad():
            weight = own.lm_head.weight
            (weight if counted else weight.data).mul_(2)
        with pytest.raises(ConfigError, match="the model was changed"):
            acc.run(graph, input="Which document is it?")


# Retrieved texts.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reuse", ["exact", "full", "fused"])
def test_retrieved_texts_are_reused_on_the_device(dtype: str, reuse: Any) -> None:
    made = engine(model(dtype), kv_reuse=reuse, reuse_always=True)
    plain = engine(model(dtype), kv_reuse="exact")
    try:
        answer(made, asked("one", A, B, C))
        found = answer(made, asked("two", C, A, B))
        expected = answer(plain, asked("two", C, A, B))
        held = made.held_bytes
    finally:
        made.close()
        plain.close()
    assert found.use is not None
    assert held > 0
    if reuse == "exact":
        assert found.text == expected.text
        assert found.use.from_chunks == 0
    elif reuse == "full":
        assert found.use.from_chunks == tokens(A) + tokens(B) + tokens(C)
    else:
        assert found.use.recomputed > 0
        assert found.use.from_chunks > 0


@pytest.mark.parametrize("reuse", ["full", "fused"])
def test_reused_texts_give_on_the_device_what_they_give_on_the_processor(reuse: Any) -> None:
    found: list[list[str]] = []
    for device in ("cuda", "cpu"):
        made = engine(model(device=device), kv_reuse=reuse, reuse_always=True, runner="torch")
        orders = ((A, B, C), (C, A, B), (B, C), (C, B, A))
        found.append([answer(made, asked(str(at), *order)).text for at, order in enumerate(orders)])
        made.close()
    assert found[0] == found[1]


def test_states_of_a_folder_are_read_to_either_device(tmp_path: Path) -> None:
    kept: dict[str, Any] = {"kv_reuse": "full", "kv_folder": str(tmp_path), "runner": "torch"}
    said: list[str] = []
    for device in ("cuda", "cuda", "cpu"):
        made = engine(model(device=device), **kept)
        said.append(answer(made, asked("one", A, B, C)).text)
        answer(made, asked("two", A, B, C))
        counts = dict(made.counts)
        made.close()
        if len(said) > 1:
            assert counts["chunk_hits_disk"] == 3
            assert counts["chunk_misses"] == 0
    assert said[0] == said[1] == said[2]


def test_memory_of_the_device_is_given_back_by_a_closed_engine() -> None:
    source = model()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    made = engine(source, kv_reuse="full")
    answer(made, asked("one", A, B, C))
    assert torch.cuda.memory_allocated() > before
    made.close()
    del made
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


# What is refused.


@pytest.mark.parametrize("options", [{"runner": "paged"}, {"weights": "int8"}])
def test_what_processors_alone_have_is_refused_by_name(options: Any) -> None:
    with pytest.raises(ConfigError, match="on cuda"):
        engine(**options)


def test_a_model_on_two_devices_is_refused() -> None:
    split = copy.deepcopy(model())
    split.lm_head.to("cpu")
    with pytest.raises(ConfigError, match="one device"):
        load(split, tokenizer())


def test_a_named_model_is_loaded_to_the_device_that_is_named(tmp_path: Path) -> None:
    tiny_chat.model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    loaded = load(tmp_path, device="cuda", pool_bytes=1 << 24)
    assert loaded.runner.pool.keys.device.type == "cuda"  # type: ignore[attr-defined]
