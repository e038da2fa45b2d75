"""Options: argument > environment > default; nothing unknown or out of range gets in."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.config import AdoptLLM, OptionArguments, Options, is_enabled
from rag_accel.errors import ConfigError

BOUNDED = [
    (spec.name, spec.metadata["low"], spec.metadata["high"])
    for spec in fields(Options)
    if spec.metadata["low"] is not None
]


def test_an_argument_beats_the_environment_which_beats_the_default() -> None:
    environ = {"RAG_ACCEL_MAX_BATCH": "32", "RAG_ACCEL_THREADS": "2"}
    options = Options.load(environ, max_batch=8)
    assert (options.max_batch, options.threads, options.max_loops) == (8, 2, 64)


def test_type_checkers_know_each_option() -> None:
    arguments = get_type_hints(OptionArguments)
    assert arguments | {"adopt_llm": AdoptLLM} == get_type_hints(Options)


def test_options_made_directly_do_not_look_at_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAG_ACCEL_MAX_BATCH", "32")
    assert Options().max_batch == 64
    assert Options.load().max_batch == 32


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("adopt_llm", "off", "off"),
        ("max_batch", "32", 32),
        ("batch_wait_ms", "1.5", 1.5),
        ("deadline_s", "2", 2.0),
        ("deadline_s", "none", None),
        ("threads", "", None),
        ("threads", "4", 4),
        ("namespace", "tenant a", "tenant a"),
        ("namespace", "none", "none"),
        ("step_timeout_s", "inf", math.inf),
        ("strict", "1", True),
        ("strict", " TRUE ", True),
        ("strict", "yes", True),
        ("single_flight", "off", False),
        ("single_flight", "No", False),
        ("thread_safe_classes", "", ()),
        ("thread_safe_classes", "a.B, c.d.E,", ("a.B", "c.d.E")),
    ],
)
def test_a_variable_is_read_as_the_type_of_its_option(name: str, text: str, value: Any) -> None:
    found = getattr(Options.load({f"RAG_ACCEL_{name.upper()}": text}), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_batch", "many"),
        ("max_batch", "1.5"),
        ("max_batch", ""),
        ("max_batch", "0"),
        ("batch_wait_ms", "nan"),
        ("batch_wait_ms", "inf"),
        ("strict", "2"),
        ("strict", ""),
        ("adopt_llm", "fast"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Options.load({f"RAG_ACCEL_{name.upper()}": text})
    assert name in str(caught.value).lower()


@pytest.mark.parametrize("value", ["a.B", ["a.B"], (1,)])
def test_names_are_a_tuple_of_strings(value: Any) -> None:
    with pytest.raises(ConfigError, match="thread_safe_classes"):
        Options(thread_safe_classes=value)


def test_an_unknown_variable_is_named_as_it_was_written() -> None:
    with pytest.raises(ConfigError, match="RAG_ACCEL_MAX_BACH") as caught:
        Options.load({"RAG_ACCEL_MAX_BACH": "3"})
    assert "RAG_ACCEL_MAX_BATCH" in (caught.value.valid or "")


def test_variables_of_others_and_the_master_switch_are_left_alone() -> None:
    assert Options.load({"RAG_ACCEL": "0", "RAG_ACCELERATOR": "x", "PATH": "y"}) == Options()


@pytest.mark.parametrize("make", [Options.load, lambda **kw: Options().merged(**kw)])
def test_an_unknown_argument_is_named_with_the_valid_ones(make: Any) -> None:
    with pytest.raises(ConfigError, match="max_bach") as caught:
        make(max_bach=3)
    assert "max_batch" in (caught.value.valid or "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("adopt_llm", "fast"),
        ("adopt_llm", None),
        ("adopt_llm", []),
        ("strict", 1),
        ("max_batch", True),
        ("max_batch", 1.5),
        ("max_batch", "8"),
        ("max_batch", None),
        ("threads", 0),
        ("deadline_s", -1.0),
        ("batch_wait_ms", float("nan")),
        ("namespace", None),
    ],
)
def test_a_value_of_a_wrong_type_or_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        Options(**{name: value})


@pytest.mark.parametrize(("name", "low", "high"), BOUNDED)
def test_both_ends_of_a_range_are_valid_and_what_lies_beyond_is_not(
    name: str, low: float, high: float | None
) -> None:
    step = 1 if isinstance(low, int) else 1e-6
    assert getattr(Options(**{name: low}), name) == low
    with pytest.raises(ConfigError, match=name):
        Options(**{name: low - step})
    if high is not None:
        assert getattr(Options(**{name: high}), name) == high
        with pytest.raises(ConfigError, match=name):
            Options(**{name: high + 1})


def test_an_optional_value_may_be_none() -> None:
    assert (Options(threads=None, deadline_s=None).threads) is None


@given(st.integers(1, 65_536), st.floats(0.0, 1000.0))
def test_what_can_be_written_into_a_variable_is_read_back(batch: int, wait: float) -> None:
    environ = {"RAG_ACCEL_MAX_BATCH": str(batch), "RAG_ACCEL_BATCH_WAIT_MS": repr(wait)}
    assert Options.load(environ) == Options(max_batch=batch, batch_wait_ms=wait)


def test_merging_returns_a_copy_and_checks_it() -> None:
    options = Options()
    assert options.merged(max_batch=8).max_batch == 8
    assert options.max_batch == 64
    with pytest.raises(ConfigError, match="max_batch"):
        options.merged(max_batch=0)


def test_options_are_frozen_hashable_and_equal_by_value() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().max_batch = 3  # type: ignore[misc]
    assert len({Options(), Options(), Options(max_batch=8)}) == 2


def test_options_survive_pickling() -> None:
    options = Options(max_batch=8, namespace="a")
    assert pickle.loads(pickle.dumps(options)) == options


def test_origins_tell_arguments_variables_and_defaults_apart() -> None:
    environ = {"RAG_ACCEL_MAX_BATCH": "32"}
    found = Options.load(environ, threads=2).origins(environ)
    assert (found["max_batch"], found["threads"]) == ("environment", "argument")
    assert found["strict"] == "default"
    assert set(found) == {spec.name for spec in fields(Options)}


def test_an_argument_equal_to_the_default_that_beat_a_variable_is_an_argument() -> None:
    environ = {"RAG_ACCEL_MAX_BATCH": "32"}
    assert Options.load(environ, max_batch=64).origins(environ)["max_batch"] == "argument"


def test_every_option_is_documented() -> None:
    assert all(spec.metadata["doc"] for spec in fields(Options))


@pytest.mark.parametrize(
    ("environ", "enabled"),
    [
        ({}, True),
        ({"RAG_ACCEL": "1"}, True),
        ({"RAG_ACCEL": ""}, True),
        ({"RAG_ACCEL": "0"}, False),
        ({"RAG_ACCEL": " OFF "}, False),
        ({"RAG_ACCEL": "false"}, False),
        ({"RAG_ACCEL": "no"}, False),
    ],
)
def test_the_master_switch_is_on_unless_turned_off(environ: dict[str, str], enabled: bool) -> None:
    assert is_enabled(environ) is enabled


def test_an_option_that_is_gone_is_refused_with_what_to_use() -> None:
    with pytest.raises(ConfigError) as caught:
        Options.load(mode="translate")
    assert "plan_of" in str(caught.value.hint)
