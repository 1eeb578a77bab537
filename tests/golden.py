"""Records what the package computes, so that a refactoring can be shown to change nothing.

    python tests/golden.py record FOLDER [--only files,batches,pretrain,finetune,answers,export,stages]
                                         [--seed 0] [--match TEXT]
    python tests/golden.py compare FOLDER FOLDER [--ignore-names]
    python tests/golden.py commit FOLDER        # writes the hashes of sections files and batches to tests/golden.json

It records whatever `bertsmith` is on the path: `PYTHONPATH=/path/to/src python tests/golden.py record /tmp/old`.
Everything is driven through the command line (`python -m bertsmith STAGE key=value`, in this process), `bertsmith.load`
and files on disk; the one exception is `batches_of` at the end of this file. Floats are bit-equal only on one machine
with one version of torch; hashes of files and batches hold anywhere with the pinned versions.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import random
import runpy
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Settings = str | tuple[str, ...]  # key=value words; a tuple where a value has spaces

SECTIONS = ("files", "batches", "pretrain", "finetune", "answers", "export", "stages")
COMMITTED = ("files", "batches")  # integers and bytes: the same on every machine
COMMITTED_FILE = Path(__file__).with_name("golden.json")

# ---------------------------------------------------------------------------------------------------------------------
# Recipes: the keys of today. A later renaming of recipe keys has to adapt the tables from here to "end of recipes".
# ---------------------------------------------------------------------------------------------------------------------

TOKENIZERS: dict[str, str] = {
    "pieces": "texts=en.txt kind=wordpiece vocab_size=420",
    "pieces-ratio": "texts=en.txt kind=wordpiece vocab_size=300 score=ratio lowercase=false",
    "bpe": "texts=en.txt kind=bpe vocab_size=400",
    "byte-bpe": "texts=en.txt kind=byte-bpe vocab_size=400",
    "unigram": "texts=en.txt kind=unigram vocab_size=300",
    "char": "texts=en.txt kind=char vocab_size=200",
    "byte": "texts=en.txt kind=byte",
    "hex": "texts=payloads.tsv column=payload kind=byte hex=true",
    "word": "texts=en.txt kind=word vocab_size=600",
    "extended": "texts=domain.txt extend=tokenizers/pieces add=20 min_frequency=2",
    "zh-pieces": "texts=zh.txt kind=wordpiece vocab_size=400",
    "zh-char": "texts=zh.txt kind=char vocab_size=300",
    "zh-word": "texts=zh.txt kind=word language=zh vocab_size=300",
}

CORPORA: dict[str, str] = {
    "en": "texts=en.txt tokenizer=tokenizers/pieces",
    "en-drop": 'texts=en.txt tokenizer=tokenizers/pieces drop=["lines","documents"]',
    "en-lines": "texts=en.txt tokenizer=tokenizers/char sentences=lines",
    "en-bpe": "texts=en.txt tokenizer=tokenizers/byte-bpe",
    "en-unigram": "texts=en.txt tokenizer=tokenizers/unigram",
    "word": "texts=en.txt tokenizer=tokenizers/word",
    "domain": "texts=domain.txt tokenizer=tokenizers/extended",
    "hex": "texts=payloads.tsv column=payload tokenizer=tokenizers/hex",
    "zh": "texts=zh.txt tokenizer=tokenizers/zh-pieces language=zh",
    "zh-plain": "texts=zh.txt tokenizer=tokenizers/zh-char",
    "zh-word": "texts=zh.txt tokenizer=tokenizers/zh-word language=zh",
}

MASKS: dict[str, str] = {
    "pieces": "objective.masking=token",
    "whole-words": "objective.masking=whole-word",
    "singly": "objective.masking.kind=whole-word objective.masking.token_masking_share=0.5",
    "spans": "objective.masking.kind=span objective.masking.p=0.3 objective.masking.max_span_length=5",
    "ngrams": "objective.masking.kind=ngram objective.masking.max_ngram=4",
}
VIEWS: dict[str, str] = {
    "windows": "objective.packing=windows",
    "doc-sentences": "objective.packing=doc-sentences",
    "full-sentences": "objective.packing=full-sentences",
    "streams": "objective.packing=streams",
    "streams-across": "objective.packing.kind=streams objective.packing.across=true",
}
PAIRS: dict[str, str] = {
    "next": "objective=mlm-nsp",
    "next-google": "objective.kind=mlm-nsp objective.style=google",
    "next-short": "objective.kind=mlm-nsp objective.short_seq_prob=0.5",
    "order": "objective=mlm-sop",
}


def list_batch_recipes() -> dict[str, tuple[str, str]]:
    """Every way to sample batches from a corpus, by name: the corpus, and the settings of `pretrain`."""
    recipes: dict[str, tuple[str, str]] = {}
    for corpus in ("en", "zh"):
        for mask, mask_settings in MASKS.items():
            for view, view_settings in VIEWS.items():
                recipes[f"{corpus}-masked-{view}-{mask}"] = corpus, f"objective=mlm {view_settings} {mask_settings}"
            for pair, pair_settings in PAIRS.items():
                recipes[f"{corpus}-pairs-{pair}-{mask}"] = corpus, f"objective=mlm-nsp {pair_settings} {mask_settings}"
    for view, view_settings in VIEWS.items():
        recipes[f"causal-{view}"] = "en-bpe", f"objective=clm {view_settings}"
        recipes[f"both-ways-{view}"] = "word", f"objective=bilm {view_settings}"
        if "streams" not in view:
            recipes[f"replaced-{view}"] = "en", f"objective=rtd {view_settings} objective.masking=whole-word"
    recipes["masked-repeats"] = "en", "objective=mlm objective.dupe_factor=2 objective.mlm_probability=0.3"
    recipes["pairs-repeats"] = "en-unigram", "objective=mlm-nsp objective.dupe_factor=2"
    recipes["hex-spans"] = "hex", "objective=mlm objective.packing=doc-sentences objective.masking=span"
    recipes["domain"] = "domain", "objective=mlm objective.masking=whole-word"
    for kind in ("skip-gram", "cbow"):
        recipes[kind] = "word", f"objective={kind} objective.vector_size=8 objective.window=3 objective.sample=0.01"
        recipes[f"{kind}-tree"] = "word", f"objective={kind} objective.vector_size=8 objective.hs=true"
    recipes["glove"] = "word", "objective=glove objective.vector_size=8 objective.window=4"
    recipes["glove-document"] = "word", "objective=glove objective.vector_size=8 objective.window=4 objective.within=document"
    return recipes


BATCH = "max_length=32 train.batch_tokens=256 validation_split=0.1"  # of every batch recipe but those of word vectors
BATCH_NUMBERS = (0, 1, 5, 60)  # 60 lies in a later epoch

STEPS = "train.steps=20 train.log_every=5 train.device=cpu"
LEARN = f"{STEPS} train.batch_tokens=512 train.learning_rate=3e-3 train.warmup_steps=0.1 eval_tokens=1024 validation_split=0.1 max_length=64"
SIZE = "model.num_hidden_layers=2 model.hidden_size=32 model.feedforward.intermediate_size=64 model.max_position_embeddings=64 model.initializer_range=0.1 model.hidden_dropout_prob=0.1"
BARE = "model.hidden_size=32 model.max_position_embeddings=64 model.hidden_dropout_prob=0.1"  # of models without a feed-forward
HEADS = "model.mixer.num_attention_heads=2"
TABLE = "train.device=cpu model.hidden_size=12"  # of word vectors
TINY = f"model=bert-tiny {SIZE} {HEADS} {LEARN}"
NO_POSITIONS = "model.position_embedding_type=none"

PRETRAIN: dict[str, tuple[str, str]] = {
    # objectives
    "bert": ("en", f"{TINY} objective=mlm-nsp"),
    "bert-before": ("en", f"{TINY} objective=mlm-nsp model.norm=pre"),
    "bert-order": ("en", f"{TINY} objective=mlm-nsp objective=mlm-sop objective.masking=ngram"),
    "bert-masked": ("en", f"{TINY} objective=mlm"),
    "bert-zh": ("zh", f"{TINY} objective=mlm-nsp objective.masking.kind=whole-word objective.masking.token_masking_share=0.5"),
    "roberta": ("en-bpe", f"model=roberta-base {SIZE} {HEADS} {LEARN} objective=mlm objective.packing=full-sentences"),
    "distilbert": ("en", f"model=distilbert {SIZE} {HEADS} {LEARN} objective=mlm"),
    "albert": (
        "en",
        f"model=albert-base {SIZE} {HEADS} {LEARN} model.embedding_size=16 objective=mlm-nsp objective=mlm-sop "
        "objective.masking=ngram train.optimizer=lamb",
    ),
    "electra": (
        "en",
        f"model=electra-small {SIZE} {HEADS} {LEARN} model.embedding_size=16 objective=rtd objective.generator_size=0.5",
    ),
    "modernbert": (
        "en",
        f"model=modernbert-mini {SIZE} {HEADS} {LEARN} model.num_hidden_layers=3 model.layer_types.mixer.num_attention_heads=2 model.layer_types.mixer.attention_window=[8] "
        "objective=mlm objective.packing=full-sentences objective.mlm_probability=0.3",
    ),
    "gpt": (
        "en-bpe",
        f"model=gpt {SIZE} {HEADS} {LEARN} model.feedforward.intermediate_size=128 objective=clm train.steps=200",
    ),
    "lstm-projected": ("word", f"model=bilstm {BARE} {LEARN} objective=mlm model.mixer.cell_size=24 model.mixer.cell_clip=3.0"),
    "gpt2": ("en-bpe", f"model=gpt2 {SIZE} {HEADS} {LEARN} objective=clm"),
    "gpt-rarity": (
        "word",
        f"model=gpt2 {SIZE} {HEADS} {LEARN} objective=clm model.embeddings.kind=adaptive model.embeddings.cutoffs=[100,200] "
        "objective.head.kind=adaptive objective.head.cutoffs=[100,200] objective.head.tied=true",
    ),
    "gpt-rarity-head": (
        "word",
        f"model=gpt2 {SIZE} {HEADS} {LEARN} objective=clm objective.head.kind=adaptive objective.head.cutoffs=[100,200]",
    ),
    "elmo": (
        "word",
        f"model=elmo {BARE} {LEARN} objective=bilm model.mixer.cell_size=24 model.embeddings.filters=[[1,16],[2,16]] "
        "model.embeddings.max_characters_per_token=10 model.embeddings.num_highway=1",
    ),
    "taglm": (
        "word",
        f"model=taglm {BARE} {LEARN} objective=bilm model.mixer.cell_size=24 model.embeddings.filters=[[1,16],[2,16]] "
        "model.embeddings.max_characters_per_token=10 model.embeddings.num_highway=1",
    ),
    "nnlm": (
        "word",
        f"model=nnlm {LEARN} objective=clm model.embeddings.embedding_size=8 model.embeddings.intermediate_size=10 model.hidden_size=42 model.hidden_dropout_prob=0.1 "
        "objective.head.transform=false objective.head.tied=false objective.head.bias=true",
    ),
    "skip-gram": ("word", f"{TABLE} objective=skip-gram train.epochs=2 objective.window=3"),
    "skip-gram-tree": ("word", f"{TABLE} objective=skip-gram objective.hs=true train.epochs=2"),
    "skip-gram-subwords": ("word", f"{TABLE} objective=skip-gram objective.subwords.bucket=500 train.epochs=2"),
    "cbow": ("word", f"{TABLE} objective=cbow train.epochs=2 train.batch_tokens=256"),
    "cbow-tree": ("word", f"{TABLE} objective=cbow objective.hs=true train.epochs=2"),
    "cbow-subwords": ("word", f"{TABLE} objective=cbow objective.subwords.bucket=500 train.epochs=2"),
    "glove": ("word", f"{TABLE} objective=glove objective.window=4 train.epochs=4"),
    "glove-document": ("word", f"{TABLE} objective=glove objective.within=document objective.pairs=1000 train.epochs=3"),
    # mixers
    "dense-dropout": ("en", f"{TINY} objective=mlm model.mixer.attention_dropout=0.1"),
    "dense-rotary": (
        "en",
        f"{TINY} objective=mlm {NO_POSITIONS} model.mixer.rope_theta=1000 model.mixer.bias=false model.norm=pre "
        "model.norm_bias=false model.feedforward.glu=true model.feedforward.bias=false",
    ),
    "dense-alibi": ("en", f"{TINY} objective=mlm {NO_POSITIONS} model.mixer.position_bias=alibi"),
    "dense-relative": ("en", f"{TINY} objective=mlm {NO_POSITIONS} model.mixer.position_bias=t5"),
    "dense-relative-apart": (
        "en",
        f"{TINY} objective=mlm {NO_POSITIONS} model.mixer.position_bias.kind=t5 model.mixer.position_bias.shared=false "
        "model.mixer.position_bias.num_buckets=8 model.mixer.position_bias.max_distance=20",
    ),
    "window": ("en", f"{TINY} objective=mlm model.mixer.kind=longformer model.mixer.attention_window=[12]"),
    "window-dilated": (
        "en",
        f"{TINY} objective=mlm model.mixer.kind=longformer model.mixer.attention_window=[8,16] model.mixer.dilation=[2] "
        "model.mixer.dilated_layers=1 model.mixer.attention_dropout=0.1",
    ),
    "window-causal": (
        "en-bpe",
        f"{TINY} objective=clm model.mixer.kind=longformer model.mixer.attention_window=[12] model.mixer.causal=true "
        f"model.mixer.global_attention=false {NO_POSITIONS} model.mixer.rope_theta=1000 model.type_vocab_size=0",
    ),
    "longformer": ("en", f"model=longformer-mini {SIZE} {HEADS} {LEARN} objective=mlm model.mixer.attention_window=[16]"),
    "recurrent": (
        "en-bpe",
        f"model=transformer-xl {SIZE} {HEADS} {LEARN} objective=clm objective.packing=streams model.mixer.mem_len=16 "
        "model.mixer.eval_mem_len=24 model.mixer.attention_dropout=0.1 max_length=24",
    ),
    "recurrent-shared": (
        "en-bpe",
        f"model=transformer-xl-char {SIZE} {HEADS} {LEARN} objective=clm objective.packing.kind=streams "
        "objective.packing.across=true model.mixer.mem_len=16 model.mixer.eval_mem_len=16 model.mixer.tie_biases=true "
        "model.mixer.same_length=true model.mixer.clamp_len=20 max_length=24",
    ),
    "recurrent-masked": (
        "en",
        f"{TINY} objective=mlm objective.packing=streams model.mixer.kind=transformer-xl model.mixer.causal=false "
        f"model.mixer.mem_len=8 {NO_POSITIONS} max_length=24",
    ),
    "adaptive": (
        "en-bpe",
        f"model=adaptive-span {SIZE} {HEADS} {LEARN} objective=clm objective.packing=streams model.mixer.max_span=32 "
        "model.mixer.span_ramp=8 model.mixer.init_span=0.25 max_length=24",
    ),
    "adaptive-masked": (
        "en",
        f"{TINY} objective=mlm model.mixer.kind=adaptive-span model.mixer.max_span=32 model.mixer.span_ramp=8 model.mixer.init_span=0.25 "
        f"{NO_POSITIONS}",
    ),
    "hashed": (
        "en",
        f"{TINY} objective=mlm model.mixer.kind=reformer model.mixer.num_buckets=4 model.mixer.num_hashes=2 model.mixer.bucket_window=8",
    ),
    "hashed-causal": (
        "en-bpe",
        f"{TINY} objective=clm model.mixer.kind=reformer model.mixer.num_buckets=4 model.mixer.num_hashes=2 model.mixer.bucket_window=8 "
        "model.mixer.causal=true model.type_vocab_size=0",
    ),
    "reformer": (
        "en",
        f"model=reformer-mini {SIZE} {HEADS} {LEARN} objective=mlm model.mixer.num_buckets=[2,2] model.mixer.num_hashes=2 "
        "model.mixer.bucket_window=8 model.feedforward.chunk_size=100 model.position_embedding_type.shape=[8,8]",
    ),
    "reversible-halves": (
        "en",
        f"{TINY} objective=mlm model.norm=pre model.reversible=halves model.hidden_size=64",
    ),
    "chunked": (
        "en-bpe",
        f"{TINY} objective=clm model.mixer.kind=reformer-chunked model.mixer.local.chunk_length=8 model.mixer.lsh.chunk_length=8 "
        "model.mixer.num_buckets=4 model.mixer.num_hashes=2 model.mixer.causal=true model.type_vocab_size=0",
    ),
    "chunked-masked": (
        "en",
        f"{TINY} objective=mlm model.mixer.kind=reformer-chunked model.mixer.local.chunk_length=8 model.mixer.local.num_chunks_after=1 "
        "model.mixer.lsh.chunk_length=8 model.mixer.lsh.num_chunks_after=1 model.mixer.num_buckets=4",
    ),
    "long-short": (
        "en",
        f"{TINY} objective=mlm model.mixer.kind=lite-transformer model.mixer.num_filters=2 model.mixer.kernel_sizes=[3,7] "
        "model.mixer.attention_dropout=0.1",
    ),
    "long-short-dynamic": (
        "en",
        f"{TINY} objective=mlm model.mixer.kind=lite-transformer model.mixer.num_filters=2 model.mixer.kernel_sizes=[3,7] "
        f"model.mixer.dynamic=true {NO_POSITIONS} model.mixer.rope_theta=1000",
    ),
    "lite": ("en", f"model=lite-mini {SIZE} {HEADS} {LEARN} objective=mlm model.mixer.num_filters=2"),
    "lstm": ("en", f"model=bilstm {BARE} {LEARN} objective=mlm"),
    "lstm-forward": (
        "word",
        f"model=bilstm {BARE} {LEARN} objective=clm model.mixer.directions=forward model.type_vocab_size=0",
    ),
    "gru": ("word", f"model=bilstm {BARE} {LEARN} objective=mlm model.mixer.cell=gru"),
    "convolution": ("en", f"model=textcnn {BARE} {LEARN} objective=mlm model.mixer.kernel_sizes=[3,5]"),
    "convolution-causal": (
        "word",
        f"model=textcnn {BARE} {LEARN} objective=clm model.mixer.kernel_sizes=[2,3] model.mixer.causal=true "
        "model.mixer.hidden_act=tanh model.type_vocab_size=0",
    ),
    "sinusoid": (
        "en",
        f"{TINY} objective=mlm model.position_embedding_type=sinusoidal model.scale_embeddings=true model.pooling=mean model.pooler_act=none",
    ),
    # optimizers, schedules, ways to run
    "bert-adam": ("en", f"{TINY} objective=mlm train.optimizer=bert-adam train.lr_scheduler_type=constant"),
    "lamb": ("en", f"{TINY} objective=mlm train.optimizer=lamb train.lr_scheduler_type=cosine"),
    "muon": (
        "en",
        f"{TINY} objective=mlm train.optimizer=muon train.lr_scheduler_type=warmup_stable_decay train.decay_fraction=0.5",
    ),
    "slanted": (
        "en",
        f"{TINY} objective=mlm train.lr_scheduler_type=slanted_triangular train.gradient_accumulation_steps=2 train.gradient_checkpointing=true",
    ),
    "inverse-sqrt": (
        "en",
        f"{TINY} objective=mlm train.lr_scheduler_type=inverse_sqrt train.average_checkpoints=3 train.save_every=5 train.save_total_limit=3 "
        "train.eval_every=10",
    ),
    "phases": (
        "en",
        f"{TINY} objective=mlm-nsp objective.dupe_factor=2 max_length=[24,64] phase_fractions=[0.5,0.5] train.weight_decay=0.1 train.max_grad_norm=0.5",
    ),
    "continued": ("domain", f"init=models/bert {LEARN} objective=mlm objective.masking=whole-word"),
    "to-window": (
        "en",
        f"init=models/bert {LEARN} objective=mlm model.mixer.kind=longformer {HEADS} model.mixer.attention_window=[16]",
    ),
    "from-vectors": (
        "word",
        f"model=bilstm {BARE} {LEARN} model.embedding_size=12 objective=mlm vectors=models/skip-gram",
    ),
    "hex": ("hex", f"{TINY} objective=mlm objective.packing=doc-sentences objective.masking=span model.norm=pre"),
}

TASK = "train.device=cpu train.batch_tokens=512 train.learning_rate=3e-3 train.log_every=10 train.steps=60 max_length=32"
ANEW = "model.num_hidden_layers=2 model.hidden_size=32 model.max_position_embeddings=64 model.initializer_range=0.18 model.position_embedding_type=sinusoidal model.scale_embeddings=true"
WRITE = "task.max_target_length=16 task.num_beams=2"
BERT = "model=models/bert-before"
GPT = "model=models/gpt"

# name: the data files (of `write_examples`), and the settings of `finetune`
FINETUNE: dict[str, tuple[str, Settings]] = {
    "classify": ("classify", f"task=classify {BERT} {TASK} train.steps=100"),
    "classify-pair": ("pair", f"task=classify {BERT} {TASK}"),
    "classify-both": ("pair", f"task=classify task.pair=both {BERT} {TASK}"),
    "classify-cross": (
        "pair",
        f"task=classify task.pair.kind=cross task.pair.blocks=1 {BERT} {TASK} train.head_lr_multiplier=5",
    ),
    "classify-many": ("many", f"task=classify task.multi_label=true {BERT} {TASK}"),
    "classify-weights": ("classify", f"task=classify task.class_weights=balanced task.positive=good {BERT} {TASK}"),
    "classify-window": ("long", f"task=classify long_text=window task.doc_stride=16 {BERT} {TASK}"),
    "classify-hierarchical": ("long", f"task=classify long_text=hierarchical task.doc_stride=16 {BERT} {TASK}"),
    "classify-truncate": ("long", f"task=classify long_text=truncate {BERT} {TASK}"),
    "classify-template": (
        "hex",
        (
            *f"task=classify model=models/hex data.columns.text=payload {TASK}".split(),
            "task.template=[direction={direction}] {text}",
        ),
    ),
    "classify-zh": ("zh", f"task=classify model=models/bert-zh {TASK}"),
    "classify-electra": ("classify", f"task=classify model=models/electra {TASK}"),
    "classify-window-mixer": ("classify", f"task=classify model=models/window {TASK}"),
    "classify-hashed-mixer": ("classify", f"task=classify model=models/reformer {TASK}"),
    "classify-gpt": ("classify", f"task=classify {GPT} {TASK} aux_lm_weight=0.5"),
    "classify-textcnn": ("classify", f"task=classify model=textcnn model.hidden_size=30 tokenizer=tokenizers/word {TASK}"),
    "classify-bilstm": ("classify", f"task=classify model=bilstm model.hidden_size=32 tokenizer=tokenizers/word {TASK}"),
    "classify-vectors": (
        "classify",
        f"task=classify model=textcnn model.hidden_size=12 tokenizer=tokenizers/word vectors=models/cbow freeze=embeddings {TASK}",
    ),
    "classify-subwords": ("classify", f"task=classify model=models/skip-gram-subwords {TASK}"),
    "regress": ("regress", f"task=regress {BERT} {TASK}"),
    "regress-pair": ("regress-pair", f"task=regress task.pair=both {GPT} {TASK} aux_lm_weight=0.5"),
    "tag": ("tag", f"task=tag {BERT} {TASK} train.steps=100"),
    "tag-crf": ("tag", f"task=tag task.crf=true task.context=true {BERT} {TASK}"),
    "tag-elmo": (
        "tag",
        (*f"task=tag task.crf=true model=models/elmo freeze=all {TASK}".split(), "features={layers='mix',lstm=1}"),
    ),
    "answer": ("answer", f"task=answer {BERT} {TASK} task.doc_stride=8"),
    "answer-no-answer": ("answer-none", f"task=answer task.no_answer=true {BERT} {TASK}"),
    "answer-cmrc": ("answer-zh", f"task=answer task.scorer=cmrc model=models/bert-zh {TASK}"),
    "choose": ("choose", f"task=choose {BERT} {TASK}"),
    "similar-scores": ("similar-scores", f"task=similar {BERT} {TASK}"),
    "similar-pairs": ("similar-pairs", f"task=similar {BERT} {TASK}"),
    "similar-negatives": ("similar-negatives", f"task=similar task.pooling=cls {BERT} {TASK}"),
    "generate-attention": (
        "generate",
        f"task=generate {WRITE} decoder=transformer tokenizer=tokenizers/word {ANEW} {HEADS} model.feedforward.intermediate_size=64 {TASK} "
        "train.steps=200",
    ),
    "generate-recurrent": (
        "generate",
        f"task=generate {WRITE} decoder=rnn model=bilstm model.num_hidden_layers=1 model.hidden_size=32 model.hidden_dropout_prob=0.0 "
        f"model.initializer_range=0.2 tokenizer=tokenizers/word {TASK} train.learning_rate=1e-2 "
        "train.steps=200",
    ),
    "generate-general": (
        "generate",
        f"task=generate {WRITE} decoder.kind=rnn decoder.score=general decoder.cell=lstm tokenizer=tokenizers/word "
        f"{ANEW} {HEADS} model.feedforward.intermediate_size=64 {TASK} train.average_checkpoints=2 train.save_every=5 train.lr_scheduler_type=inverse_sqrt",
    ),
    "generate-bert2bert": ("generate", f"task=generate {WRITE} decoder=transformer {BERT} {TASK}"),
    "generate-shared": ("generate", f"task=generate {WRITE} decoder.kind=transformer decoder.shared=true {BERT} {TASK}"),
    "generate-unilm": ("generate", f"task=generate {WRITE} {BERT} {TASK}"),
    "after-classify": ("classify", f"task=classify model=models/bert {TASK} train.steps=20"),  # norms after, to be exported
    "after-tag": ("tag", f"task=tag model=models/bert {TASK} train.steps=20"),
    "after-answer": ("answer", f"task=answer model=models/bert {TASK} train.steps=20"),
    "after-choose": ("choose", f"task=choose model=models/bert {TASK} train.steps=20"),
    "after-regress": ("regress", f"task=regress model=models/bert {TASK} train.steps=20"),
    "lora": (
        "classify",
        f"task=classify {BERT} {TASK} lora.r=4 lora.lora_alpha=8 lora.lora_dropout=0.1 lora.target_modules=all",
    ),
    "lora-attention": ("tag", f"task=tag {BERT} {TASK} lora.r=2"),
    "features-concat": ("classify", f"task=classify {BERT} {TASK} freeze=all features.layers=concat features.last=2"),
    "features-sum": ("tag", f"task=tag {BERT} {TASK} freeze=all features.layers=sum features.last=2 features.lstm=1"),
    "features-mix": ("tag", f"task=tag {BERT} {TASK} features.layers=mix"),
    "freeze-one": ("classify", f"task=classify {BERT} {TASK} freeze=1"),
    "gradual": (
        "classify",
        f"task=classify {BERT} {TASK} train.gradual_unfreezing=0.5 train.layer_lr_decay=0.385 train.lr_scheduler_type=slanted_triangular",
    ),
    "steady": (
        "classify",
        f"task=classify {BERT} {TASK} rdrop=1.0 adversary=fgm adversary.epsilon=0.1 train.layer_lr_decay=0.9 train.early_stopping_patience=2 "
        "train.eval_every=10",
    ),
    "fgm": ("classify", f"task=classify {BERT} {TASK} adversary=fgm adversary.epsilon=0.1"),
    "pgd": (
        "classify",
        f"task=classify {BERT} {TASK} adversary=pgd adversary.epsilon=0.1 adversary.steps=2 adversary.step_size=0.06",
    ),
    "rdrop": ("tag", f"task=tag {BERT} {TASK} rdrop=1.0"),
    "scratch": ("classify", f"task=classify {BERT} {TASK} random_init=true hidden_dropout_prob=0.3 train.optimizer=muon"),
    "seeds": ("classify", f"task=classify {BERT} {TASK} seeds=[0,1] metric_for_best_model=accuracy train.steps=20"),
}

GENERATE: dict[str, str] = {  # ways a causal model writes on
    "greedy": "generate=greedy generate.max_new_tokens=12",
    "greedy-repeat": "generate=greedy generate.max_new_tokens=12 generate.no_repeat_ngram_size=2",
    "sample": "generate=sample generate.max_new_tokens=12 generate.seed=3",
    "sample-top": "generate=sample generate.max_new_tokens=12 generate.top_k=20 generate.top_p=0.9 generate.temperature=1.3",
    "beam": "generate=beam generate.max_new_tokens=10 generate.num_beams=3",
    "beam-alpha": "generate=beam generate.max_new_tokens=10 generate.num_beams=2 generate.length_penalty=0 generate.no_repeat_ngram_size=2",
}

WRITERS = ("gpt", "gpt2", "recurrent", "adaptive", "window-causal", "hashed-causal", "gpt-rarity", "lstm-forward", "chunked")
EMBEDDERS = ("bert", "bert-zh", "albert", "window-dilated", "reformer", "long-short-dynamic", "elmo", "skip-gram-subwords")

# name: the folder, and the settings of `export`
EXPORT: dict[str, tuple[str, str]] = {
    "bert": ("models/bert", "format=hf"),
    "roberta": ("models/roberta", "format=hf"),
    "albert": ("models/albert", "format=hf"),
    "distilbert": ("models/distilbert", "format=hf"),
    "electra": ("models/electra", "format=hf"),
    "gpt": ("models/gpt", "format=hf"),
    "gpt2": ("models/gpt2", "format=hf"),
    "longformer": ("models/longformer", "format=hf"),
    "classify": ("tasks/after-classify", "format=hf"),
    "tag": ("tasks/after-tag", "format=hf"),
    "answer": ("tasks/after-answer", "format=hf"),
    "choose": ("tasks/after-choose", "format=hf"),
    "regress": ("tasks/after-regress", "format=hf"),
}
PACKED = ("models/bert", "models/gpt", "tasks/classify")
NOT_EVALUATED = ("classify-subwords",)  # `evaluate` fails on words that only n-grams spell (IndexError in slices, 765d9ca)
CONVERT_LONG = "max_length=128 attention_window=[16]"

RUN = "train={steps=12,batch_tokens=512,learning_rate=3e-3,device='cpu'}"
CLASSIFY_FILES = "data={train='data/classify-train.jsonl',dev='data/classify-dev.jsonl'}"
TAG_FILES = "data={train='data/tag-train.jsonl',dev='data/tag-dev.jsonl'}"
MEMBER = (
    "num_hidden_layers=2,hidden_size=32,max_position_embeddings=64,initializer_range=0.1,feedforward={intermediate_size=64}"
)

# name: the stage, the models it needs, and its settings
STAGES: dict[str, tuple[str, tuple[str, ...], Settings]] = {
    "plan-base": ("plan", (), "model=bert-base train.steps=1000 train.precision=bf16 machine=h200"),
    "plan-window": ("plan", (), "model=longformer-base objective=mlm max_length=2048 train.steps=1000 machine=h200"),
    "plan-albert": ("plan", (), "model=albert-base train.steps=1000 train.optimizer=lamb machine=h200"),
    "plan-gpt": ("plan", (), "model=gpt2 objective=clm max_length=512 train.steps=1000 train.optimizer=muon machine=h200"),
    "plan-electra": (
        "plan",
        (),
        "model=electra-small objective=rtd train.steps=1000 train.gradient_checkpointing=true machine=h200",
    ),
    "plan-reformer": ("plan", (), "model=reformer-mini objective=mlm max_length=1024 train.steps=1000 machine=h200"),
    "suite": (
        "suite",
        ("bert-before", "window"),
        (
            "models={bert='models/bert-before',window={model='models/window',random_init=true}}",
            f"tasks={{mood={{task='classify',{CLASSIFY_FILES}}},names={{task='tag',{TAG_FILES},metrics=['f1']}}}}",
            f"every={{max_length=32,{RUN}}}",
            "seeds=[0,1]",
        ),
    ),
    "race": (
        "race",
        (),
        (
            *['texts=["en.txt"]', 'valid=["domain.txt"]', "seeds=[0]", "budget.flops=2e9", "budget.epochs=5"],
            "tokenizer={kind='wordpiece',vocab_size=400}",
            f"every={{max_length=32,eval_tokens=1024,train={{batch_tokens=512,learning_rate=3e-3,device='cpu'}},model={{{MEMBER}}}}}",
            f"frozen={{max_length=32,freeze='all',features={{layers='mix'}},{RUN}}}",
            f"tuned={{max_length=32,{RUN}}}",
            f"tasks={{mood={{task='classify',{CLASSIFY_FILES}}}}}",
            "members={bert={objective='mlm-nsp',model={mixer={kind='attention',num_attention_heads=2}}},"
            "gpt={objective='clm',model={mixer={kind='attention',num_attention_heads=2,causal=true}}},"
            "words={objective={kind='skip-gram',vector_size=32},tokenizer={kind='word',vocab_size=500}},"
            "none={untrained=true,model={mixer={kind='attention',num_attention_heads=2}}}}",
        ),
    ),
    "doctor-model": ("doctor", ("bert",), "folder=models/bert corpus=corpora/en"),
    "doctor-corpus": ("doctor", ("bert",), "folder=corpora/en"),
}

# ---------------------------------------------------------------------------------------------------------------------
# end of recipes
# ---------------------------------------------------------------------------------------------------------------------

# left out of JSON files and results: dates, versions, paths, timings, command lines, and what names a recipe
VOLATILE = frozenset(
    {"identity", "settings", "command", "versions", "version", "date", "seconds", "tokens_per_second", "out"}
    | {"recipe", "transformers_version", "_name_or_path"}
)


# text


def choose(rng: random.Random, options: "list[Any] | str") -> Any:
    """A uniform choice with `random.random`, whose stream is the same in all versions of Python."""
    return options[int(rng.random() * len(options))]


def choose_skewed(rng: random.Random, options: "list[Any] | str") -> Any:
    """A choice that favours the first options."""
    return options[int(rng.random() ** 2.5 * len(options))]


COMMON = "the of and to in a is that it was for on are as with his they at be this people water one two way made"


def invent_words(seed: int) -> list[str]:
    rng = random.Random(seed)
    words = dict.fromkeys(COMMON.split())
    while len(words) < 220:
        stem = "".join(choose(rng, "bcdfglmnprstvw") + choose(rng, "aeiou") for _ in range(1 + int(rng.random() * 3)))
        words[stem + choose(rng, ["", "", "n", "s", "ing", "ed", "er", "ly", "é"])] = None
    return list(words)


def follow_words(rng: random.Random, words: list[str], size: int) -> list[str]:
    """Words of which two in three are determined by the one before, so that there is something to learn."""
    index = int(rng.random() ** 2.5 * len(words))
    indices = [index]
    while len(indices) < size:
        index = (index * 5 + 3) % len(words) if rng.random() < 0.66 else int(rng.random() ** 2.5 * len(words))
        indices.append(index)
    return [words[i] for i in indices]


def write_sentence(rng: random.Random, words: list[str], max_words: int = 16) -> str:
    size = 3 + int(rng.random() * (max_words - 3))
    chosen = follow_words(rng, words, size)
    if rng.random() < 0.2:
        chosen[size // 2] += ","
    if rng.random() < 0.1:
        chosen.append(str(int(rng.random() * 2000)))
    return " ".join(chosen).capitalize() + choose(rng, "....?!")


def write_english(documents: int, seed: int, words: list[str]) -> str:
    """Documents of 1 to 10 lines, with some duplicate lines and documents."""
    rng, texts, lines = random.Random(seed), list[str](), list[str]()
    for number in range(documents):
        new = [write_sentence(rng, words) for _ in range(1 + int(rng.random() * 10))]
        lines += new
        if number % 9 == 8:
            new.append(choose(rng, lines))
        texts.append(texts[number // 2] if number % 13 == 12 else "\n".join(new))
    return "\n\n".join(texts) + "\n"


CHINESE_TEXT = """
我们 他们 中国 北京 上海 今天 明天 学生 老师 学校 喜欢 研究 生命 起源 经济 发展 社会 科学 技术 电脑 手机 朋友 家庭 音乐
电影 图书馆 天气 非常 美丽 城市 历史 文化 语言 模型 训练 数据 问题 答案 时间 工作
的 是 在 了 和 有 不 人 这 大 来 上 个 到 说 为
"""
CHINESE = CHINESE_TEXT.split()


def write_chinese_sentence(rng: random.Random) -> str:
    words = [str(choose_skewed(rng, CHINESE)) for _ in range(3 + int(rng.random() * 9))]
    if rng.random() < 0.2:
        words[1] += "，"
    return "".join(words) + choose(rng, "。。。？！")


def write_chinese(documents: int, seed: int) -> str:
    rng = random.Random(seed)
    texts = ["\n".join(write_chinese_sentence(rng) for _ in range(1 + int(rng.random() * 8))) for _ in range(documents)]
    return "\n\n".join(texts) + "\n"


def write_texts(seed: int) -> None:
    """All text files, into the working directory."""
    words = invent_words(seed + 1)
    Path("en.txt").write_text(write_english(120, seed + 2, words), encoding="utf-8")
    Path("domain.txt").write_text(write_english(40, seed + 3, [*words[:30], "zebrafish", "quokka", "xylem"]), encoding="utf-8")
    Path("zh.txt").write_text(write_chinese(90, seed + 4), encoding="utf-8")
    rows = ["payload\tdirection\tlabel"]
    rng = random.Random(seed + 5)
    for _ in range(120):
        loud, direction = rng.random() < 0.5, choose(rng, "cs")
        data = bytes([0xFF if loud else 1, *(int(rng.random() * 256) for _ in range(3 + int(rng.random() * 20)))])
        rows.append(f"{data.hex()}\t{direction}\t{'loud' if loud else 'soft'}-{direction}")
    Path("payloads.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")


# examples of tasks


def classify_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    good = rng.random() < 0.4
    text = write_sentence(rng, words, 10)
    return {"text": f"{text} {'people' if good else 'water'}", "label": "good" if good else "bad"}


def pair_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    same, first = rng.random() < 0.5, choose(rng, ["people", "water"])
    second = first if same else {"people": "water", "water": "people"}[first]
    texts = [f"{write_sentence(rng, words, 7)} {word}" for word in (first, second)]
    return {"text": texts[0], "text_b": texts[1], "label": str(same)}


def many_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    chosen = [word for word in ("people", "water", "way") if rng.random() < 0.4]
    return {"text": " ".join([write_sentence(rng, words, 8), *chosen]), "label": "|".join(chosen)}


def long_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    row = classify_row(rng, words)
    return row | {"text": " ".join([write_sentence(rng, words, 30), write_sentence(rng, words, 30), row["text"]])}


def regress_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    row = classify_row(rng, words)
    return {"text": row["text"], "label": 2.0 * (row["label"] == "good") + round(rng.random(), 3) / 4}


def regress_pair_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    row = pair_row(rng, words)
    return row | {"label": float(row["label"] == "True")}


def tag_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    tokens = [str(choose_skewed(rng, words)) for _ in range(5 + int(rng.random() * 6))]
    tags = ["O"] * len(tokens)
    start = int(rng.random() * (len(tokens) - 2))
    tokens[start : start + 2], tags[start : start + 2] = ["john", "smith"], ["B-PER", "I-PER"]
    if rng.random() < 0.7:
        tokens[-1], tags[-1] = choose(rng, ["paris", "london"]), "B-LOC"
    return {"tokens": tokens, "tags": tags}


def choose_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    right, options = int(rng.random() * 3), [write_sentence(rng, words, 6) for _ in range(3)]
    options[right] += " people"
    return {"context": write_sentence(rng, words, 9), "options": options, "label": right}


def zh_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    good = rng.random() < 0.5
    return {"text": write_chinese_sentence(rng) + ("喜欢" if good else "问题"), "label": "好" if good else "坏"}


def similar_scores_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    row = pair_row(rng, words)
    return {"text": row["text"], "text_b": row["text_b"], "score": 1.0 + 4.0 * (row["label"] == "True")}


def similar_pairs_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    text = write_sentence(rng, words, 8)
    return {"text": text, "text_b": text.lower() + " way"}


def similar_negatives_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    return similar_pairs_row(rng, words) | {"negative": write_sentence(rng, words, 8)}


def generate_row(rng: random.Random, words: list[str]) -> dict[str, Any]:
    chosen = [str(choose(rng, words[:12])) for _ in range(1 + int(rng.random() * 4))]
    return {"source": " ".join(chosen), "target": " ".join(reversed(chosen))}


def answer_paragraph(rng: random.Random, words: list[str], number: int, kind: str) -> dict[str, Any]:
    if kind == "answer-zh":
        tokens = [str(choose(rng, CHINESE)) for _ in range(12)]
        answer, question, context = "图书馆", "在哪里", "".join([*tokens[:6], "图书馆", *tokens[6:]])
    else:
        tokens = [word for word in (str(choose_skewed(rng, words)) for _ in range(14)) if word != "water"]
        answer, question, context = "water", "what is made", " ".join([*tokens[:5], "water", *tokens[5:]])
    question_entry: dict[str, Any] = {"id": str(number), "question": question}
    if kind == "answer-none" and rng.random() < 0.4:
        context = context.replace(answer, "way")
        question_entry |= {"answers": [], "is_impossible": True}
    else:
        question_entry |= {"answers": [{"text": answer, "answer_start": context.index(answer)}]}
        question_entry |= {"is_impossible": False} if kind == "answer-none" else {}
    return {"context": context, "qas": [question_entry]}


ROWS: dict[str, Callable[[random.Random, list[str]], dict[str, Any]]] = {
    "classify": classify_row,
    "pair": pair_row,
    "many": many_row,
    "long": long_row,
    "regress": regress_row,
    "regress-pair": regress_pair_row,
    "tag": tag_row,
    "choose": choose_row,
    "zh": zh_row,
    "similar-scores": similar_scores_row,
    "similar-pairs": similar_pairs_row,
    "similar-negatives": similar_negatives_row,
    "generate": generate_row,
}
SQUAD = ("answer", "answer-none", "answer-zh")
COUNTS = {"train": 300, "dev": 24}


def name_examples(kind: str, split: str) -> str:
    """The file of these examples."""
    if kind == "hex":
        return "payloads.tsv"
    if split == "dev" and kind.startswith("similar"):
        kind = "similar-scores"
    return f"data/{kind}-{split}.{'json' if kind in SQUAD else 'jsonl'}"


def write_examples(seed: int) -> None:
    words = invent_words(seed + 1)
    Path("data").mkdir(exist_ok=True)
    for split, count in COUNTS.items():
        rng = random.Random(f"{seed} {split}")
        for kind, make_row in ROWS.items():
            lines = [json.dumps(make_row(rng, words), ensure_ascii=False) + "\n" for _ in range(count)]
            Path(f"data/{kind}-{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        for kind in SQUAD:
            paragraphs = [answer_paragraph(rng, words, number, kind) for number in range(count)]
            squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
            Path(f"data/{kind}-{split}.json").write_text(json.dumps(squad, ensure_ascii=False), encoding="utf-8")


# driving the package


class StageError(RuntimeError):
    """A stage that ended with another exit code than 0."""


def run_stage(stage: str, *settings: Settings) -> dict[str, Any]:
    """`python -m bertsmith STAGE key=value ... --json --quiet` in this process; what it prints as JSON.

    If a setting is given twice, the last one wins.
    """
    words = [word for group in settings for word in (group.split() if isinstance(group, str) else group)]
    unique = {word.partition("=")[0]: word for word in words}
    stdout, stderr, argv_before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["bertsmith", stage, *unique.values(), "--json", "--quiet"]
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            runpy.run_module("bertsmith", run_name="__main__", alter_sys=True)
    except SystemExit as done:
        if done.code and not (stage == "doctor" and done.code == 1):  # 1: problems were found
            raise StageError(f"{' '.join(sys.argv)}: {stderr.getvalue().strip()[-600:]}") from None
    finally:
        sys.argv = argv_before
    lines = stdout.getvalue().splitlines()
    return json.loads(lines[-1]) if lines else {}


def without_volatile(value: Any) -> Any:
    """JSON without dates, versions, paths, timings and command lines."""
    if isinstance(value, dict):
        return {name: without_volatile(inner) for name, inner in value.items() if name not in VOLATILE}
    return [without_volatile(item) for item in value] if isinstance(value, list | tuple) else value


def hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def hash_array(array: NDArray[Any] | None) -> str:
    if array is None:
        return "none"
    array = np.ascontiguousarray(array)
    return f"{array.dtype.str}{list(array.shape)}:{hash_bytes(array.tobytes())}"


def hash_json(value: Any) -> str:
    return hash_bytes(json.dumps(without_volatile(value), sort_keys=True, ensure_ascii=False).encode())


def hash_folder(folder: Path) -> dict[str, str]:
    """Hash of every file but the manifest (checksums of the others); card.json without volatile values."""
    hashes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"):
        name = path.relative_to(folder).as_posix()
        hashes[name] = hash_bytes(path.read_bytes())
        if path.name == "card.json":
            hashes[name] = hash_json(json.loads(path.read_text(encoding="utf-8")))
    return hashes


def read_tensors(folder: Path) -> Arrays:
    from safetensors.numpy import load_file

    tensors: Arrays = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    if not tensors:
        raise FileNotFoundError(f"no tensors in {folder}")
    return tensors


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# records


@dataclass
class Record:
    """Results of one item: hashes of bytes and integers, to_plain values (compared exactly, floats too), and tensors."""

    hashes: dict[str, str] = field(default_factory=dict)
    values: Any = None
    tensors: Arrays = field(default_factory=dict)


def to_plain(value: Any) -> Any:
    """The value in types that JSON represents exactly."""
    if isinstance(value, dict):
        return {str(name): to_plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


@dataclass
class Recorder:
    """Runs items in the working directory; models that an item needs are trained on first use."""

    seed: int = 0
    match: str = ""
    failed: dict[str, str] = field(default_factory=dict)

    def prepare_folder(self) -> None:
        write_texts(self.seed)
        write_examples(self.seed)

    def make_tokenizer(self, name: str) -> Path:
        folder = Path("tokenizers") / name
        if not folder.exists():
            if "tokenizers/pieces" in TOKENIZERS[name]:
                self.make_tokenizer("pieces")
            run_stage("tokenizer", TOKENIZERS[name], f"out={folder}")
        return folder

    def make_corpus(self, name: str) -> Path:
        folder = Path("corpora") / name
        if not folder.exists():
            words = dict(word.split("=", 1) for word in CORPORA[name].split())
            self.make_tokenizer(Path(words["tokenizer"]).name)
            run_stage("prepare", CORPORA[name], f"workers=1 out={folder}")
        return folder

    def make_needed(self, settings: Settings) -> None:
        """Make the model and tokenizer folders that these settings refer to."""
        for word in settings.split() if isinstance(settings, str) else settings:
            folder = Path(word.partition("=")[2])
            if folder.parent == Path("models"):
                self.make_model(folder.name)
            if folder.parent == Path("tokenizers"):
                self.make_tokenizer(folder.name)

    def make_model(self, name: str) -> Path:
        folder, (corpus, settings) = Path("models") / name, PRETRAIN[name]
        if not (folder / "config.json").exists():
            self.make_needed(settings)
            self.reset_seeds()
            result = run_stage("pretrain", f"corpus={self.make_corpus(corpus)}", settings, f"out={folder} seed={self.seed}")
            (folder.parent / f"{name}.result.json").write_text(json.dumps(result))
        return folder

    def make_task(self, name: str) -> Path:
        folder, (kind, settings) = Path("tasks") / name, FINETUNE[name]
        if not (folder / "config.json").exists():
            self.make_needed(settings)
            self.reset_seeds()
            files = f"data.train={name_examples(kind, 'train')} data.dev={name_examples(kind, 'dev')}"
            result = run_stage("finetune", settings, files, f"out={folder} seed={self.seed}")
            (folder.parent / f"{name}.result.json").write_text(json.dumps(result))
        return folder

    def reset_seeds(self) -> None:
        """Seed the global generators, for anything sampled without a seed of its own."""
        import torch

        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)

    def list_items(self, section: str) -> Iterator[tuple[str, Callable[[], Record]]]:
        sections: dict[str, Callable[[], Iterator[tuple[str, Callable[[], Record]]]]] = {
            "files": self.list_files,
            "batches": self.list_batches,
            "pretrain": self.list_pretrain,
            "finetune": self.list_finetune,
            "answers": self.list_answers,
            "export": self.list_export,
            "stages": self.list_stages,
        }
        return sections[section]()

    def record_section(self, section: str, out: Path) -> None:
        from safetensors.numpy import save_file

        items, tensors, section_start, count = dict[str, Any](), Arrays(), time.monotonic(), 0
        for name, record_item in self.list_items(section):
            if self.match not in name:
                continue
            count, item_start = count + 1, time.monotonic()
            self.reset_seeds()
            try:
                record = record_item()
                items[name] = {"hashes": record.hashes} if record.hashes else {}
                items[name] |= {} if record.values is None else {"values": to_plain(record.values)}
                items[name] |= {"tensors": len(record.tensors)} if record.tensors else {}
                tensors |= {f"{name}|{key}": np.ascontiguousarray(array) for key, array in record.tensors.items()}
            except Exception as error:  # one that fails must not stop the others
                items[name] = {"error": f"{type(error).__name__}: {error}"}
                self.failed[f"{section}/{name}"] = items[name]["error"]
            seconds = time.monotonic() - item_start
            if seconds > 3 or count % 20 == 0:
                print(f"  {section}: {count} items, {name} took {seconds:.1f} s", file=sys.stderr, flush=True)
        (out / f"{section}.json").write_text(json.dumps(items, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if tensors:
            save_file(tensors, out / f"{section}.safetensors")
        print(f"{section}: {count} items, {len(tensors)} tensors, {time.monotonic() - section_start:.0f} s", flush=True)

    # section files

    def list_files(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        for name in TOKENIZERS:
            yield f"tokenizer-{name}", lambda name=name: Record(hash_folder(self.make_tokenizer(name)))
        for name in CORPORA:
            yield f"corpus-{name}", lambda name=name: Record(hash_folder(self.make_corpus(name)))

    # section batches

    def list_batches(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        for name, (corpus, settings) in list_batch_recipes().items():
            yield name, lambda corpus=corpus, settings=settings: self.record_batches(corpus, settings)

    def record_batches(self, corpus: str, settings: str) -> Record:
        words = ["corpus=" + str(self.make_corpus(corpus)), "out=none", f"seed={self.seed}", *settings.split()]
        words += [] if "objective.vector_size" in settings else BATCH.split()  # word vectors train on the whole corpus
        batches = batches_of(words, BATCH_NUMBERS)
        return Record({f"{k} {name}": hash_array(array) for k, arrays in batches.items() for name, array in arrays.items()})

    # section pretrain

    def list_pretrain(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        for name in PRETRAIN:
            yield name, lambda name=name: self.record_model(self.make_model(name))
        yield "convert-long", self.record_long

    def record_model(self, folder: Path) -> Record:
        values = {"result": without_volatile(json.loads((folder.parent / f"{folder.name}.result.json").read_text()))}
        if (folder / "metrics.jsonl").exists():
            values["metrics"] = without_volatile(read_lines(folder / "metrics.jsonl"))
        return Record(values=values, tensors=read_tensors(folder))

    def record_long(self) -> Record:
        self.make_model("bert")
        run_stage("convert-long", f"model=models/bert out=models/bert-long {CONVERT_LONG}")
        return Record(tensors=read_tensors(Path("models/bert-long")))

    # section finetune

    def list_finetune(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        for name in FINETUNE:
            yield name, lambda name=name: self.record_task(name)

    def record_task(self, name: str) -> Record:
        """Weights, scores, predictions of the command line, and the fitted task of config.json (thresholds, labels)."""
        folder, kind = self.make_task(name), FINETUNE[name][0]
        record = self.record_model(folder)
        data, answers = name_examples(kind, "dev"), Path("tasks") / f"{name}.answers.jsonl"
        run_stage("predict", f"model={folder} data={data} out={answers} device=cpu precision=fp32")
        record.values["answers"] = without_volatile(read_lines(answers))
        if name not in NOT_EVALUATED:
            evaluation = run_stage("evaluate", f"model={folder} data={data} device=cpu precision=fp32")
            record.values["evaluate"] = {
                part: evaluation[part] for part in ("scores", "confidence_intervals") if part in evaluation
            }
        record.values["task"] = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("task")
        return record

    # section answers

    def list_answers(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        yield (
            "mini-en",
            lambda: self.record_shipped("mini-en", "He opened the [MASK] and [MASK] in.", "A [MASK] day.", "en.txt"),
        )
        yield "mini-zh", lambda: self.record_shipped("mini-zh", "北京是中[MASK]的首[MASK]。", "今天天[MASK]很好。", "zh.txt")
        yield "mini-en-words", self.record_word_queries
        for name in WRITERS:
            yield f"generate-{name}", lambda name=name: self.record_generation(name)
        for name in EMBEDDERS:
            yield f"embed-{name}", lambda name=name: self.record_embedding(name)
        for name in ("classify", "classify-pair", "tag-crf", "answer", "choose", "regress", "generate-attention"):
            yield f"load-{name}", lambda name=name: self.record_loaded(name)

    def read_sentences(self, file: str, count: int) -> list[str]:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line][:count]

    def load_model(self, folder: str | Path) -> Any:
        import bertsmith

        return bertsmith.load(folder, device="cpu", precision="fp32")

    def record_shipped(self, name: str, several: str, one: str, file: str) -> Record:
        model, texts = self.load_model(name), self.read_sentences(file, 6)
        candidates = ["happy", "sunny", "rainy"] if file == "en.txt" else ["气", "空", "色"]
        values = {
            "fill": model.fill(several, top_k=5),
            "iterative": model.fill(several, top_k=3, iterative=True),
            "candidates": model.fill(one, candidates=candidates),
            "likelihood": model.likelihood(texts[:3]),
            "nearest": model.nearest(texts[:2], texts, top_k=3),
            "called": model(one),
        }
        return Record(values=values, tensors={"mean": model.embed(texts), "first": model.embed(texts, pooling="cls")})

    def record_word_queries(self) -> Record:
        """`embed` as a stage: words near a word, an analogy, vectors written to a file."""
        data = Path("data/texts.txt")
        data.write_text("\n".join(self.read_sentences("en.txt", 5)) + "\n", encoding="utf-8")
        base = "model=mini-en device=cpu precision=fp32"
        run_stage("embed", f"{base} data={data} out=data/vectors.npy")
        run_stage("embed", f"{base} data={data} documents={data} top_k=2 out=data/nearest.jsonl")
        values = {
            "word": without_volatile(run_stage("embed", f"{base} word=house top_k=4")),
            "analogy": without_volatile(run_stage("embed", f'{base} analogy=["man","woman","king"] top_k=4')),
            "nearest": read_lines(Path("data/nearest.jsonl")),
        }
        return Record(values=values, tensors={"vectors": np.load("data/vectors.npy")})

    def record_generation(self, name: str) -> Record:
        folder = self.make_model(name)
        prompts = Path(f"data/prompts-{name}.txt")
        prompts.write_text(
            "\n".join(["The people", "A way of", *self.read_sentences("domain.txt", 2)]) + "\n", encoding="utf-8"
        )
        values: dict[str, Any] = {}
        for method, settings in GENERATE.items():
            answers = Path(f"data/{name}-{method}.jsonl")
            run_stage("predict", f"model={folder} data={prompts} out={answers} device=cpu precision=fp32", settings)
            values[method] = read_lines(answers)
        values["likelihood"] = self.load_model(folder).likelihood(self.read_sentences("en.txt", 3))
        return Record(values=values)

    def record_embedding(self, name: str) -> Record:
        folder = self.make_model(name)
        texts = self.read_sentences("zh.txt" if name.endswith("zh") else "en.txt", 6)
        model = self.load_model(folder)
        return Record(values=model.nearest(texts[0], texts, top_k=3), tensors={"mean": model.embed(texts)})

    def record_loaded(self, name: str) -> Record:
        """Predictions through the Python API, with all fields."""
        model, kind = self.load_model(self.make_task(name)), FINETUNE[name][0]
        path = Path(name_examples(kind, "dev"))
        if kind in SQUAD:
            paragraphs = json.loads(path.read_text(encoding="utf-8"))["data"][0]["paragraphs"][:6]
            rows = [{"question": paragraph["qas"][0]["question"], "context": paragraph["context"]} for paragraph in paragraphs]
        else:
            input_keys = {"text", "text_b", "tokens", "context", "options", "source"}
            rows = [{key: value for key, value in row.items() if key in input_keys} for row in read_lines(path)[:6]]
        if set(rows[0]) in ({"text"}, {"source"}):
            return Record(values=model([next(iter(row.values())) for row in rows]))
        return Record(values=model(rows))

    # section export

    def list_export(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        for name in EXPORT:
            yield f"hf-{name}", lambda name=name: self.record_export(name)
        for folder in PACKED:
            yield f"packed-{Path(folder).name}", lambda folder=folder: self.record_packed(folder)
        yield "vectors", self.record_vectors

    def make_folder(self, folder: str) -> Path:
        path = Path(folder)
        return self.make_model(path.name) if path.parent == Path("models") else self.make_task(path.name)

    def record_export(self, name: str) -> Record:
        """Tensors of the exported Hugging Face folder, and of the checkpoint imported from it."""
        folder, settings = EXPORT[name]
        out, imported = Path("hf") / name, Path("imported") / name
        result = run_stage("export", f"model={self.make_folder(folder)} out={out}", settings)
        run_stage("import", f"source={out} out={imported}")
        tensors = {f"hf {key}": array for key, array in read_tensors(out).items()}
        tensors |= {f"imported {key}": array for key, array in read_tensors(imported).items()}
        config = without_volatile(json.loads((out / "config.json").read_text(encoding="utf-8")))
        hashes = {"vocabulary": hash_bytes((out / "tokenizer.json").read_bytes())}
        return Record(hashes, {"config": config, "result": without_volatile(result)}, tensors)

    def record_packed(self, folder: str) -> Record:
        out = Path("packed") / Path(folder).name
        run_stage("export", f"model={self.make_folder(folder)} out={out} format=int8")
        texts = self.read_sentences("en.txt", 4)
        return Record(tensors=read_tensors(out) | {"embed": self.load_model(out).embed(texts)})

    def record_vectors(self) -> Record:
        self.make_model("cbow")
        hashes = {}
        for name in ("vectors.txt", "vectors.bin", "vectors.npy"):
            run_stage("export", f"model=models/cbow format=vectors out=data/cbow-{name}")
            hashes[name] = hash_bytes(Path(f"data/cbow-{name}").read_bytes())
        run_stage("import", "source=data/cbow-vectors.bin out=imported/cbow")
        return Record(hashes, tensors=read_tensors(Path("imported/cbow")))

    # section stages

    def list_stages(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        for name in STAGES:
            yield name, lambda name=name: self.record_stage(name)

    def record_stage(self, name: str) -> Record:
        """JSON output of a stage that evaluates, counts or compares."""
        stage, models, settings = STAGES[name]
        for model in models:
            self.make_model(model)
        out = f"out=stages/{name}" if stage in ("suite", "race") else ""
        return Record(values=without_volatile(run_stage(stage, settings, out)))


def record(out: Path, sections: "tuple[str, ...] | list[str]" = SECTIONS, seed: int = 0, match: str = "") -> dict[str, str]:
    """Record these sections into a folder; returns the errors by item."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    print(f"recording {Path(importlib.util.find_spec('bertsmith').origin).parent}", flush=True)  # type: ignore[union-attr, arg-type]
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work, recorder, start = Path(tempfile.mkdtemp(prefix="golden-")), Recorder(seed, match), time.monotonic()
    try:
        with contextlib.chdir(work):
            recorder.prepare_folder()
            for section in sections:
                recorder.record_section(section, out)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(work, ignore_errors=True)
    print(f"recorded in {time.monotonic() - start:.0f} s; {len(recorder.failed)} items failed", flush=True)
    for name, error in recorder.failed.items():
        print(f"FAILED {name}: {error}", flush=True)
    return recorder.failed


