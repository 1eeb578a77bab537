"""Ratios against peers, both sides in one run: `python -m benchmarks [NAME ...] [key=value ...]`.

texts=FILES vocabulary=vocab.txt     the text, for all that read or pre-train
model=FOLDER                         the weights (a Hugging Face folder) for finetuning, predicting and loading
short=FILE long=FILE short.text=COLUMN ...     labelled texts for finetuning and predicting
device=cuda precision=bf16 rounds=N steps=N batch=N     how finetuning runs
suite=FILE.toml ...                  see scores.py
"""
