"""The fast path on one GPU: CUDA-graph capture, Triton kernels, the fused optimiser."""
