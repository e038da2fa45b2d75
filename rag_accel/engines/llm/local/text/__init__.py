"""Text in and out: chat templates, token ids, sampling, and stopping."""
