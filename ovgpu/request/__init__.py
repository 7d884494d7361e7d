"""The parts of an inference request: inputs, outputs, their transfers, variables, decoding with a KV cache."""
