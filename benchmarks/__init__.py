"""Speed of the backend beside its peers; see `python -m benchmarks --help`."""
