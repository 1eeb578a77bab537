"""Benchmarks against other libraries, both measured in one run: `python -m benchmarks [NAME ...] [key=value ...]`.

texts=FILES vocabulary=vocab.txt     the text, for preparing and pre-training
model=FOLDER                         the weights (a Hugging Face folder) for finetuning, predicting and loading
short=FILE long=FILE short.text=COLUMN ...     labelled texts for finetuning and predicting
device=cuda precision=bf16 rounds=N steps=N batch=N     how finetuning runs
suite=FILE.toml ...                  see scores.py
text=FILE valid=FILE size=N ...      see perplexity.py
ways=skip-gram,cbow pairs=FILES ...  see vectors.py
lengths=1024,2048,... kinds=dense,window ...     see scaling.py
reviews=FILE covid=FILE squad=FILE ...     see long_documents.py
"""
