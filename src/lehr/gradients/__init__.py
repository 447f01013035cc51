"""Gradients, record by record: their norms and their weighted sums."""
