"""Run PyTorch on TPUs: `torch.compile(model, backend="tpu")`."""
