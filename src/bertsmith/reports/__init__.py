"""Pictures for people: a corpus, its masks and a run as pages that need no network and no script."""
