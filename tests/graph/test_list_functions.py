"""Functions are pure if they are declared so, and nothing made of them is."""

import functools

import pytest

from rag_accel.graph import RAGraph
from rag_accel.graph.list_functions import PureFunction, is_pure, pure
from rag_accel.workflows import steps
from rag_accel.workflows.history import Conversation


@pytest.mark.parametrize(
    "function",
    [steps.first_of, steps.noted, steps.Nth(0), steps.Queries(2), steps.merged, Conversation()],
)
def test_the_glue_of_workflows_is_pure(function):
    assert is_pure(function)
    stage = RAGraph().add_function("f", function, inputs="input").freeze().by_name["f"]
    assert stage.pure == 1


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name):
        return True

    def __call__(self, value):
        return value


@functools.wraps(steps.first_of)
def wrapped(items):
    return steps.first_of(items)


@pytest.mark.parametrize(
    "function",
    [
        len,
        str.upper,
        lambda text: text,
        functools.partial(steps.joined, "a"),
        Unhashable(),
        wrapped,
    ],
)
def test_functions_of_users_are_not(function):
    assert not is_pure(function)
    stage = RAGraph().add_function("f", function, inputs="input").freeze().by_name["f"]
    assert stage.pure is None


def test_users_may_declare_theirs():
    class Mine(PureFunction):
        def __call__(self, text):
            return text

    @pure
    def mine(text):
        return text

    assert is_pure(Mine())
    assert is_pure(mine)
