"""Server of models: KServe v2 over REST and gRPC, with the states of many sequences in batches.

`serve` runs it; ``ovgpu serve`` is its command. It needs ``pip install ".[serve]"``.
"""
