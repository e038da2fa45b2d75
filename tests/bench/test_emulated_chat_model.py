"""The emulated accelerator as a chat model: ordinary for LangChain, one device for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from bench.emulated.device import EmulatedDevice
from bench.emulated.table import DeviceTable
from bench.research.mixed.emulated_chat_model import EmulatedChatModel
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import GenerationInput, Message
from rag_accel.errors import ClosedError, ConfigError

QUICK = DeviceTable(
    "quick", base_ms=0.2, per_running_ms=0.0, per_1k_context_ms=0.0, prefill_tokens_per_s=1e6
)
ASKED = [SystemMessage("be brief"), HumanMessage("what is a cache?")]


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice(QUICK, default_max_tokens=12) as device:
        yield device


def test_it_says_what_the_device_says(device: EmulatedDevice) -> None:
    turns = (Message("system", "be brief"), Message("user", "what is a cache?"))
    expected = device.generate(GenerationInput(turns))
    found = EmulatedChatModel(device=device).invoke(ASKED)
    assert found.content == expected.text
    assert isinstance(found, AIMessage)
    assert found.usage_metadata == {
        "input_tokens": expected.prompt_tokens,
        "output_tokens": expected.completion_tokens,
        "total_tokens": expected.prompt_tokens + expected.completion_tokens,
    }
    assert found.response_metadata["model_name"] == "emulated-quick"


async def test_all_ways_to_call_it_agree(device: EmulatedDevice) -> None:
    model = EmulatedChatModel(device=device)
    whole = model.invoke(ASKED)
    assert (await model.ainvoke(ASKED)).content == whole.content
    chunks = list(model.stream(ASKED))
    assert len(chunks) > 2
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert joined.content == whole.content
    assert joined.usage_metadata == whole.usage_metadata
    assert "".join([str(c.content) async for c in model.astream(ASKED)]) == whole.content


def test_a_call_may_name_its_own_length_and_stop(device: EmulatedDevice) -> None:
    model = EmulatedChatModel(device=device, max_tokens=6)
    words = str(model.invoke(ASKED).content).split()
    assert len(words) == 6
    assert len(str(model.invoke(ASKED, max_tokens=3).content).split()) == 3
    stopped = model.invoke(ASKED, stop=[words[2]])
    assert words[2] not in str(stopped.content).split()
    with pytest.raises(ConfigError):
        model.invoke(ASKED, max_tokens=-1)


async def test_callers_that_wait_together_share_the_devices_batch(device: EmulatedDevice) -> None:
    model = EmulatedChatModel(device=device)
    await asyncio.gather(*(model.ainvoke(f"question {number}") for number in range(32)))
    stats = device.stats()
    assert stats.decode_tokens == 32 * 12
    assert stats.decode_tokens > 4 * stats.steps


async def test_accelerated_it_answers_alike(device: EmulatedDevice) -> None:
    prompt = ChatPromptTemplate.from_template("tell me about {topic}")
    chain = prompt | EmulatedChatModel(device=device) | StrOutputParser()
    with Accelerator(strict=True) as accelerator:
        fast = accelerate(chain, accelerator=accelerator)
        topics = [{"topic": f"topic {number}"} for number in range(8)]
        assert await fast.abatch(topics) == await chain.abatch(topics)
        streamed = [part async for part in fast.astream(topics[0])]
        assert streamed == [part async for part in chain.astream(topics[0])]


def test_a_closed_device_says_so() -> None:
    device = EmulatedDevice(QUICK)
    device.close()
    with pytest.raises(ClosedError, match="emulated device is closed"):
        EmulatedChatModel(device=device).invoke(ASKED)
