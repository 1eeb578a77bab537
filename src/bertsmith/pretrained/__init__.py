"""Models shipped with the package: one checkpoint folder each beside this file, with a model card."""
