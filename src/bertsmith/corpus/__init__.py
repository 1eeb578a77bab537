"""Ids to samples: a mapped store of clean ids, the views that read it, and the masks drawn as it is read."""
