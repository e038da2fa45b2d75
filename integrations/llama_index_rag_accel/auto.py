"""LlamaIndex accelerated in this process: ``import llama_index_rag_accel.auto``.

From the import on, everything is scheduled that ``activate()`` would schedule, whatever made it and
when. ``llama_index_rag_accel.switch.switch_off()`` ends it.
"""

from llama_index_rag_accel.switch import switch_on

switch_on()
