"""What of a prompt is claimed, loaded and saved, step by step, without vLLM."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from vllm_fakes import FakeRequest, asking, fake_step, letters

from rag_accel.kv.keys import ChunkSource
from rag_accel.kv.reuse_request import ENTRY, ReuseRequest, namespace_salt
from vllm_rag_accel.claims import ClaimOptions, Claims
from vllm_rag_accel.prompt_texts import TextFinder
from vllm_rag_accel.step_plan import PromptLoadReport

HEAD = "You answer by the context. "
ONE = "The river Aare flows through Bern."
TWO = "Lake Thun was formed after the ice age."
PROMPT = f"{HEAD}{ONE}\n\n{TWO}\n\nWhere?"
BLOCK = 16
OPTIONS = ClaimOptions(model="model", step_rows=1000)
WITHOUT_ROWS = replace(OPTIONS, rows_refusal="start vLLM with --worker-cls")


def _key(text: str, head: str = HEAD, namespace: str = "") -> bytes:
    source = ChunkSource("model", namespace, tuple(map(ord, head)))
    return source.key(tuple(map(ord, text)))


def _claims(*kept: bytes, options: ClaimOptions = OPTIONS) -> Claims:
    return Claims(letters(), set(kept).__contains__, options)


def _full(name: str = "a", prompt: str = PROMPT, **given: Any) -> FakeRequest:
    wanted = replace(ReuseRequest("full", (ONE, TWO), before=""), **given)
    return asking(name, prompt, wanted)


def _begun(claims: Claims, request: FakeRequest, computed: int = 0) -> Any:
    """Let a request begin with all its tokens; return the step's plan."""
    claimed = claims.matched(request, computed)
    assert claimed is not None
    claims.allocated(request, claimed)
    blocks = list(range(-(-len(request.prompt) // BLOCK)))
    rest = len(request.prompt) - computed - claimed
    new = {request.request_id: (blocks, computed + claimed)}
    return claims.step(fake_step(new, scheduled={request.request_id: rest}))


def test_texts_are_claimed_with_what_stands_between_them() -> None:
    claims = _claims(_key(ONE), _key(TWO))
    assert claims.matched(_full(), 0) == PROMPT.index("\n\nWhere?")


def test_what_the_server_has_itself_is_not_claimed() -> None:
    assert _claims().matched(_full(), 32) == PROMPT.index("\n\nWhere?") - 32
    assert _claims().matched(_full(), 96) == PROMPT.index("\n\nWhere?") - 96


def test_the_last_token_is_never_claimed() -> None:
    prompt = f"{HEAD}{ONE}{TWO}"
    assert _claims().matched(_full(prompt=prompt), 0) == len(prompt) - 1


def test_a_load_names_the_parts_with_their_keys() -> None:
    (load,) = _begun(_claims(), _full()).loads
    assert [part.key for part in load.layout.parts] == [_key(HEAD, ""), _key(ONE), _key(TWO)]
    assert [PROMPT[part.start : part.stop] for part in load.layout.parts] == [HEAD, ONE, TWO]
    assert (load.begin, load.end, load.scheduled) == (0, PROMPT.index("\n\nWhere?"), len(PROMPT))
    assert load.ids == tuple(map(ord, PROMPT))


def test_a_tenant_has_keys_of_its_own() -> None:
    (load,) = _begun(_claims(), _full(namespace="b")).loads
    assert load.layout.parts[1].key == _key(ONE, namespace="b")


def test_without_rows_a_claim_ends_at_the_first_gap() -> None:
    plain = WITHOUT_ROWS
    kept = _key(HEAD, ""), _key(ONE), _key(TWO)
    assert _claims(*kept, options=plain).matched(_full(), 0) == len(HEAD + ONE)
    assert _claims(*kept[1:], options=plain).matched(_full(), 0) == 0
    assert _claims(kept[0], options=plain).matched(_full(), 0) == len(HEAD)


def test_rows_of_a_request_are_bounded() -> None:
    few = replace(OPTIONS, step_rows=len(HEAD + ONE) + 1)
    assert _claims(options=few).matched(_full(), 0) == len(HEAD + ONE)
    assert _claims(_key(HEAD, ""), options=few).matched(_full(), 0) == len(HEAD + ONE)
    every = _key(HEAD, ""), _key(ONE), _key(TWO)
    assert _claims(*every, options=few).matched(_full(), 0) == PROMPT.index("\n\nWhere?")


def _behind(text: str) -> bytes:
    return ChunkSource("model", "", tuple(map(ord, HEAD))).behind_others().key(map(ord, text))


def test_a_state_behind_others_costs_no_rows_either() -> None:
    """The worker tells whether it may be used; without rows no claim relies on it."""
    few = replace(OPTIONS, step_rows=len(HEAD))
    claims = _claims(_behind(ONE), _behind(TWO), options=few)
    assert claims.matched(_full(), 0) == len(HEAD + ONE)
    assert claims.matched(_full("b", recipe="alone"), 0) == len(HEAD)
    plain = _claims(_key(HEAD, ""), _behind(ONE), options=WITHOUT_ROWS)
    assert plain.matched(_full(), 0) == len(HEAD)


@pytest.mark.parametrize("reuse", ["exact", "full", "fused"])
@pytest.mark.parametrize("recipe", ["alone", "neighbours"])
def test_the_recipe_gives_texts_their_second_key(reuse: Any, recipe: Any) -> None:
    claims = _claims(*([_key(HEAD, "")] if reuse == "exact" else []))
    (load,) = _begun(claims, _full(reuse=reuse, recipe=recipe)).loads
    has_second = recipe == "neighbours" and reuse != "exact"
    found = [part.behind for part in load.layout.parts]
    assert found == [b"", *((_behind(text) if has_second else b"") for text in (ONE, TWO))]


def test_exact_reuse_claims_what_is_kept_behind_the_same_tokens() -> None:
    exact = _full(reuse="exact")
    first, second = HEAD, ONE
    kept = _key(HEAD, ""), _key(second, first)
    assert _claims().matched(exact, 0) == 0
    assert _claims(kept[0]).matched(exact, 0) == len(HEAD)
    assert _claims(*kept).matched(exact, 0) == len(HEAD + ONE)
    third = _key(f"\n\n{TWO}", HEAD + ONE)
    assert _claims(*kept, third).matched(exact, 0) == PROMPT.index("\n\nWhere?")
    assert _claims(third, kept[1]).matched(exact, 0) == 0


def test_a_text_filled_by_itself_is_the_one_that_is_moved() -> None:
    """A prompt of head and text, computed exactly, keeps what other prompts look for."""
    claims = _claims()
    fill = asking(
        "fill", HEAD + ONE, ReuseRequest("exact", spans=((len(HEAD), len(HEAD + ONE)),), head=27)
    )
    (save,) = _begun(claims, fill).saves
    assert [part.key for part in save.layout.parts] == [_key(HEAD, ""), _key(ONE)]


def test_parts_are_saved_once_their_last_token_is_computed() -> None:
    claims = _claims(_key(HEAD, ""))
    exact = _full(reuse="exact")
    claimed = claims.matched(exact, 0)
    claims.allocated(exact, claimed or 0)
    new = {"a": ([0, 1, 2], len(HEAD))}
    first = claims.step(fake_step(new, scheduled={"a": 20}))
    assert (len(first.loads), first.saves) == (1, [])
    at = len(HEAD) + 20
    second = claims.step(fake_step(running={"a": ([3, 4], at)}, scheduled={"a": 30}))
    assert second.saves == []
    third = claims.step(fake_step(running={"a": ([5, 6, 7], at + 30)}, scheduled={"a": 60}))
    (save,) = third.saves
    assert save.blocks == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [part.start for part in save.layout.parts] == [len(HEAD), len(HEAD + ONE)]
    later = claims.step(fake_step(running={"a": ([8], at + 90)}, scheduled={"a": 1}))
    assert later.saves == []


def test_a_resumed_request_loads_again_into_its_new_blocks() -> None:
    claims = _claims()
    request = _full()
    _begun(claims, request)
    claimed = claims.matched(request, 16)
    assert claimed is not None
    claims.allocated(request, claimed)
    at = 16 + claimed
    plan = claims.step(fake_step(resumed={"a": ([7, 8, 9], at)}, scheduled={"a": 3}))
    (load,) = plan.loads
    assert (load.blocks, load.begin, load.end, load.scheduled) == ([7, 8, 9], 16, at, at + 3)


def test_a_part_that_another_request_computes_is_waited_for() -> None:
    claims = _claims()
    _begun_partly = _full("a", reuse="exact")
    claims.matched(_begun_partly, 0)
    claims.allocated(_begun_partly, 0)
    claims.step(fake_step({"a": ([0], 0)}, scheduled={"a": 16}))
    other = _full("b", reuse="exact")
    assert claims.matched(other, 0) is None
    claims.finished(_begun_partly)
    assert claims.matched(other, 0) == 0


def test_an_aborted_request_leaves_nothing() -> None:
    claims = _claims()
    request = _full()
    claims.allocated(request, claims.matched(request, 0) or 0)
    claims.finished(request)
    assert claims.step(fake_step()).loads == []
    assert claims._prompts == {}
    assert claims._to_load == {}
    assert claims._saving == {}


def test_the_answer_says_what_was_reused() -> None:
    claims = _claims()
    request = _full()
    _begun(claims, request)
    claims.loaded([PromptLoadReport("a", reused=70, encoded=3, computed=2, seconds=0.5)])
    claims.loaded([PromptLoadReport("gone")])
    assert claims.finished(request) == {
        "rag_accel": {
            "reuse": "full",
            "texts": 2,
            "reused_tokens": 70,
            "encoded_tokens": 3,
            "computed_tokens": 2,
            "recomputed_tokens": 0,
            "load_ms": 500.0,
        }
    }


def test_the_answer_of_one_step_says_it_too() -> None:
    """vLLM ends a request before it tells of the step's loads, and sends its answer after both."""
    claims = _claims()
    request = _full()
    _begun(claims, request)
    answer = claims.finished(request)
    assert answer is not None
    assert answer["rag_accel"]["reused_tokens"] == 0
    claims.loaded([PromptLoadReport("a", reused=70)])
    assert answer["rag_accel"]["reused_tokens"] == 70
    claims.step(fake_step())
    claims.loaded([PromptLoadReport("a", reused=9)])
    assert answer["rag_accel"]["reused_tokens"] == 70


def test_a_request_without_texts_is_left_alone() -> None:
    claims = _claims()
    request = FakeRequest("a", PROMPT)
    assert claims.matched(request, 0) == 0
    claims.allocated(request, 0)
    assert claims.finished(request) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cache_salt": None}, "needs the cache_salt"),
        ({"cache_salt": "rag-accel other"}, "needs the cache_salt"),
        ({"lora_request": object()}, "LoRA"),
        ({"mm_features": (1,)}, "images"),
        ({"kv_transfer_params": {"rag_accel": "x"}}, "not an object"),
        ({"kv_transfer_params": {"rag_accel": {"version": 1, "texts": 3}}}, "texts are a list"),
        (
            {"kv_transfer_params": ReuseRequest(spans=((0, 9000),)).params(), "cache_salt": None},
            "beyond the prompt",
        ),
    ],
)
def test_a_request_that_cannot_be_served_is_computed(
    change: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    claims = _claims(_key(ONE), _key(TWO))
    request = _full()
    for name, value in change.items():
        setattr(request, name, value)
    with caplog.at_level(logging.WARNING):
        assert claims.matched(request, 0) == 0
        assert claims.matched(request, 0) == 0
    claims.allocated(request, 0)
    answer = claims.finished(request)
    assert answer is not None
    assert reason in answer["rag_accel"]["refused"]
    assert len(caplog.records) == 1


SALTS = {
    **{way: _full(reuse=way).cache_salt for way in ("full", "fused")},
    "tenant": namespace_salt("t"),
    "tenant's full": _full(namespace="t").cache_salt,
}


@pytest.mark.parametrize("way", ["plain", "exact", "full", "fused", "unreadable"])
@pytest.mark.parametrize("salt", SALTS.values(), ids=SALTS)
def test_a_request_under_the_salt_of_another_is_computed_and_not_kept(
    way: Any, salt: str | None
) -> None:
    """What the server's own cache has under that salt may be approximate, or a tenant's."""
    claims = _claims()
    request = _full(reuse="exact" if way in ("plain", "unreadable") else way)
    is_refused = salt != request.cache_salt and (way, salt) != ("plain", SALTS["tenant"])
    if way == "plain":
        request.kv_transfer_params = None
    if way == "unreadable":
        request.kv_transfer_params = {ENTRY: 1}
    request.cache_salt = salt
    claims.begun(request)
    plan = _begun(claims, request)
    answer = claims.finished(request)
    if is_refused:
        assert (plan.loads, plan.saves) == ([], [])
        assert answer is not None
        assert answer[ENTRY]["exact"] is True
        reads = way == "unreadable" and salt == SALTS["tenant"]
        assert request.skip_reading_prefix_cache is not reads
    else:
        assert answer is None or "refused" not in answer[ENTRY]
        assert not request.skip_reading_prefix_cache


def test_a_namespace_needs_its_salt() -> None:
    claims = _claims()
    request = _full(reuse="exact", namespace="t")
    request.cache_salt = None
    claims.begun(request)
    assert _begun(claims, request).saves == []
    assert request.skip_reading_prefix_cache
    answer = claims.finished(request)
    assert answer == {ENTRY: {"refused": "a namespace needs its cache_salt", "exact": True}}


def test_what_the_servers_cache_had_of_another_request_is_not_exact() -> None:
    """A server that reads its cache for a request that was told not to."""
    claims = _claims()
    request = _full(reuse="exact")
    request.cache_salt = SALTS["full"]
    claims.begun(request)
    assert _begun(claims, request, 32).saves == []
    answer = claims.finished(request)
    assert answer is not None
    assert answer[ENTRY]["exact"] is False


@pytest.mark.parametrize(
    "cut", [{"texts": (ONE,)}, {"texts": (), "spans": ((27, 61),), "head": 27}]
)
def test_what_follows_the_servers_own_blocks_of_other_heads_is_not_kept(
    cut: dict[str, Any],
) -> None:
    """A prompt with these texts may have had a text where this one's head is.

    That of the same spans has its head where this one has.
    """
    (load,) = _begun(_claims(), _full(**cut), 16).loads
    assert load.layout.save is ("spans" in cut)
    (load,) = _begun(_claims(), _full(**cut)).loads
    assert load.layout.save


@pytest.mark.parametrize(
    "wanted", [{"texts": ["\ud800 a lone half of a character"]}, {"ratio": 10**400}]
)
def test_no_request_ends_the_scheduler(wanted: dict[str, Any]) -> None:
    """What raises here would end vLLM's engine, and every request with it."""

    def encode(text: str) -> list[int]:
        return list(text.encode())  # raises as tokenizers do

    finder = TextFinder(encode, lambda ids: "")
    claims = Claims(finder, lambda key: False, OPTIONS)
    request = FakeRequest("a", PROMPT, {ENTRY: {"version": 1, **wanted}})
    assert claims.matched(request, 0) == 0
    answer = claims.finished(request)
    assert answer is not None
    assert answer["rag_accel"]["refused"]


def test_texts_longer_than_their_prompt_are_not_cut() -> None:
    """Tokenizing them would hold up the requests of others."""
    cut: list[str] = []

    def encode(text: str) -> list[int]:
        cut.append(text)
        return [ord(one) for one in text]

    texts = (ONE, "long " * 10_000, TWO)
    claims = Claims(TextFinder(encode, lambda ids: ""), lambda key: False, OPTIONS)
    wanted = ReuseRequest("full", texts)
    assert claims.matched(asking("a", PROMPT, wanted), 0) == len(HEAD + ONE)
    assert cut == [ONE]


def test_chosen_rows_need_a_worker_that_computes_them() -> None:
    claims = _claims(options=WITHOUT_ROWS)
    request = _full(reuse="fused")
    assert claims.matched(request, 0) == 0
    answer = claims.finished(request)
    assert answer is not None
    assert "--worker-cls" in answer["rag_accel"]["refused"]


def test_texts_that_are_not_in_the_prompt_are_no_claim() -> None:
    claims = _claims()
    request = _full(prompt="Nothing of it stands here, whatever was named before.")
    assert claims.matched(request, 0) == 0
    said = {"refused": "none of them is in the prompt", "exact": True}
    assert claims.finished(request) == {"rag_accel": said}
