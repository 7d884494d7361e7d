"""The parts of one inference request: inputs, outputs, their transfers, variables, decoding with a KV cache."""
