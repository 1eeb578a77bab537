"""The models that come with the package: a checkpoint folder each, beside this file, and a card that tells of it."""
