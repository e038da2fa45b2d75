"""The parts of the suite on a language model of this process: prompts, chains and measurements."""
