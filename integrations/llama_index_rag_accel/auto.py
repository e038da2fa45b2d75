"""LlamaIndex accelerated in this process: ``import llama_index_rag_accel.auto``.

Everything is scheduled from then on that ``activate()`` would schedule, until ``switch_off()``.
"""

from llama_index_rag_accel.switch import switch_on

switch_on()
