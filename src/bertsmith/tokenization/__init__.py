"""Characters to ids: reading, cutting, vocabularies and tokenizers, without torch."""
