"""A compiled model gives the model's own vectors, follows every change, and tells nobody of it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bfloat16_kit import needs_bfloat16
from embedded_texts import embedded

pytest.importorskip("openvino")
torch = pytest.importorskip("torch")

from rag_accel import ApproximateVectorsWarning  # noqa: E402
from rag_accel.engines.compiled.compiled_forms import CompiledForm  # noqa: E402
from rag_accel.engines.embedding.compiled_model import (  # noqa: E402  # noqa: E402
    EQUAL_FIVES,
    CompiledTransformer,
    NotCompilableError,
    describe,
)
from rag_accel.engines.embedding.engine import SentenceTransformerEngine  # noqa: E402
from rag_accel.engines.rerank.max_sim import MaxSimScorer  # noqa: E402
from rag_accel.engines.torch_threads import thread_count  # noqa: E402

TEXTS = ["a", "Who may cross the bridge in winter?", "word " * 120, "0x7f", "naive cafe, 12.5 %"]
TOLERANCE = 1e-6
PATIENCE_S = 60.0


def compiled_engine(model: Any, **options: Any) -> SentenceTransformerEngine:
    engine = SentenceTransformerEngine(model, **options)
    embedded(engine, ["the first work starts the compilation"])
    runtime = engine.runtime
    assert runtime is not None
    runtime.wait(PATIENCE_S)
    assert runtime.state == "ready", runtime.reason
    return engine


def difference(engine: SentenceTransformerEngine, model: Any, texts: list[str]) -> float:
    return float(np.abs(embedded(engine, texts) - model.encode(texts)).max())


def test_vectors_are_the_models_own_alone_and_together(whole_model: Any) -> None:
    engine = compiled_engine(whole_model)
    assert difference(engine, whole_model, TEXTS) <= TOLERANCE
    for text in TEXTS:
        assert difference(engine, whole_model, [text]) <= TOLERANCE
    assert difference(engine, whole_model, TEXTS * 8) <= TOLERANCE


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_any_grant_gives_the_same_vectors(model: Any, threads: int) -> None:
    engine = compiled_engine(model)
    found = embedded(engine, TEXTS * 30, threads)
    assert np.abs(found - model.encode(TEXTS * 30)).max() <= TOLERANCE


def test_texts_of_many_lengths_and_numbers_run_in_few_shapes(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = compiled_engine(model)
    start, shapes = CompiledForm.start, set[tuple[int, ...]]()

    def noted(form: Any, arrays: list[Any], output: int) -> Any:
        shapes.add(arrays[1].shape)
        return start(form, arrays, output)

    monkeypatch.setattr(CompiledForm, "start", noted)
    for number in range(1, 23):
        texts = ["word " * (5 + (number * place) % 20) for place in range(number)]
        assert difference(engine, model, texts) <= TOLERANCE
    assert len({tokens for count, tokens in shapes if count > 1}) <= 6
    assert {count for count, _ in shapes} <= {1, 2, 3, 4, 6, 8, 12, 16, 24}


def test_texts_as_long_as_the_model_takes_are_not_padded_beyond_that(model: Any) -> None:
    most = model.max_seq_length
    model.max_seq_length = most - 1  # no multiple of what others are padded to
    engine = compiled_engine(model)
    assert difference(engine, model, ["word " * most, "word " * 7]) <= TOLERANCE


def layer(model: Any) -> Any:
    return model[0].model.encoder.layer[0].attention.self.query


def words(model: Any) -> Any:
    return model[0].model.get_input_embeddings()


def negate(module: Any, args: Any, output: Any) -> Any:
    return -output


CHANGES: dict[str, Callable[[Any], object]] = {
    "a weight in place": lambda m: torch.nn.init.normal_(layer(m).weight, std=0.05),
    "a word": lambda m: words(m).weight.data[m.tokenizer.vocab["bridge"]].mul_(-1),
    "all words": lambda m: words(m).weight.data.add_(torch.randn_like(words(m).weight) / 50),
    "a hook": lambda m: layer(m).register_forward_hook(negate),
    "max_seq_length": lambda m: setattr(m, "max_seq_length", 6),
    "a default prompt": lambda m: (
        m.prompts.update(query="Search the river: "),
        setattr(m, "default_prompt_name", "query"),
    ),
    "truncation side": lambda m: setattr(m.tokenizer, "truncation_side", "left"),
    "pooling": lambda m: setattr(m[1], "pooling_mode", "cls"),
    "dimensions": lambda m: setattr(m, "truncate_dim", 64),
}


@pytest.mark.cross_product(keep=3)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_model_never_gives_an_old_vector(
    model: Any, change: Callable[[Any], object]
) -> None:
    engine = compiled_engine(model)
    texts = [*TEXTS, "a first bridge " * 200 + "and a last river " * 200]
    old = model.encode(texts)
    with torch.no_grad():
        change(model)
    new = model.encode(texts)
    assert new.shape != old.shape or np.abs(new - old).max() > 1e-3
    # At once, while it is compiled again, and after that.
    for _ in range(2):
        assert np.abs(embedded(engine, texts) - new).max() <= TOLERANCE
        assert engine.runtime is not None
        engine.runtime.wait(PATIENCE_S)


def test_a_model_of_another_make_is_refused_by_name(model: Any) -> None:
    with pytest.raises(NotCompilableError, match="first module is Sequential"):
        CompiledTransformer(torch.nn.Sequential(torch.nn.Sequential()), 1)
    with pytest.raises(NotCompilableError, match="bfloat16"):
        CompiledTransformer(model.bfloat16(), 1)


def of_modules(*modules: Any) -> Any:
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(modules=list(modules), device="cpu")


def st_module(name: str) -> Any:
    return getattr(pytest.importorskip("sentence_transformers.sentence_transformer.modules"), name)


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize(
    "mode", ["cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
)
def test_other_ways_to_pool_and_a_layer_behind_give_the_models_own_vectors(
    model: Any, mode: str
) -> None:
    torch.manual_seed(0)
    pooling, dense = st_module("Pooling")(96, mode), st_module("Dense")(96, 48)
    whole = of_modules(model[0], pooling, dense, model[2])
    engine = compiled_engine(whole)
    assert difference(engine, whole, TEXTS) <= TOLERANCE
    assert embedded(engine, TEXTS).shape == (len(TEXTS), 48)


def test_word_embeddings_that_are_more_than_a_table_give_the_models_own_vectors(model: Any) -> None:
    class Scaled(torch.nn.Embedding):
        def forward(self, ids: Any) -> Any:
            return 3.0 * super().forward(ids)

    transformer = model[0].model
    words = transformer.get_input_embeddings()
    scaled = Scaled(*words.weight.shape)
    scaled.weight = words.weight
    plain = model.encode(TEXTS)
    transformer.set_input_embeddings(scaled)
    engine = compiled_engine(model)
    assert difference(engine, model, TEXTS) <= TOLERANCE
    assert np.abs(model.encode(TEXTS) - plain).max() > 1e-3


def test_a_module_that_is_not_known_is_refused_by_name(model: Any) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, features: Any) -> Any:
            features["sentence_embedding"] = 2 * features["sentence_embedding"]
            return features

    whole = of_modules(*model.children(), Doubled())
    with pytest.raises(NotCompilableError, match="it has a module Doubled"):
        CompiledTransformer(whole, 1)


def test_prompts_that_are_left_out_of_the_vectors_are_left_out(model: Any) -> None:
    model.set_pooling_include_prompt(False)
    engine = compiled_engine(model, query_kwargs={"prompt": "Search the wide river: "})
    wanted = model.encode(TEXTS, prompt="Search the wide river: ")
    assert np.abs(embedded(engine, TEXTS) - wanted).max() <= TOLERANCE
    assert np.abs(wanted - model.encode(TEXTS)).max() > 1e-3


@pytest.mark.parametrize("kwargs", [{"truncate_dim": 32}, {"normalize_embeddings": True}])
def test_arguments_of_encode_count_on_the_compiled_model(model: Any, kwargs: Any) -> None:
    whole = of_modules(model[0], st_module("Pooling")(96, "mean"))
    engine = compiled_engine(whole, query_kwargs=kwargs)
    wanted = whole.encode(TEXTS, **kwargs)
    found = embedded(engine, TEXTS)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= TOLERANCE


def test_a_model_with_a_hook_is_refused_by_name(model: Any) -> None:
    layer(model).register_forward_hook(negate)
    engine = SentenceTransformerEngine(model)
    assert difference(engine, model, TEXTS) <= TOLERANCE
    assert engine.runtime is not None
    engine.runtime.wait(PATIENCE_S)
    assert engine.runtime.describe() == (
        "runs on torch: one of its modules has a hook or another forward"
    )
    assert difference(engine, model, TEXTS) <= TOLERANCE


@pytest.mark.parametrize("fails_at_once", [True, False])
def test_where_the_compiled_model_fails_the_model_itself_answers(
    model: Any, monkeypatch: pytest.MonkeyPatch, fails_at_once: bool
) -> None:
    engine = compiled_engine(model)

    def fail() -> Any:
        raise RuntimeError("out of memory")

    def start(form: Any, arrays: Any, output: int) -> Callable[[], Any]:
        return fail() if fails_at_once else fail

    monkeypatch.setattr(CompiledForm, "start", start)
    assert difference(engine, model, TEXTS * 9) <= TOLERANCE
    assert engine.runtime is not None
    assert engine.runtime.describe() == "runs on torch: compiled, it failed: out of memory"
    monkeypatch.undo()
    assert difference(engine, model, TEXTS) <= TOLERANCE
    assert engine.runtime.state == "refused"


def test_engines_over_one_model_share_what_was_compiled(model: Any) -> None:
    engine = compiled_engine(model)
    assert SentenceTransformerEngine(model).runtime is engine.runtime
    assert SentenceTransformerEngine(copy.deepcopy(model)).runtime is not engine.runtime


#: The warning of ``int8``, where it is not what a test is about.
unwarned = pytest.mark.filterwarnings("ignore::rag_accel.ApproximateVectorsWarning")


@unwarned
@pytest.mark.parametrize(
    ("runtime", "least"),
    [pytest.param("bf16", 0.999, marks=needs_bfloat16), ("int8", 0.98)],
)
def test_fewer_bits_are_named_and_near(whole_model: Any, runtime: Any, least: float) -> None:
    engine = compiled_engine(whole_model, runtime=runtime)
    found, wanted = embedded(engine, TEXTS), whole_model.encode(TEXTS)
    cosines = (found * wanted).sum(axis=1)
    assert cosines.min() >= least
    assert 1e-4 < np.abs(found - wanted).max() < 0.1  # it really computes in fewer bits
    assert engine.runtime is not None
    assert engine.runtime.describe().startswith(
        f"compiled by OpenVINO, approximate in {runtime}, smallest cosine 0.9"
    )
    assert "once it is used" in describe(whole_model, "auto")


def test_eight_bits_warn_with_what_is_known_of_them(whole_model: Any) -> None:
    model = copy.deepcopy(whole_model)
    with pytest.warns(ApproximateVectorsWarning, match=r"only 62% of 192 questions"):
        engine = SentenceTransformerEngine(model, runtime="int8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = SentenceTransformerEngine(model, runtime="int8")  # another of the same model
    assert engine.runtime is other.runtime


def test_the_share_of_equal_nearest_texts_is_the_measured_one() -> None:
    file = Path(__file__).parents[3] / "bench" / "results" / "embedding_concurrency.json"
    rows = json.loads(file.read_text())["rows"]
    measured = {
        row["system"].rpartition(" ")[2]: (round(row["median"], 2), row["n"])
        for row in rows
        if row["metric"] == "equal_top_5_share"
    }
    assert {name: measured[name] for name in EQUAL_FIVES} == {
        name: (share, 192) for name, share in EQUAL_FIVES.items()
    }


def test_what_runs_a_model_is_said(model: Any) -> None:
    assert describe(model, "torch") == "runs on torch, as asked for"
    assert describe(model, "auto") == "compiled by OpenVINO once it is used"
    engine = compiled_engine(model)
    assert describe(model, "auto") == "compiled by OpenVINO, same vectors within 1e-06"
    engine.close()


def test_a_reranker_gives_the_same_order_compiled(model: Any) -> None:
    pairs = [(query, f"{text} {n}") for query in TEXTS[:2] for text in TEXTS for n in range(9)]
    plain = MaxSimScorer(model, runtime="torch")(pairs)
    compiled_engine(model)
    with thread_count(2):
        found = MaxSimScorer(model)(pairs)
    assert found == pytest.approx(plain, abs=TOLERANCE)
    assert np.argsort(found, kind="stable").tolist() == np.argsort(plain, kind="stable").tolist()


def test_a_reranker_computes_on_all_threads_that_it_is_granted(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled_engine(model)
    scorer = MaxSimScorer(model)  # made for all threads, as the engine is: both share a form
    start, granted = CompiledTransformer.start, set()

    def noted(self: Any, tables: Any, number: int, output: Any) -> Any:
        granted.add(number)
        return start(self, tables, number, output)

    monkeypatch.setattr(CompiledTransformer, "start", noted)
    for threads in (1, 2):
        granted.clear()
        with thread_count(threads):
            texts = [f"{text} {n} of {threads}" for text in TEXTS for n in range(40)]
            scorer([("who crosses?", text) for text in texts])
        assert granted == {threads}


@pytest.mark.processes  # test_runtime.py forks with what stands for a compiled model
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_a_forked_child_gives_the_models_vectors_on_torch(model: Any) -> None:
    program = (
        "import os, numpy as np\n"
        "from rag_accel.engine_api import *\n"
        "from rag_accel.engines.embedding.engine import SentenceTransformerEngine as Engine\n"
        "def embed(engine):\n"
        "    work = EngineRequest(WorkId('w'), '1', PrimitiveKind.EMBEDDING,"
        " TextBatch(('a', 'b c'), 'query'))\n"
        "    engine.submit([work])\n"
        "    while not (found := engine.step(StepBudget(None, 1))): pass\n"
        "    return found[0].value\n"
        "engine = Engine(); embed(engine); engine.runtime.wait(60)\n"
        "assert engine.runtime.state == 'ready'; mine = embed(engine)\n"
        "busy = Engine(engine.model)\n"
        "busy.submit([EngineRequest(WorkId('b'), '2', PrimitiveKind.EMBEDDING,"
        " TextBatch(('word ' * 200,) * 40, 'query'))])\n"
        "busy.step(StepBudget(0.0, 2)); assert len(busy._microbatches)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    found = np.abs(embed(engine) - mine).max() <= 1e-6\n"
        "    del busy\n"
        "    other = Engine(); embed(other)\n"
        "    raise SystemExit(0 if found and 'forked' in engine.runtime.describe() else 3)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


def test_torch_is_what_runs_where_the_user_says_so(model: Any) -> None:
    assert SentenceTransformerEngine(model, runtime="torch").runtime is None
    assert SentenceTransformerEngine(model, reproducible=True).runtime is None


def test_no_telemetry_is_loaded_or_sent() -> None:
    program = (
        "import sys\n"
        "from rag_accel.engines.compiled.compiled_forms import openvino\n"
        "openvino()\n"
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip() == "[]"
