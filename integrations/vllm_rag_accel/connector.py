"""The KV connector that vLLM loads by ``kv_connector_module_path``."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rag_accel.errors import ConfigError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.kv.identity import STATES, checkpoint_identity
from vllm_rag_accel.cache_layout import learn_layout
from vllm_rag_accel.claims import ClaimOptions, Claims
from vllm_rag_accel.loading import BlockStates, Loading
from vllm_rag_accel.options import ConnectorOptions
from vllm_rag_accel.prompt_texts import TextFinder
from vllm_rag_accel.rows import VirtualRows
from vllm_rag_accel.step_plan import PromptLoadReport, StepPlan
from vllm_rag_accel.support import check_blocks, check_engine, rotation_frequencies_of
from vllm_rag_accel.worker import rows_refusal

try:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorWorkerMetadata,
        SupportsHMA,
    )
except ImportError as error:
    raise ConfigError(
        "this vLLM has another interface for KV connectors",
        where="vllm_rag_accel.connector",
        found=str(error),
        valid="vLLM 0.32 or 0.33",
        hint="install one of these, or start the server without --kv-transfer-config",
    ) from error


@dataclass(slots=True)
class PlanMetadata(KVConnectorMetadata):
    """The plan of a step, as vLLM carries it from the scheduler to the worker."""

    plan: StepPlan


@dataclass(slots=True)
class LoadMetadata(KVConnectorWorkerMetadata):
    """Reports of loads, as vLLM carries them from the worker to the scheduler."""

    reports: list[PromptLoadReport] = field(default_factory=list[PromptLoadReport])

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Return the reports of both."""
        assert isinstance(other, LoadMetadata)
        return LoadMetadata([*self.reports, *other.reports])


class RagAccelConnector(KVConnectorBase_V1, SupportsHMA):
    """Attention states of retrieved texts for one engine of vLLM.

    Options are read from ``kv_connector_extra_config``, see ``ConnectorOptions``.

    Raises:
        ConfigError: the model, its cache or an option is one for which states cannot be reused.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._options = ConnectorOptions.read(vllm_config)
        check_engine(vllm_config, kv_cache_config)
        model = vllm_config.model_config
        self._identity = checkpoint_identity(
            _checkpoint(model.model, model.revision), model.dtype, how=STATES
        )
        self._claims: Claims | None = None
        self._loading: Loading | None = None
        self._caches: dict[str, torch.Tensor] = {}
        if role == KVConnectorRole.SCHEDULER:
            self._claims = self._new_claims()

    def on_new_request(self, request: Any) -> None:
        """Have a request that is refused computed as a whole."""
        assert self._claims is not None
        self._claims.begun(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens are claimed; loads end before the step that they begin."""
        assert self._claims is not None
        return self._claims.matched(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note that a request is part of the next step."""
        assert self._claims is not None
        self._claims.allocated(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return the plan of a step."""
        assert self._claims is not None
        return PlanMetadata(self._claims.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """Learn what the worker has loaded."""
        assert self._claims is not None
        found = connector_output.kv_connector_worker_meta
        if isinstance(found, LoadMetadata):
            self._claims.loaded(found.reports)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return False, and what the answer says of its texts."""
        assert self._claims is not None
        return False, self._claims.finished(request)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return False, and what the answer says of its texts."""
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the caches of all layers; learn how blocks are laid out."""
        layers = self._layers(kv_caches)
        layout = learn_layout(layers[0], kv_caches[layers[0].layer_name])
        check_blocks(self._config, layout.block)
        blocks = BlockStates(layers, kv_caches, layout)
        frequencies = rotation_frequencies_of(self._config)
        store = self._options.store(self._identity, blocks.dtype)
        rows = self._loading.rows if self._loading is not None else None
        self._caches = kv_caches
        self._loading = Loading(blocks, store, frequencies, rows)

    def unregister_kv_caches(self) -> None:
        """PromptLoad and save nothing until the caches are back."""
        self._caches = {}

    def restore_kv_caches(self, kv_caches: Mapping[str, torch.Tensor] | None = None) -> None:
        """Take the caches again after a sleep."""
        if kv_caches:
            self.register_kv_caches(dict(kv_caches))

    @classmethod
    def supports_sleep_mode(cls, vllm_config: VllmConfig) -> bool:
        """Return True: a slept engine loads nothing."""
        return True

    def bind_runner(self, runner: Any) -> None:
        """Take what computes rows. Called by the worker class once the caches are there."""
        assert self._loading is not None
        self._loading.rows = VirtualRows(self._config, runner, self._options.row_block)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Put the states of the step's requests into their blocks."""
        plan = self._plan()
        if plan is not None and self._loading is not None and self._caches:
            self._loading.load(plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return: all layers are loaded."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: all layers are saved together."""

    def wait_for_save(self) -> None:
        """Keep what the step has computed."""
        plan = self._plan()
        if plan is not None and self._loading is not None and self._caches:
            self._loading.save(plan)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks whose loads failed: their tokens are computed."""
        return set() if self._loading is None else self._loading.take_failed()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Return the reports of loads since the last step."""
        reports = [] if self._loading is None else self._loading.take_reports()
        return LoadMetadata(reports) if reports else None

    def forget_memory(self) -> None:
        """Forget the states in the worker's memory; files stay."""
        if self._loading is not None:
            self._loading.forget()

    def shutdown(self) -> None:
        """End the thread that reads and writes files."""
        if self._loading is not None:
            self._loading.close()

    def _plan(self) -> StepPlan | None:
        if not self.has_connector_metadata():
            return None
        found = self._get_connector_metadata()
        return found.plan if isinstance(found, PlanMetadata) else None

    def _layers(self, caches: Mapping[str, torch.Tensor]) -> list[Any]:
        context = self._config.compilation_config.static_forward_context
        return [context[name] for name in caches]

    def _new_claims(self) -> Claims:
        from vllm.tokenizers.registry import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(self._config.model_config)
        folder = ChunkFolder(self._options.folder)
        options = ClaimOptions(self._identity, self._options.step_rows, rows_refusal(self._config))
        finder = TextFinder(
            lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.decode
        )
        return Claims(finder, lambda key: folder.has_file(folder.name(key)), options)


def _checkpoint(name: str, revision: str | None) -> Path:
    """Return the folder of a model that vLLM has loaded, without asking any server."""
    if os.path.isdir(name):
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision, local_files_only=True))
