"""Conversion of checkpoints: Hugging Face (both ways), TensorFlow BERT, ELMo, word-vector files (both ways), int8 export."""
