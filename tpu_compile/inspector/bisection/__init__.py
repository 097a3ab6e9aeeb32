"""What `bisect` does: eager PyTorch and our programs compared node by node, on real tensors.

`walk` runs both, `node_programs` makes the programs of single nodes, `tolerances` and `ties` say
what may differ, `interpreter` asks StableHLO's own as the third witness; `findings` is the outcome.
"""
