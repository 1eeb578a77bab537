"""Other libraries' words for our keys and kinds are answered with ours."""

import re

import pytest

from bertsmith import cli
from bertsmith.commands import STAGES
from bertsmith.config import iter_keys
from bertsmith.schema import load_stage_schema
from bertsmith.synonyms import KEY_SYNONYMS, KIND_SYNONYMS

PRETRAIN = ("pretrain", "corpus=c", "out=o")
FINETUNE = ("finetune", "task=classify", "model=m", "data.train=t", "out=o")


@pytest.fixture(scope="module")
def known_keys():
    return {re.sub(r"\[.*?\]", "", key.name) for stage in STAGES for key in iter_keys(load_stage_schema(stage))}


def test_every_key_synonym_leads_to_a_key(known_keys):
    unknown = {key for keys in KEY_SYNONYMS.values() for key in keys if key not in known_keys}
    assert not unknown


def test_every_kind_synonym_leads_to_a_kind():
    text = " ".join(f"{key.type_name} {key.name}" for stage in STAGES for key in iter_keys(load_stage_schema(stage)))
    unknown = {kind for kind in KIND_SYNONYMS.values() if not re.search(rf"(?<![\w-]){re.escape(kind)}(?![\w-])", text)}
    assert not unknown


@pytest.mark.parametrize(
    ("command", "key", "ours"),
    [
        (PRETRAIN, "num_train_epochs=3", "train.epochs"),
        (PRETRAIN, "train.num_train_epochs=3", "train.epochs"),
        (PRETRAIN, "lr=1e-4", "train.learning_rate"),
        (PRETRAIN, "alpha=0.025", "train.learning_rate"),
        (FINETUNE, "alpha=32", "lora.lora_alpha"),
        (PRETRAIN, "vector_size=100", "model.hidden_size"),
        (PRETRAIN, "window=5", "objective.window"),
        (PRETRAIN, "negative=5", "objective.negative"),
        (PRETRAIN, "min_n=3", "objective.subwords.min_n"),
        (PRETRAIN, "train.lr=1e-4", "train.learning_rate"),
        (PRETRAIN, "per_device_train_batch_size=8", "train.batch_tokens"),
        (PRETRAIN, "n_layer=2", "model.num_hidden_layers"),
        (PRETRAIN, "model.n_head=2", "model.mixer.num_attention_heads"),
        (PRETRAIN, "model.d_model=64", "model.hidden_size"),
        (PRETRAIN, "max_seq_length=128", "max_length"),
        (PRETRAIN, "masked_lm_prob=0.15", "objective.mlm_probability"),
        (PRETRAIN, "dataloader_num_workers=2", "train.workers"),
        (FINETUNE, "num_warmup_steps=10", "train.warmup_steps"),
        (FINETUNE, "output_dir=x", "out"),
        (FINETUNE, "lora.lora_r=4", "lora.r"),
        (FINETUNE, "max_seq_len=64", "max_length"),
        (FINETUNE, "train.save_steps=10", "train.save_every"),
    ],
)
def test_key_of_another_library_is_answered_with_ours(command, key, ours, capsys):
    assert cli.main([*command, key]) == 2
    assert f"did you mean {ours!r}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        (("finetune", "task=ner", "model=m", "data.train=t", "out=o"), "tag"),
        (("finetune", "task=text-classification", "model=m", "data.train=t", "out=o"), "classify"),
        (("finetune", "task=question-answering", "model=m", "data.train=t", "out=o"), "answer"),
        ((*PRETRAIN, "objective=causal-lm"), "clm"),
        ((*PRETRAIN, "objective=masked-lm"), "mlm"),
        ((*PRETRAIN, "train.optimizer=adam"), "adamw"),
        ((*PRETRAIN, "model.mixer=lsh"), "reformer"),
    ],
)
def test_kind_of_another_library_is_answered_with_ours(arguments, ours, capsys):
    assert cli.main(list(arguments)) == 2
    assert f"did you mean {ours!r}?" in capsys.readouterr().err
