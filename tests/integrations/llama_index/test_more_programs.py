"""Programs modelled on LlamaIndex's tutorials do what they do plainly, and no call passes by."""

from __future__ import annotations

import pytest
from idle_accelerators import soon_idle
from li_more_programs import MORE, evidence

from llama_index_rag_accel import accelerate
from llama_index_rag_accel.coverage import coverage
from rag_accel import Accelerator

# Upstream's agents use what is deprecated in its workflows.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("default_model"),
]


@pytest.mark.parametrize("name", MORE)
def test_an_accelerated_program_does_as_the_plain_one(name: str, accelerator: Accelerator) -> None:
    program = MORE[name]
    bare = program.made()
    plain = evidence(lambda: program.run(bare))
    fast = accelerate(program.made(), accelerator=accelerator)
    with coverage() as meter:
        assert evidence(lambda: program.run(fast)) == plain
    assert meter.rows()
    assert meter.passed_by == 0, str(meter)
    assert soon_idle(accelerator)
