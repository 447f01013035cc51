"""Plans, recommended plans, budgets, the price of a search, the total amount of noise, simulation. Without torch."""

__all__ = ["budget", "plan", "recommendation", "search_cost", "simulation", "tan"]
