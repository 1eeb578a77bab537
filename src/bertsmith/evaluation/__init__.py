"""How good a model is, how sure one may be of that, and what it gets wrong."""
