"""The public plan of a run, budgets, the price of a search, the total amount of noise, simulation. Without torch."""

__all__ = ["budget", "plan", "search_cost", "simulation", "tan"]
