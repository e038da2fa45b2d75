"""The engine over a server of vLLM's that is this process's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_accel.engine_api import Health
from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine
from rag_accel.errors import RemoteEngineError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.kv.locate import parts_of

if TYPE_CHECKING:
    from rag_accel.engines.llm.vllm.vllm_llm import VllmModel

#: A server's end is looked for so often, and every so many seconds, once a connection broke.
_LOOKS, _LOOK_S = 30, 0.1


class VllmServerEngine(OpenAICompatibleEngine):
    """An engine for DECODING over a model's own server, and for beginnings of exact prompts.

    Work that the server's end breaks off ends with ``EngineLostError``; later work starts the
    server again, once.

    Args:
        model: whose server is open; closing this leaves it.
    """

    def __init__(self, model: VllmModel) -> None:
        import httpx2

        self._own, self._server = model, model.server  # an equal model is this one meanwhile
        super().__init__(
            self._server.base_url,
            model.name,
            api_key=self._server.api_key,
            options=model.bounds.remote,
            # Of its own, which asks no proxy of the environment.
            transport=httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None)),
            vllm=model.bounds.told,
            early=not model.reuses_texts,
        )

    def health(self) -> Health:
        """Return whether the server runs; from any thread."""
        fault = self._server.fault
        if not fault:
            return Health(self._model)
        return Health(self._model, "lost", f"vLLM's server has ended: {fault.partition(';')[0]}")

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        """Remove the states of texts of a namespace from the folder; from any thread.

        The server drops those in memory before it uses the folder again.

        Raises:
            OSError: the folder cannot be written.
        """
        folder = self._own.bounds.kv_folder
        if self._own.reuses_texts and folder is not None:
            purge_texts(folder, documents, namespace)

    def close(self) -> None:
        """Drop requests in flight, and end the server with the last of its engines; idempotent."""
        if not self._closed:
            self._server.leave()
            super().close()
            self._server.end_unused()

    async def _answer(self, call: Any, emit: Callable[[str], None]) -> Any:
        if self._server.fault:
            await asyncio.to_thread(self._server.revive)
        try:
            return await super()._answer(call, emit)
        except RemoteEngineError as error:
            if error.status is None and await self._has_ended():
                raise self._server.lost() from error
            raise

    async def _has_ended(self) -> bool:
        """Tell whether the server has ended, soon after its connection broke."""
        for _ in range(_LOOKS):
            if self._server.fault:
                return True
            await asyncio.sleep(_LOOK_S)
        return False


def purge_texts(folder: str, documents: Sequence[str], namespace: str) -> None:
    """Remove the states of texts of a namespace, and of all that have seen one, from a folder."""
    kept = ChunkFolder(Path(folder).expanduser())
    tenant = kept.namespace_digest(namespace)
    texts = {kept.text_digest(part) for text in documents for part in parts_of(text)}
    kept.purge(
        lambda header: header.tag.namespace == tenant and not texts.isdisjoint(header.tag.texts)
    )
