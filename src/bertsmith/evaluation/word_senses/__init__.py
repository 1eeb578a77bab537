"""Word sense disambiguation with contextual word vectors, for every layer of a model (`bertsmith show senses`).

- occurrences.py: reads sentences with a marked word and its sense (tables, CoarseWSD-20).
- vectors.py: word vectors of every layer; accuracy of nearest neighbour and nearest centroid.
- charts.py: PCA scatter plots, accuracy tables and charts.
- page.py: evaluates the models and assembles the page.
"""
