"""The APIs that are served, a file each: our own, and those of OpenAI, text-embeddings-inference and Cohere."""
