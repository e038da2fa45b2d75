"""A model that a server of vLLM's runs, over a program that stands in for the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llm_harness import eventually, finish, run, work

from langchain_rag_accel import ChatRagAccel
from llama_index_rag_accel import RagAccelLLM
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.config import Options
from rag_accel.engine_api import ChunkSpan, GenerationInput, Message, PrimitiveKind
from rag_accel.engines import LocalLLM, VllmLLM, VllmOptions
from rag_accel.engines.llm.vllm import server as vllm_server
from rag_accel.engines.llm.vllm.engine import VllmServerEngine
from rag_accel.errors import ConfigError, EngineLostError
from rag_accel.kv.reuse_request import namespace_salt, read_reuse_request

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "vllm_program"
MakeEngine = Callable[..., VllmServerEngine]


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = map(str, (PROGRAM, ROOT, ROOT / "integrations"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def named(model: Any = "model", **bounds: Any) -> VllmLLM:
    return VllmLLM(model, **{"python": sys.executable, **bounds})


@pytest.fixture
def make() -> Iterator[MakeEngine]:
    """Yield a maker of engines, closed after the test."""
    made: list[Any] = []

    def engine(**bounds: Any) -> VllmServerEngine:
        made.append(named(**bounds).resolved({}).make(Options()))
        return made[-1]

    yield engine
    for each in made:
        each.close()


def pid_of(engine: VllmServerEngine) -> int:
    assert engine._server._process is not None
    return engine._server._process.pid


def is_there(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def told(engine: VllmServerEngine) -> Any:
    """Return what the server was started with and has been asked."""
    return json.loads(run(engine, work("told", Message("user", "told"))).value.text)


def test_a_stage_a_chat_model_and_an_llm_share_one_server() -> None:
    graph = RAGraph().add_generation("answer", "Echo: {input}", max_tokens=3)
    graph.add_edge(START, "answer").add_edge("answer", END)
    llm = named(engine_args={"max_model_len": 99})
    with Accelerator(llm=llm) as accelerator:
        assert accelerator.run(graph, input="one") == "Echo: one"
        chat = ChatRagAccel(model=llm.with_named(max_requests=64), accelerator=accelerator)
        assert chat.invoke("two").content == "two"
        assert str(RagAccelLLM(llm, accelerator=accelerator).complete("three")) == "three"
        asked = json.loads(str(chat.invoke("told").content))
        assert len(asked["asked"]) == 4
        assert "vLLM" in chat.explain_on(accelerator)


def test_accelerators_share_a_server_that_ends_with_the_last(make: MakeEngine) -> None:
    first, second = make(), make()
    pid = pid_of(first)
    assert pid_of(second) == pid
    first.close()
    first.close()
    assert run(second, work()).kind == "final"
    second.close()
    assert not is_there(pid)


def test_options_become_arguments_and_the_key_is_none_of_them(
    make: MakeEngine, tmp_path: Path
) -> None:
    bounds = {
        "kv_reuse": "full",
        "kv_folder": str(tmp_path),
        "kv_max_age_s": 9.0,
        "max_requests": 3,
    }
    engine = make(**bounds, max_threads=1, engine_args={"max_model_len": 99, "enforce_eager": True})
    started = told(engine)
    argv = started["argv"]
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    for name, value in (("max-num-seqs", "3"), ("max-model-len", "99"), ("model", "model")):
        assert argv[argv.index(f"--{name}") + 1] == value
    assert "--enforce-eager" in argv
    config = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    extra = config["kv_connector_extra_config"]
    assert extra["folder"] == str(tmp_path)
    assert (extra["memory_bytes"], extra["max_age_s"]) == (1 << 30, 9.0)
    assert started["env"]["OMP_NUM_THREADS"] == "1"
    key = started["env"]["VLLM_API_KEY"]
    assert len(key) > 30
    assert key not in Path(f"/proc/{pid_of(engine)}/cmdline").read_text()


def test_without_reuse_the_server_has_no_connector(make: MakeEngine) -> None:
    argv = told(make())["argv"]
    assert not {"--kv-transfer-config", "--worker-cls", "--no-kv-folder"} & set(argv)
    assert json.loads(argv[argv.index("--override-generation-config") + 1])["temperature"] == 0


def test_a_chat_template_is_given_as_a_file() -> None:
    with Accelerator(llm=named(chat_template="{{ é }}\\n")) as accelerator:
        chat = ChatRagAccel(model=named(chat_template="{{ é }}\\n"), accelerator=accelerator)
        argv = json.loads(str(chat.invoke("told").content))["argv"]
        assert Path(argv[argv.index("--chat-template") + 1]).read_text("utf-8") == "{{ é }}\\n"


def test_a_beginning_is_a_request_of_one_token_under_the_salt_of_the_whole(
    make: MakeEngine,
) -> None:
    engine = make()
    early = work("early", kind=PrimitiveKind.PARTIAL_PREFILLING, namespace="tenant")
    assert run(engine, early).kind == "final"
    assert run(engine, work("whole", namespace="tenant")).kind == "final"
    beginning, whole, _ = told(engine)["asked"]
    assert (beginning["max_tokens"], whole["max_tokens"]) == (1, 4)
    assert beginning["cache_salt"] == whole["cache_salt"] == namespace_salt("tenant")
    assert beginning["priority"] > whole["priority"]


def test_texts_of_prompts_are_named_to_the_server(make: MakeEngine, tmp_path: Path) -> None:
    engine = make(kv_reuse="fused", recompute_ratio=0.5, kv_folder=str(tmp_path))
    payload = GenerationInput(
        (Message("user", "about Bern: what?"),), chunk_spans=(ChunkSpan(0, 6, 10),)
    )
    run(engine, replace(work("texts"), payload=payload))
    asked = told(engine)["asked"]
    wanted = read_reuse_request(asked[0]["kv_transfer_params"])
    assert wanted is not None
    assert (wanted.reuse, wanted.ratio, wanted.texts) == ("fused", 0.5, ("Bern",))
    assert PrimitiveKind.PARTIAL_PREFILLING not in engine.profile.kinds


def test_a_server_that_dies_ends_its_work_and_is_started_again_once(make: MakeEngine) -> None:
    engine = make()
    pid = pid_of(engine)
    engine.submit([work("waits", Message("user", "wait")), work("dies", Message("user", "die"))])
    for output in finish(engine, "waits", "dies"):
        assert isinstance(output.error, EngineLostError)
        assert "the engine core has died" in str(output.error)
    assert engine.health().state == "lost"
    assert run(engine, work("served")).value.text == "what is rag"
    assert engine.health().is_ready
    assert pid_of(engine) != pid
    run(engine, work("dies again", Message("user", "die")))
    error = run(engine, work("late")).error
    assert isinstance(error, EngineLostError)
    assert "close the accelerator" in str(error)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"engine_args": {"fault": "start"}}, "status 1.*no such model"),
        ({"engine_args": {"fault": "silence"}, "start_timeout_s": 1}, "no answer in 1 s"),
        ({"python": "/no/such/python"}, "FileNotFoundError"),
    ],
)
def test_a_server_that_does_not_start_is_an_error_with_its_words(
    bounds: dict[str, Any], says: str
) -> None:
    model = named(**bounds).resolved({})
    with pytest.raises(ConfigError, match=f"(?s){says}.*python="):
        model.make(Options())
    assert model.server._process is None


ENDING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in background
from rag_accel.config import Options
from rag_accel.engines import VllmLLM
engine = VllmLLM("model", python=sys.executable).resolved({}).make(Options())
child = os.fork()
if child == 0:
    engine.close()
    sys.exit(0)
os.waitpid(child, 0)
assert engine.health().is_ready
print(engine._server._process.pid, flush=True)
os.kill(os.getpid(), getattr(signal, sys.argv[1]))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_a_server_ends_with_its_program_and_not_with_a_forked_child(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, name], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -getattr(signal, name), ended.stderr
    pid = int(ended.stdout)
    eventually(lambda: not is_there(pid))


def test_a_port_on_which_another_user_listens_is_not_the_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert vllm_server._is_ours(port)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not vllm_server._is_ours(port)


def test_what_a_component_names_goes_over_the_object_it_holds() -> None:
    held = VllmLLM("model", kv_reuse="full", kv_folder="texts")
    over = held.with_named(kv_reuse="exact", dtype=None)
    assert over.named == {"kv_reuse": "exact", "kv_folder": "texts"}
    assert held.with_named(kv_reuse=None) is held


def test_options_of_the_accelerator_hold_where_none_is_named(tmp_path: Path) -> None:
    with Accelerator(kv_reuse="full", kv_folder=str(tmp_path)) as accelerator:
        bounds: Any = accelerator.local_llms.model(VllmLLM("model")).bounds
        assert (bounds.kv_reuse, bounds.kv_folder) == ("full", str(tmp_path))


def test_equal_models_are_one_until_files_change(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = VllmLLM(tmp_path).resolved({})
    assert VllmLLM(str(tmp_path)).resolved({}) is first
    assert VllmLLM(tmp_path, engine_args={"max_model_len": 9}).resolved({}) is not first
    (tmp_path / "config.json").write_text('{"changed": 1}')
    assert VllmLLM(tmp_path).resolved({}) is not first
    assert not VllmLLM(tmp_path).is_same_model(LocalLLM(tmp_path))


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"kv_reuse": "dependency"}, "exact, full, fused"),
        ({"kv_reuse": "full"}, "kv_folder"),
        ({"max_requests": 0}, "max_requests"),
        ({"pool_bytes": 1.5}, "pool_bytes"),
        ({"recompute_ratio": 2}, "recompute_ratio"),
        ({"start_timeout_s": 0}, "start_timeout_s"),
        ({"kv_recipe": "together"}, "neighbours"),
        ({"engine_args": {"--port": 1}}, "engine_args"),
        ({"engine_args": {"max_num_seqs": 3}}, "max_requests"),
    ],
)
def test_a_bound_out_of_range_is_refused_by_name(bounds: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        VllmOptions(**bounds)


def test_a_bound_of_other_models_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"(?s)runner.*max_requests"):
        ChatRagAccel(model=VllmLLM("model"), runner="torch")
    with pytest.raises(ConfigError, match="tokenizer"):
        RagAccelLLM(VllmLLM("model"), tokenizer=object())


def test_an_engine_of_vllm_in_this_process_is_refused_with_the_command() -> None:
    given = type("LLM", (), {"__module__": "vllm.entrypoints.llm"})()
    refusal = pytest.raises(ConfigError, match=r"vllm_rag_accel\.serve")
    with refusal, Accelerator(llm=given):
        pass
    with pytest.raises(ValueError, match=r"vllm_rag_accel\.serve"):
        RagAccelLLM(given)
    with pytest.raises(ConfigError, match="a folder, or a name on the hub"):
        VllmLLM(given)


def test_without_vllm_the_error_says_what_to_install() -> None:
    with pytest.raises(ImportError, match="python="):
        VllmLLM("model").resolved({}).make(Options())
