"""Small helpers that do not depend on models: files, processes, host memory."""
