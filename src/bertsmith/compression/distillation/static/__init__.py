"""A static student: a table of token vectors read off an encoder, whose text vector is the mean over the text's tokens.

- recipe: the keys of `student=static`
- table: vectors of the vocabulary, principal components, frequency weights
- sentences: sentences of a corpus, the teacher's vectors of them, and batches
- run: build the table, train it, publish it
"""
