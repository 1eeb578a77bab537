"""The workshop: pages of the runs, corpora, races and compressions below one folder, which are only read.

- `folder`: paths inside the folder, never outside it; what is in it; limits on what is read
- `runs`: a training run as it is now, and the batches it draws
- `charts`: curves of runs, and the tables of `race` and `compress` as charts
- `pages`: the routes; templates/ has their HTML, which live.js reloads while a run trains
- `language`: the words of the pages in Chinese
"""

from .pages import workshop_routes

__all__ = ["workshop_routes"]