# comparing


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves of nested JSON by their path."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return {leaf_path: leaf for name, child in inner for leaf_path, leaf in flatten(child, f"{path}/{name}").items()} or {
            path: str(value)
        }
    return {path: value}


def measure_difference(first: Any, second: Any) -> float:
    """The largest absolute difference of two numbers or arrays, inf if they cannot be compared."""
    are_numeric = isinstance(first, int | float | np.ndarray) and isinstance(second, int | float | np.ndarray)
    if not are_numeric or np.shape(first) != np.shape(second):
        return float("inf")
    if not np.size(first):
        return 0.0
    return float(np.max(np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64))))


def is_same(first: Any, second: Any) -> bool:
    """Bit for bit."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    return type(first) is type(second) and repr(first) == repr(second)


def key_of(value: Any) -> tuple[str, str]:
    return ("tensor", hash_array(value)) if isinstance(value, np.ndarray) else ("value", repr(value))


def read_section(folder: Path, section: str) -> dict[str, dict[str, Any]]:
    """Items by name; each maps the paths of its hashes, values and tensors to them."""
    from safetensors.numpy import load_file

    path = folder / f"{section}.json"
    if not path.exists():
        return {}
    items = {name: flatten(item_json) for name, item_json in json.loads(path.read_text(encoding="utf-8")).items()}
    if (tensors := folder / f"{section}.safetensors").exists():
        for name, array in load_file(tensors).items():
            item, _, key = name.partition("|")
            items[item][f"/tensor/{key}"] = array
    return items


def compare_items(first: dict[str, Any], second: dict[str, Any], ignore_names: bool) -> list[str]:
    """One line per difference."""
    if ignore_names:
        counts = Counter(map(key_of, first.values())), Counter(map(key_of, second.values()))
        lost, new = counts[0] - counts[1], counts[1] - counts[0]
        return [f"{sum(lost.values())} values are gone, {sum(new.values())} are new"] if lost or new else []
    lines = [f"{name} is only in the first" for name in first.keys() - second.keys()]
    lines += [f"{name} is only in the second" for name in second.keys() - first.keys()]
    for name in first.keys() & second.keys():
        if not is_same(first[name], second[name]):
            difference = measure_difference(first[name], second[name])
            values_text = f"{str(first[name])[:80]!r} / {str(second[name])[:80]!r}"
            lines.append(f"{name}: {values_text if difference == float('inf') else f'max abs difference {difference:.3g}'}")
    return sorted(lines)


def compare(first: Path, second: Path, ignore_names: bool = False) -> bool:
    """Print a line per section and per differing item; returns whether all is equal."""
    same = True
    for section in SECTIONS:
        left, right = read_section(first, section), read_section(second, section)
        if not left and not right:
            continue
        lines = [f"{name}: only in one of the two" for name in sorted(left.keys() ^ right.keys())]
        for name in sorted(left.keys() & right.keys()):
            if differing := compare_items(left[name], right[name], ignore_names):
                lines.append(f"{name}: {len(differing)} differences: " + "; ".join(differing[:4]))
        errors = sum("/error" in item for item in right.values())
        values = sum(len(item) for item in right.values())
        state = f"{len(lines)} items DIFFER" if lines else "same"
        print(f"{section}: {state} ({len(right)} items, {values} values, {errors} errors)")
        for line in lines:
            print(f"  {line}")
        same = same and not lines
    return same


def commit(folder: Path, target: Path = COMMITTED_FILE) -> None:
    """Write the machine-independent hashes, to be committed to git."""
    hashes = {section: summarize(json.loads((folder / f"{section}.json").read_text(encoding="utf-8"))) for section in COMMITTED}
    target.write_text(json.dumps(hashes, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def summarize(items: dict[str, Any]) -> dict[str, Any]:
    """Hashes by item; an item with many is reduced to one hash."""
    return {name: item["error"] if "error" in item else shorten(item["hashes"]) for name, item in items.items()}


def shorten(hashes: dict[str, str]) -> Any:
    return hashes if len(hashes) < 12 else hash_json(hashes)


def pin_machine() -> None:
    """One thread, no GPU; before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def main() -> int:
    pin_machine()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record_parser = commands.add_parser("record")
    record_parser.add_argument("out", type=Path)
    record_parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    record_parser.add_argument("--seed", type=int, default=0, help="another one must make `compare` fail")
    record_parser.add_argument("--match", default="", help="only items whose name has this text")
    compare_parser = commands.add_parser("compare")
    compare_parser.add_argument("first", type=Path)
    compare_parser.add_argument("second", type=Path)
    compare_parser.add_argument(
        "--ignore-names", action="store_true", help="compare the multiset of values, where names changed"
    )
    commit_parser = commands.add_parser("commit")
    commit_parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        sections = arguments.only.split(",")
        if unknown := set(sections) - set(SECTIONS):
            parser.error(f"no such section: {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")
        return 1 if record(arguments.out, sections, arguments.seed, arguments.match) else 0
    if arguments.command == "compare":
        return 0 if compare(arguments.first, arguments.second, arguments.ignore_names) else 1
    commit(arguments.folder)
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# Internals of the package: the only place that imports them, to be adapted when they are renamed.
# ---------------------------------------------------------------------------------------------------------------------


