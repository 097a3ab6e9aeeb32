"""Running compiled modules: PJRT clients, buffers, executable caches. Does not know lowering."""
