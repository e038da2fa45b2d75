"""Errors form one tree, say what to do, and survive being copied to another process."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator

import pytest

from rag_accel import errors
from rag_accel.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    ForkedError,
    GraphError,
    InvalidTransitionError,
    RagAccelError,
    RemoteEngineError,
)


def tree(root: type[RagAccelError], level: int = 0) -> Iterator[tuple[int, str]]:
    yield level, root.__name__
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, level + 1)


CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, RagAccelError)
]


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    drawn = re.findall(r"^    ([| `-]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    assert [(len(indent) // 4, name) for indent, name in drawn] == list(tree(RagAccelError))


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [vars(cls).get("code") for cls in CLASSES]
    assert all(re.fullmatch(r"RA\d{3}", code or "") for code in codes)
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_says_when_it_is_raised(cls: type[RagAccelError]) -> None:
    assert (cls.__doc__ or "").splitlines()[0].endswith(".")


@pytest.mark.parametrize("cls", CLASSES)
def test_a_message_has_its_code_and_the_four_parts_in_order(cls: type[RagAccelError]) -> None:
    error = cls("it failed", where="node a", found=3, valid="1 or 2", hint="choose 1")
    expected = f"[{cls.code}] it failed; at node a; found 3; valid: 1 or 2; next: choose 1"
    assert str(error) == expected


def test_a_message_leaves_out_the_parts_it_lacks() -> None:
    assert str(ConfigError("it failed")) == "[RA100] it failed"


def test_a_false_value_that_was_found_is_still_shown() -> None:
    assert str(ConfigError("it failed", found=0)) == "[RA100] it failed; found 0"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_survives_pickling_and_copying(cls: type[RagAccelError]) -> None:
    error = cls("it failed", where="node a", found=3, valid="1 or 2", hint="choose 1")
    error.add_note("while testing")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is cls
        assert str(twin) == str(error)
        assert twin.args == error.args == ("it failed",)
        assert (twin.where, twin.found, twin.valid, twin.hint) == (
            "node a",
            3,
            "1 or 2",
            "choose 1",
        )
        assert twin.__notes__ == ["while testing"]


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (ConfigError, ValueError),
        (GraphError, ValueError),
        (DeadlineError, TimeoutError),
        (ClosedError, RuntimeError),
        (ForkedError, RuntimeError),
        (InvalidTransitionError, RuntimeError),
    ],
)
def test_an_error_with_a_built_in_equivalent_is_caught_as_that(
    cls: type[RagAccelError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin, match="it failed"):
        raise cls("it failed")


def test_a_graph_error_lists_every_offender_on_a_line_of_its_own() -> None:
    error = GraphError("the graph is bad", offenders=("a has no input", "b is unreachable"))
    assert str(error) == "[RA200] the graph is bad\n  - a has no input\n  - b is unreachable"
    assert pickle.loads(pickle.dumps(error)).offenders == error.offenders


def test_a_remote_error_keeps_its_http_status() -> None:
    error = RemoteEngineError("refused", status=401, found="unauthorized")
    assert pickle.loads(pickle.dumps(error)).status == 401
    assert RemoteEngineError("no answer").status is None
