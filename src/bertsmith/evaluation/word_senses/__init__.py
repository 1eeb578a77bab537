"""Word senses: the vectors of one word in many sentences, and how well they tell its senses apart."""
