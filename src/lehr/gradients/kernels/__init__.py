"""The heavy sums of a convolution, for a CPU in torch and for a GPU in Triton."""
