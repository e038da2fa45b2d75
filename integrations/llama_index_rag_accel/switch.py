"""Acceleration of LlamaIndex for the rest of this process, on and off."""

# From the module, not from the package: a program may be importing that, which imports the
# framework, whose import may be what switches on.
from llama_index_rag_accel.integration import INTEGRATION

switch_on = INTEGRATION.switch.on
switch_off = INTEGRATION.switch.off
