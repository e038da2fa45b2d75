"""Wrappers of known tracers are told apart from those that a program has a say in."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from opentelemetry.instrumentation.utils import unwrap

from rag_accel.system.methods import is_tracers, traced


def _hook(span: Any, request: Any) -> None: ...


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        (unwrap, True),
        (functools.partial(unwrap, request_hook=None), True),
        (functools.partial(unwrap, request_hook=_hook), False),
        (functools.partial(unwrap, _hook), False),
        (_hook, False),
    ],
)
def test_a_hook_of_the_program_makes_a_wrapper_the_programs(wrapper: Any, expected: bool) -> None:
    wrapt = pytest.importorskip("wrapt")
    assert is_tracers(wrapper) == expected
    assert (traced(wrapt.FunctionWrapper(_hook, wrapper)) is _hook) == expected
