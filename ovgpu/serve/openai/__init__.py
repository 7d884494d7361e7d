"""OpenAI's protocol for models that generate text."""
