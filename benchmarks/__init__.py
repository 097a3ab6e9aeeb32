"""Speed of the backend beside its peers; see `python -m benchmarks --help`.

Imports run one way: `results` (what was measured, as data), then `harness` (how), `registry` (what
a case is), `peers`, `training` and `zoo` (who runs what), `suites` (the cases), `runner` and
`__main__`. `history`, `reporting` and `report` read results alone and know no case.
"""
