"""Fuzzing: models of the tests are changed at random, and run by ovgpu and by OpenVINO in watched processes.

`corpus` has the models, `graphs` and `documents` have the changes, and `mutants` draws them. `workers` has the
processes, and `inference` runs a mutant in one. `verdicts` compares, `explained` lists the known differences,
`reduction` finds the smallest model that still shows a finding, and `findings` stores it as a test.
"""
