"""A service's own registry has the figures of its accelerators."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rag_accel import Accelerator, ConfigError
from rag_accel.serving.http_metrics import HTTPMetrics, metrics_text
from rag_accel.telemetry.prometheus import register


def lines(text: bytes) -> set[str]:
    return {
        one for one in text.decode().splitlines() if "rag_accel_" in one and "_http_" not in one
    }


def counted(namespace: str = "") -> Accelerator:
    made = Accelerator(namespace=namespace)
    made.metrics.counter("engines", "model#1", "items").add(3)
    made.metrics.histogram("engines", "model#1", "queue_wait_s").observe(0.2)
    return made


def test_the_figures_are_those_of_the_server() -> None:
    registry = CollectorRegistry()
    with counted("a") as accelerator:
        register(accelerator, registry)
        own = generate_latest(registry)
        assert lines(own) == lines(metrics_text(HTTPMetrics(), 0, accelerator, "a"))
    assert b'rag_accel_engine_items_total{engine="model#1",namespace="a"} 3.0' in own


def test_accelerators_of_several_namespaces_share_families() -> None:
    registry = CollectorRegistry()
    with counted("a") as one, counted("b") as other:
        register(one, registry)
        register(other, registry)
        text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    items = families["rag_accel_engine_items"].samples
    assert {sample.labels["namespace"] for sample in items} == {"a", "b"}
    assert text.count("# TYPE rag_accel_engine_items_total") == 1


def test_a_second_accelerator_of_a_namespace_is_refused() -> None:
    registry = CollectorRegistry()
    with counted() as accelerator, counted() as other:
        register(accelerator, registry)
        with pytest.raises(ConfigError, match="registered already"):
            register(accelerator, registry)
        with pytest.raises(ConfigError, match="namespace="):
            register(other, registry)
        register(other, registry, namespace="other")
        register(accelerator, CollectorRegistry())


def test_a_closed_accelerator_is_still_read_and_a_dropped_one_is_not() -> None:
    registry = CollectorRegistry()
    accelerator = counted()
    register(accelerator, registry)
    accelerator.close()
    assert lines(generate_latest(registry))
    del accelerator
    gc.collect()
    assert not lines(generate_latest(registry))
    with counted() as later:
        register(later, registry)
        assert lines(generate_latest(registry))


def run(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_the_package_imports_neither_client() -> None:
    program = (
        "import sys, rag_accel\n"
        "rag_accel.Accelerator().close()\n"
        "print(sorted({'opentelemetry', 'prometheus_client'} & sys.modules.keys()))"
    )
    assert run(program) == "[]"


@pytest.mark.parametrize(
    ("package", "statement", "extra"),
    [
        ("prometheus_client", "import rag_accel.telemetry.prometheus", "prometheus"),
        ("opentelemetry", "rag_accel.Accelerator(telemetry='spans')", "otel"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, statement: str, extra: str
) -> None:
    program = (
        f"import sys, rag_accel\nsys.modules['{package}'] = None\n"
        f"try:\n    {statement}\nexcept ImportError as error:\n    print(error)"
    )
    assert f"pip install 'rag-accel[{extra}]'" in run(program)


def test_what_is_no_accelerator_is_named() -> None:
    with pytest.raises(ConfigError, match="valid: an Accelerator"):
        register("http://localhost", CollectorRegistry())
