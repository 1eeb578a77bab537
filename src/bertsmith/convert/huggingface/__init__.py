"""Hugging Face folders, in and out: their config, tensor names, tokenizer and task heads as ours, and back."""
