"""The quickstart: fine-tune a shipped model, and take a small BERT from raw text to answers, on what the machine has."""
