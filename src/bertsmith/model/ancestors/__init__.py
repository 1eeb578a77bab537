"""How vectors of words learn: tables of rows, and the rules by which a few rows at a time are moved."""
