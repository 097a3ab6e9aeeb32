"""Programs of ours held against those of JAX: the same models, compiled for chips that need not be.

Each model is written twice, in plain JAX and in plain torch, and both are compiled by one compiler
in one process. What is compared is what that compiler says of its own output: operations, bytes,
estimated cycles. None of it is a measured time.
"""
