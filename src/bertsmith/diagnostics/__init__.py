"""Why a corpus or a run is not well: what was seen, what it means, and what to try."""
