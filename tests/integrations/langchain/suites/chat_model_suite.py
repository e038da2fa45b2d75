"""Run LangChain's chat-model suites on the scripted model, bare or accelerated.

Not collected by itself: ``test_chat_model_suites.py`` runs this file twice and compares.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripted_chat_model import ScriptedChatModel

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

ACCELERATOR = Accelerator(strict=True)
IS_ACCELERATED = os.environ["SUITE"] == "accelerated"
TWIN: Any = accelerate(ScriptedChatModel(), accelerator=ACCELERATOR)


class _Model:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return type(TWIN) if IS_ACCELERATED else ScriptedChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "scripted-1"}


class TestUnit(_Model, ChatModelUnitTests):
    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"SCRIPTED_API_KEY": "secret"}, {}, {"api_key": "secret"}


class TestIntegration(_Model, ChatModelIntegrationTests):
    @property
    def model_override_value(self) -> str:
        return "scripted-2"

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


def test_leaves_were_scheduled_if_accelerated() -> None:
    engines: Any = ACCELERATOR.metrics.snapshot().get("engines", {})
    steps = sum(engine["steps"] for engine in engines.values())
    assert (steps > 0) is IS_ACCELERATED
    assert ACCELERATOR.bypassed == {}
