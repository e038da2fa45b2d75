"""Options of the connector, engines that are refused by name, and the server's command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from rag_accel.errors import ConfigError
from vllm_rag_accel.options import ConnectorOptions
from vllm_rag_accel.serve import choose_runner, server_arguments
from vllm_rag_accel.support import check_blocks, check_engine, rotation_frequencies_of
from vllm_rag_accel.worker import PATH, rows_refusal


def engine(**extra: Any) -> Any:
    """Return a configuration as vLLM has it."""
    settings = LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=2)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=settings, use_mla=False, uses_mrope=False),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=16),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, worker_cls="auto"
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=2048),
        speculative_config=None,
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config=extra, kv_load_failure_policy="recompute"
        ),
    )


def test_options_have_the_bounds_of_the_server(tmp_path: Path) -> None:
    found = ConnectorOptions.read(engine(folder=str(tmp_path), memory_bytes=5))
    assert (found.folder, found.memory_bytes, found.step_rows) == (tmp_path, 5, 2048)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"folder": ""},
        {"folder": 3},
        {"folder": "a", "other": 1},
        {"folder": "a", "memory_bytes": -1},
        {"folder": "a", "disk_bytes": True},
        {"folder": "a", "step_rows": "all"},
        {"folder": "a", "row_block": 0},
        {"folder": "a", "row_block": True},
        {"folder": "a", "max_age_s": "day"},
        {"folder": "a", "max_age_s": -1},
    ],
)
def test_bad_options_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="kv_connector_extra_config"):
        ConnectorOptions.read(engine(**extra))


def test_an_ordinary_engine_is_served() -> None:
    check_engine(engine(), SimpleNamespace(kv_cache_groups=[1]))
    check_engine(engine(), None)


def _settings(name: str, value: object) -> Callable[[Any], None]:
    return lambda config: setattr(config.model_config.hf_text_config, name, value)


def _model(name: str) -> Callable[[Any], None]:
    return lambda config: setattr(config.model_config, name, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda config: setattr(config.cache_config, "cache_dtype", "fp8"), "another dtype"),
        (_model("use_mla"), "MLA"),
        (_model("uses_mrope"), "M-RoPE"),
        (_settings("sliding_window", 128), "window"),
        (_settings("layer_types", ["full_attention", "sliding_attention"]), "window"),
        (_settings("partial_rotary_factor", 0.5), "partial rotation"),
        (lambda config: setattr(config.parallel_config, "tensor_parallel_size", 2), "several"),
        (lambda config: setattr(config.parallel_config, "pipeline_parallel_size", 2), "several"),
        (lambda config: setattr(config, "speculative_config", object()), "draft model"),
        (
            lambda config: setattr(config.kv_transfer_config, "kv_load_failure_policy", "fail"),
            "would end its request",
        ),
    ],
)
def test_an_engine_whose_states_cannot_be_reused_is_refused(
    change: Callable[[Any], None], reason: str
) -> None:
    config = engine()
    change(config)
    with pytest.raises(ConfigError, match=reason):
        check_engine(config, None)


def test_states_in_several_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="several groups"):
        check_engine(engine(), SimpleNamespace(kv_cache_groups=[1, 2]))


def test_a_backend_with_blocks_of_its_own_is_refused() -> None:
    check_blocks(engine(), 16)
    with pytest.raises(ConfigError, match="--block-size 8"):
        check_blocks(engine(), 8)


def test_a_rotation_that_depends_on_the_length_is_refused() -> None:
    config = engine()
    config.model_config.hf_text_config.rope_parameters = {
        "rope_type": "dynamic",
        "rope_theta": 10_000.0,
        "factor": 2.0,
    }
    with pytest.raises(ConfigError, match="other positions"):
        rotation_frequencies_of(config)


def test_frequencies_are_the_models() -> None:
    expected = 1.0 / 10_000 ** (torch.arange(0, 16, 2).float() / 16)
    torch.testing.assert_close(rotation_frequencies_of(engine()), expected)


def test_the_worker_class_is_known_by_its_path() -> None:
    config = engine()
    assert rows_refusal(config) is not None
    config.parallel_config.worker_cls = PATH
    assert rows_refusal(config) is None


def test_the_server_gets_what_reuse_needs() -> None:
    found = server_arguments(["some/model", "--kv-folder", "/kv", "--port", "9"])
    assert found[:4] == ["--model", "some/model", "--port", "9"]
    config = json.loads(found[found.index("--kv-transfer-config") + 1])
    assert config["kv_connector_extra_config"] == {"folder": "/kv"}
    assert config["kv_load_failure_policy"] == "recompute"
    assert found[found.index("--worker-cls") + 1] == PATH
    assert "--enable-prompt-tokens-details" in found
    assert found[found.index("--middleware") + 1] == "vllm_rag_accel.serve.SaltCheck"


def test_what_is_given_to_the_server_stays() -> None:
    given = ["--model=m", "--kv-transfer-config", "{}", "--worker_cls=own.Worker"]
    found = server_arguments(given)
    assert found[:4] == given
    assert "--worker-cls" not in found


def test_middleware_that_is_given_stays_beside_that_of_reuse() -> None:
    found = server_arguments(["m", "--kv-folder=/kv", "--middleware", "own.Middleware"])
    assert found.count("--middleware") == 2


@pytest.mark.parametrize(
    "given",
    [[], ["model"], ["model", "--kv-folder"], ["m", "--kv-folder=a", "--kv-transfer-config={}"]],
)
def test_a_server_without_one_folder_says_so(given: list[str]) -> None:
    with pytest.raises(SystemExit, match="--kv-folder"):
        server_arguments(given)


@pytest.mark.parametrize(("named", "chosen"), [(None, "0"), ("1", "1")])
def test_the_runner_that_computes_texts_is_chosen_and_said_unless_one_is_named(
    named: str | None, chosen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {} if named is None else {"VLLM_USE_V2_MODEL_RUNNER": named}
    choose_runner(environment)
    assert environment == {"VLLM_USE_V2_MODEL_RUNNER": chosen}
    assert ("VLLM_USE_V2_MODEL_RUNNER=0" in capsys.readouterr().err) == (named is None)
