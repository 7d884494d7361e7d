"""Fuzzing: models of the tests are changed at random, and run by ovgpu and by OpenVINO in watched processes.

`corpus` has the models, `graphs` and `documents` the changes, `mutants` draws them. `inference` is what a worker does
with a mutant, `workers` are the processes. `verdicts` compares, `explained` lists the known differences, `reduction`
finds the smallest model that still shows a finding, and `kept` keeps those as tests.
"""
