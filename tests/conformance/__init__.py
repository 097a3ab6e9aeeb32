"""PyTorch's own test data (OpInfo, module_info) through the backend, beside eager PyTorch.

`python -m tests.conformance --help` runs any part of it; `test_conformance.py` is the sample that
CI runs. Only this package imports `torch.testing._internal`.
"""
