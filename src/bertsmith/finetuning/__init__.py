"""Fine-tuning: recipe, examples, model setup and freezing, seq2seq models, the run, several seeds; `suite` runs many."""
