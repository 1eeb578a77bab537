"""Documented commands: `make test` checks that they parse, `make test-docs` runs them all."""
