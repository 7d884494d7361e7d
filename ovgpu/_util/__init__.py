"""Small helpers that know nothing of models: files, processes, memory of the host."""
