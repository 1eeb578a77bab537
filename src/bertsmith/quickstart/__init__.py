"""The quickstart: fine-tune a shipped model, and pre-train a small BERT on the docstrings of the installed packages."""
