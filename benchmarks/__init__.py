"""How fast Lehr is, and its peers in the same run."""
