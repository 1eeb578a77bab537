"""The family side by side: every member, the same text, the same budget of multiplications, the same tasks."""
