"""The official scorers of tasks, each equal to the original: SQuAD, CMRC, conlleval and ROUGE."""
