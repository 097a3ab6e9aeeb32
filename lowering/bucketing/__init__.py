"""Dims padded to buckets: which positions are real, and what each op does about the others."""
