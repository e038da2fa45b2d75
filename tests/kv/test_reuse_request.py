"""Texts that a request names to a server: read as they were written, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.kv.reuse_request import (
    ENTRY,
    VERSION,
    ReuseRequest,
    ReuseRequestError,
    ServedReuse,
    question_digest,
    read_reuse_request,
    salt_refusal,
)

TEXTS = st.lists(st.text(max_size=20), max_size=4).map(tuple)
WAYS = st.sampled_from(("exact", "full", "fused"))
RECIPES = st.sampled_from(("alone", "neighbours"))


def _requests() -> st.SearchStrategy[ReuseRequest]:
    named = st.builds(
        ReuseRequest,
        reuse=WAYS,
        texts=TEXTS,
        before=st.none() | st.text(max_size=9),
        namespace=st.text(max_size=9),
        save=st.booleans(),
    ) | st.builds(ReuseRequest, reuse=st.just("full"), texts=TEXTS, recipe=RECIPES)
    bounds = st.lists(st.integers(5, 500), min_size=2, max_size=8, unique=True).map(sorted)
    spans = bounds.map(lambda at: tuple(zip(at[::2], at[1::2], strict=False)))
    return named | st.builds(ReuseRequest, reuse=WAYS, spans=spans, head=st.integers(0, 5))


def _as_sent(request: ReuseRequest) -> Any:
    return json.loads(json.dumps(request.params()))


@given(_requests())
def test_a_request_is_read_as_it_was_written(request_: ReuseRequest) -> None:
    assert read_reuse_request(_as_sent(request_)) == request_


@given(_requests())
def test_the_salt_is_that_of_what_was_read(request_: ReuseRequest) -> None:
    read = read_reuse_request(_as_sent(request_))
    assert read is not None
    assert read.salt() == request_.salt()
    assert (request_.salt() is None) == (request_.reuse == "exact" and not request_.namespace)


@given(_requests(), _requests())
def test_requests_of_other_texts_have_other_salts(one: ReuseRequest, other: ReuseRequest) -> None:
    is_alike = {**one.params()[ENTRY], "save": 0} == {**other.params()[ENTRY], "save": 0}
    if one.is_approximate and other.is_approximate:
        assert (one.salt() == other.salt()) == is_alike


@pytest.mark.parametrize("reuse", ["exact", "full"])
def test_a_tenant_has_salts_of_its_own(reuse: ServedReuse) -> None:
    texts = ("one text", "another")
    salts = {ReuseRequest(reuse, texts, namespace=name).salt() for name in ("", "a", "b")}
    assert len(salts) == 3


def test_questions_of_fused_requests_have_salts_of_their_own() -> None:
    digests = [question_digest([("user", text)]) for text in ("Who?", "Where?")]
    salts = {ReuseRequest("fused", ("one text",), question=digest).salt() for digest in digests}
    assert len(salts) == 2


def test_only_the_recipe_that_older_servers_lack_is_named() -> None:
    """They refuse names that they do not know; what is exact has no recipe."""
    named = [
        "recipe" in ReuseRequest(reuse, ("one text",), recipe=recipe).params()[ENTRY]
        for reuse in ("full", "fused", "exact")
        for recipe in ("neighbours", "alone")
    ]
    assert named == [False, True, False, True, False, False]


@pytest.mark.parametrize("params", [None, {}, {"other": 1}, "text", 3, [1]])
def test_what_names_no_texts_is_no_request(params: object) -> None:
    assert read_reuse_request(params) is None


@pytest.mark.parametrize(
    "values",
    [
        "text",
        [],
        {"version": VERSION + 1},
        {},
        {"version": VERSION, "other": 1},
        {"version": VERSION, "reuse": "most"},
        {"version": VERSION, "reuse": ["full"]},
        {"version": VERSION, "texts": "one text"},
        {"version": VERSION, "texts": [1]},
        {"version": VERSION, "texts": ["a"] * 2000},
        {"version": VERSION, "texts": ["a" * (1 << 25)]},
        {"version": VERSION, "texts": ["a"], "spans": [[1, 2]]},
        {"version": VERSION, "spans": [[2, 2]]},
        {"version": VERSION, "spans": [[0, 5], [4, 6]]},
        {"version": VERSION, "spans": [[5, 8], [0, 2]]},
        {"version": VERSION, "spans": [[-1, 2]]},
        {"version": VERSION, "spans": [[True, 2]]},
        {"version": VERSION, "spans": [[1, 2, 3]]},
        {"version": VERSION, "spans": [[1.0, 2]]},
        {"version": VERSION, "spans": [[0, 1 << 40]]},
        {"version": VERSION, "spans": [[4, 9]], "head": 5},
        {"version": VERSION, "head": -1},
        {"version": VERSION, "ratio": 2},
        {"version": VERSION, "ratio": float("nan")},
        {"version": VERSION, "ratio": True},
        {"version": VERSION, "asked": "first"},
        {"version": VERSION, "recipe": "together"},
        {"version": VERSION, "namespace": 1},
        {"version": VERSION, "save": "yes"},
        {"version": VERSION, "before": 1},
        {"version": VERSION, "question": {}},
    ],
)
def test_nonsense_is_refused(values: object) -> None:
    with pytest.raises(ReuseRequestError):
        read_reuse_request({ENTRY: values})


def test_unknown_names_are_said_in_one_line() -> None:
    """What a client writes is logged."""
    with pytest.raises(ReuseRequestError) as caught:
        read_reuse_request({ENTRY: {"version": VERSION, "a\nINFO forged": 1}})
    assert str(caught.value) == r"unknown names: 'a\nINFO forged'"


REQUESTS = {
    "plain": None,
    **{
        f"{way} of {namespace or 'no one'}": ReuseRequest(way, ("one text",), namespace=namespace)
        for way in ("exact", "full", "fused")
        for namespace in ("", "a", "b")
    },
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_salt_of_reuse_is_that_of_its_request_alone(name: str) -> None:
    request_ = REQUESTS[name]
    for other, theirs in REQUESTS.items():
        salt = None if theirs is None else theirs.salt()
        own = None if request_ is None else request_.salt()
        is_tenants = other.startswith("exact of") and name == "plain"
        assert (salt_refusal(request_, salt) is None) == (salt == own or is_tenants)


@pytest.mark.parametrize(
    "salt", ["mine", "rag-accel", "rag-accel x", f"{ReuseRequest('full').salt()}0"]
)
def test_a_salt_of_the_program_is_for_exact_requests_of_no_namespace(salt: str) -> None:
    assert salt_refusal(None, salt) is None
    assert salt_refusal(ReuseRequest("exact", ("one text",)), salt) is None
    assert salt_refusal(ReuseRequest("full", ("one text",)), salt) is not None
    assert salt_refusal(ReuseRequest("exact", ("one text",), namespace="a"), salt) is not None
