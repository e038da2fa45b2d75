"""Answers of a local chat model parsed to a schema, by LangChain's own parsers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.format_instructions import JSON_FORMAT_INSTRUCTIONS
from langchain_core.output_parsers.openai_tools import JsonOutputKeyToolsParser, PydanticToolsParser
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from rag_accel.errors import ConfigError

_METHODS = ("json_schema", "json_mode", "function_calling")
_WHERE = "ChatRagAccel.with_structured_output"


def structured(
    model: BaseChatModel,
    schema: Any,
    method: str,
    include_raw: bool,
    unknown: Mapping[str, Any],
) -> Runnable[LanguageModelInput, Any]:
    """Return a chat model followed by the parser of a schema, as ``with_structured_output`` says.

    Raises:
        ConfigError: an unknown method or argument, or no schema outside JSON mode.
    """
    if unknown or method not in _METHODS:
        raise ConfigError(
            "structured output has no such argument or method",
            where=_WHERE,
            found=", ".join(unknown) or repr(method),
            valid=f"schema, include_raw, method: {' | '.join(_METHODS)}",
        )
    if not schema and method != "json_mode":
        raise ConfigError("a schema is missing", where=_WHERE, valid="a class or a JSON schema")
    is_class = _is_pydantic(schema)
    if method == "function_calling":
        answering = model.bind_tools([schema], **_noted(method, schema))
        name = convert_to_openai_tool(schema)["function"]["name"]
        parser: Any = (
            PydanticToolsParser(tools=[schema], first_tool_only=True)
            if is_class
            else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
        )
    else:
        answering = model.bind(**_noted(method, schema))
        if method == "json_schema":
            wanted = json.dumps(convert_to_json_schema(schema), ensure_ascii=False)
            instructions = JSON_FORMAT_INSTRUCTIONS.format(schema=wanted)
            answering = RunnableLambda(partial(_instructed, instructions)) | answering
        parser = PydanticOutputParser(pydantic_object=schema) if is_class else JsonOutputParser()
    return _with_raw(answering, parser) if include_raw else answering | parser


def _is_pydantic(schema: Any) -> bool:
    return isinstance(schema, type) and is_basemodel_subclass(schema)


def _noted(method: str, schema: Any) -> dict[str, Any]:
    """Return the argument that tells LangChain's traces of the schema."""
    return {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": schema}}


def _instructed(instructions: str, given: Any) -> list[BaseMessage]:
    """Return a model's input as messages, whose last turn is a user's and ends as instructed."""
    if isinstance(given, PromptValue):
        messages = given.to_messages()
    else:
        messages = convert_to_messages([given] if isinstance(given, str) else given)
    last = messages[-1] if messages else None
    if not isinstance(last, HumanMessage) or not isinstance(last.content, str):
        return [*messages, HumanMessage(instructions)]
    return [*messages[:-1], HumanMessage(f"{last.content}\n\n{instructions}", id=last.id)]


def _with_raw(answering: Runnable[Any, Any], parser: Any) -> Runnable[Any, Any]:
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=answering) | parsed.with_fallbacks(
        [failed], exception_key="parsing_error"
    )
