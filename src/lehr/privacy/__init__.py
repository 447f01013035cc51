"""What touches private records: randomness, sampling, clipping and noise, each with its proof beside it."""
