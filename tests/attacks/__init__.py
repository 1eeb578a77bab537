"""Attacks on the command line: hostile keys, texts, folders and places, deaths at every file operation, signals, full disks.

`python -m tests.attacks [FAMILY ...] [cases=N] [minutes=M] [seed=0] [jobs=2] [out=FILE.md]` runs them, each family for at most
M minutes, and prints a table of what happened; `make test-attacks` runs all. A family is a module with
`build_cases(artifacts, work, count, seed)`, which yields `Case`s, and with `CASES`, their number.
"""
