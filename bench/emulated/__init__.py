"""An LLM device that is emulated in time, for benchmarks and tests."""
