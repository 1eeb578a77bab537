"""Tokenization without torch: reading text files, splitting words and sentences, training and applying tokenizers."""
