"""HTML reports of corpora, masking and training runs: self-contained pages without network access or scripts."""