def batches_of(settings: list[str], indices: tuple[int, ...]) -> dict[int, Arrays]:
    """Batches of a `pretrain` recipe (key=value words) by index: every array of each, under names of this script."""
    import torch

    from bertsmith.corpus.store import Corpus
    from bertsmith.objectives.word2vec import WordVectorObjective
    from bertsmith.pretraining.setup import PretrainRecipe, split_corpus
    from bertsmith.recipes import read_recipe

    recipe = read_recipe(PretrainRecipe, None, settings)
    corpus = Corpus.open(Path(recipe.corpus))
    if not isinstance(recipe.objective, WordVectorObjective):
        documents, _, _ = split_corpus(recipe, corpus)
        batches = recipe.objective.build_batches(
            corpus, documents, recipe.max_length[0], recipe.train.batch_tokens, recipe.seed
        )
        arrays = {}
        for k in indices:
            batch = batches(k)
            arrays[k] = {
                "tokens": batch.input_ids,
                "lengths": batch.lengths,
                "segments": batch.token_type_ids,
                "positions": batch.output_indices,
                "targets": batch.target_ids,
                "labels": batch.labels,
                "streams": batch.stream_positions,
            }
        return arrays
    with tempfile.TemporaryDirectory() as folder:
        trainer = recipe.objective.build_trainer(
            corpus, Path(folder), 100, recipe.seed, torch.device("cpu"), lambda done, of: None
        )
        if not hasattr(trainer, "_load_pairs"):  # skip-gram and cbow: chunks of text, windows, noise
            chunks = {k: trainer.shards(k)[0] for k in indices}
            return {
                k: {"tokens": chunk.context_ids.numpy(), "windows": chunk.extents.numpy(), "negatives": chunk.noise_ids.numpy()}
                for k, chunk in chunks.items()
            }
        arrays = {}
        for k in indices:  # glove: pairs of words and their counts
            rows, columns, counts = trainer._load_pairs(k % trainer.num_parts, k)
            arrays[k] = {"rows": rows.numpy(), "columns": columns.numpy(), "counts": counts.numpy()}
        return arrays


if __name__ == "__main__":
    sys.exit(main())
