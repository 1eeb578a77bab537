"""Other people's checkpoints in, ours out: Hugging Face folders and Google's TensorFlow checkpoints."""
