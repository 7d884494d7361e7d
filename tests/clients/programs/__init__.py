"""One module per program; `modes` says what it has."""
