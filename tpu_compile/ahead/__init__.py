"""Programs ahead of time: what a function would run, lowered and compiled without running it.

`recording` notes the graphs of one call, `lowered` makes StableHLO of them, `compiled` asks a
compiler about them; for a chip, that need not be there.
"""
