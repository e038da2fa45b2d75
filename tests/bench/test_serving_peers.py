"""The suite against others' batching runs all arms, and names those that cannot run."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_huggingface")
pytest.importorskip("transformers")

import tiny_chat
from fake_runner import tokenizer
from tokenizers import processors

from bench.baselines import token_peers
from bench.baselines.token_peers import TokenPeer
from bench.local_llm.answers import OURS, Arm
from bench.local_llm.peers import INT8_PEERS, PEERS, PeerError, opened
from bench.local_llm.prompts import Prompts
from bench.results import SuiteResult, as_json, from_json
from bench.suites import ratio_definitions, serving_peers
from rag_accel_demo.load import Load

pytestmark = pytest.mark.filterwarnings("ignore::rag_accel.errors.UncheckedWeightsWarning")

TEXTS = (
    "The height of Mount Fuji is 3776 metres, said the guide to those who came along.",
    "A crane lifts loads by a rope over a pulley, and lets them down by the same rope.",
    "The filter of the pump is cleaned every month, or when the water no longer comes.",
)
TINY = serving_peers.Sizes(
    users=2, prompt=(40, 60), tokens=5, turns=1, exact_tokens=6, alone_turns=1
)
#: Speaks as the real script does, and answers by transformers.
STAND_IN = """
import json, sys, time
import torch, transformers
dtype = {"bf16": torch.bfloat16}.get(sys.argv[2], torch.float32)
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked, started = json.loads(line), time.perf_counter()
    answers = [
        model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=asked["tokens"],
            do_sample=False,
            eos_token_id=asked["eos"],
            pad_token_id=asked["eos"],
        )[0, len(ids):].tolist()
        for ids in asked["prompts"]
    ]
    wall_s = time.perf_counter() - started
    told = {"answers": answers, "latencies_s": [wall_s] * len(answers), "wall_s": wall_s}
    print(json.dumps(told), flush=True)
"""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> serving_peers.Material:
    path: Path = tmp_path_factory.mktemp("tiny-model")
    tiny_chat.model().save_pretrained(path)
    # The chat template is rendered to text and read as a text: nothing is to be put before it.
    plain = copy.deepcopy(tokenizer())
    plain.backend_tokenizer.post_processor = processors.Sequence([])
    plain.save_pretrained(path)
    return serving_peers.Material(str(path), TEXTS)


@pytest.fixture(scope="module")
def found(
    material: serving_peers.Material, tmp_path_factory: pytest.TempPathFactory
) -> SuiteResult:
    script: Path = tmp_path_factory.mktemp("stand-in") / "peer.py"
    script.write_text(STAND_IN)
    with pytest.MonkeyPatch.context() as patch:
        stand_in = TokenPeer(Path(sys.executable), Path(material.folder), script)
        patch.setattr(token_peers, "GENAI", dict.fromkeys(token_peers.GENAI, stand_in))
        patch.setattr(token_peers, "LLAMA_CPP", stand_in)
        return serving_peers.run(True, TINY, material)


@pytest.mark.bench
def test_every_opponent_is_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    systems = {OURS, serving_peers.EXACT, *PEERS, *INT8_PEERS}
    assert {row.system for row in found.rows} == systems
    assert not [row for row in found.rows if row.metric == "missing"]


def test_tokens_are_equal_up_to_the_first_that_differs() -> None:
    prompts = Prompts(tokenizer(), TEXTS)
    text = TEXTS[0]
    assert prompts.equal_share(text, text) == 1.0
    half = prompts.count(text[: len(text) // 2])
    cut = tokenizer().decode(tokenizer()(text, add_special_tokens=False)["input_ids"][:half])
    assert prompts.equal_share(cut, text) == pytest.approx(half / prompts.count(text))
    assert prompts.equal_share(f"A {text}", text) == 0.0


@contextmanager
def failing(*_: Any) -> Iterator[Arm]:
    def answer(asked: Any) -> Load:
        raise ArithmeticError("no\nsuch kernel")

    yield answer


def test_an_opponent_is_closed_where_an_answer_of_it_fails() -> None:
    ended: list[bool] = []

    @contextmanager
    def opens(*_: Any) -> Iterator[Arm]:
        with failing() as arm:
            try:
                yield arm
            finally:
                ended.append(True)

    with pytest.raises(PeerError, match="no such kernel"), opened(opens, None, 1, 1) as arm:  # type: ignore[arg-type]
        arm([])
    assert ended == [True]
