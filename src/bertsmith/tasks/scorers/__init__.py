"""Reimplementations of the official scorers, with equal results: SQuAD, CMRC 2018, conlleval and ROUGE."""
