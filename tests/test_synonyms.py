"""Other libraries' words for our keys and kinds are answered with ours."""

import re

import pytest

from bertsmith import cli
from bertsmith.commands import STAGES
from bertsmith.config import RecipeError, iter_keys
from bertsmith.recipes import read_recipe
from bertsmith.schema import load_stage_schema
from bertsmith.synonyms import KEY_SYNONYMS, KIND_SYNONYMS, TASK_COMMANDS

PRETRAIN = ("pretrain", "corpus=c", "out=o")
FINETUNE = ("finetune", "task=classify", "model=m", "data.train=t", "out=o")


@pytest.fixture(scope="module")
def known_keys():
    return {re.sub(r"\[.*?\]", "", key.name) for stage in STAGES for key in iter_keys(load_stage_schema(stage))}


def test_every_key_synonym_leads_to_a_key(known_keys):
    unknown = {key for keys in KEY_SYNONYMS.values() for key in keys if key.partition("=")[0] not in known_keys}
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


RECIPES_FROM_MEMORY = {  # written with transformers' names alone
    "pretraining": (
        "pretrain",
        {
            "task": "fill-mask", "train_dataset": "out/corpus", "output_dir": "out/bert", "model_type": "bert-base-uncased",
            "num_hidden_layers": "4", "hidden_size": "256", "num_attention_heads": "4", "intermediate_size": "1024",
            "hidden_act": "gelu_new", "attention_probs_dropout_prob": "0.1", "max_seq_length": "128", "mlm_probability": "0.15",
            "per_device_train_batch_size": "8192", "learning_rate": "1e-4", "adam_epsilon": "1e-6", "max_steps": "1000",
            "warmup_ratio": "0.1", "lr_scheduler_type": "constant_with_warmup", "optim": "adamw_torch", "bf16": "true",
            "logging_steps": "50", "save_steps": "500", "dataloader_num_workers": "2", "seed": "1",
        },
    ),
    "text classification": (
        "finetune",
        {
            "task": "text-classification", "model_name_or_path": "mini-en", "train_file": "train.tsv",
            "validation_file": "dev.tsv",
            "output_dir": "out/mood", "num_train_epochs": "3", "per_device_train_batch_size": "2048", "learning_rate": "2e-5",
            "weight_decay": "0.01", "max_seq_length": "128", "eval_steps": "100", "load_best_model_at_end": "accuracy",
            "gradient_accumulation_steps": "2", "fp16": "true", "report_to": "tensorboard",
        },
    ),
    "named entities": (
        "finetune",
        {
            "task": "ner", "model_name_or_path": "mini-en", "train_file": "train.conll", "validation_file": "dev.conll",
            "output_dir": "out/names", "num_train_epochs": "5", "max_seq_length": "256",
            "lora_r": "8", "lora_alpha": "16", "target_modules": "all", "warmup_ratio": "0.06", "max_grad_norm": "1.0",
            "optim": "adamw_hf", "no_cuda": "true", "use_crf": "true", "lr_scheduler_type": "linear",
        },
    ),
    "question answering": (
        "finetune",
        {
            "task": "question-answering", "model_name_or_path": "mini-en", "train_file": "train.json",
            "predict_file": "dev.json",
            "output_dir": "out/answers", "version_2_with_negative": "true", "doc_stride": "64", "max_query_length": "32",
            "max_answer_length": "20", "n_best_size": "5", "null_score_diff_threshold": "0.5", "num_train_epochs": "2",
            "max_seq_length": "384", "save_total_limit": "2", "logging_steps": "10", "bf16": "true", "torch_compile": "true",
        },
    ),
    "generation": (
        "predict",
        {
            "model_name_or_path": "out/gpt", "inputs": "Once upon a time", "max_new_tokens": "30", "do_sample": "true",
            "temperature": "0.8", "top_p": "0.9", "no_repeat_ngram_size": "3", "batch_size": "4096", "torch_dtype": "bfloat16",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES_FROM_MEMORY)
def test_recipe_in_names_of_transformers_becomes_valid_by_following_the_errors(name):
    stage, recipe = RECIPES_FROM_MEMORY[name]
    settings = [f"{key}={value}" for key, value in recipe.items()]
    for _ in range(3 * len(settings)):
        try:
            read_recipe(load_stage_schema(stage), overrides=settings)
            break
        except RecipeError as error:
            settings = follow(str(error), settings)
    else:
        raise AssertionError(f"not valid after many corrections: {settings}")
    assert len(settings) == len(recipe)


def follow(error: str, settings: list[str]) -> list[str]:
    """The settings with the one correction that the error suggests: of a key, or of a value."""
    match = re.search(
        r"(?:unknown key '(?P<key>\S+)'|^(?P<kind>\S+) = '(?P<value>\S+)' is not valid); did you mean '(?P<ours>\S+)'", error
    )
    assert match, error
    wrong = [s for s in settings if s.partition("=")[0] == (match["key"] or match["kind"])]
    assert len(wrong) == 1, error
    if match["kind"]:
        ours = f"{match['kind']}={match['ours']}"
    else:
        ours = match["ours"] if "=" in match["ours"] else f"{match['ours']}={wrong[0].partition('=')[2]}"
    return [ours if setting == wrong[0] else setting for setting in settings]


@pytest.mark.parametrize(("task", "command"), TASK_COMMANDS.items())
def test_task_that_needs_no_fine_tuning_is_answered_with_its_command(task, command, capsys):
    assert cli.main(["finetune", f"task={task}", "model=m", "data.train=t", "out=o"]) == 2
    assert command in capsys.readouterr().err
