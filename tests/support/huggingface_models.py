"""Small random transformers models saved as folders, and helpers that run the import and export stages."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.commands import load_stage
from bertsmith.config import from_dict
from bertsmith.model import checkpoint
from tests.support.texts import VOCAB

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

VOCAB_SIZE = len(VOCAB)
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": VOCAB_SIZE}
SIZES = {
    "Bert": BERT,
    "Roberta": {**BERT, "max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1,
                "bos_token_id": 2, "eos_token_id": 3},
    "Longformer": {**BERT, "max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1,
                   "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "attention_window": [4, 8]},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": VOCAB_SIZE,
                   "max_position_embeddings": 64},
    "Albert": {**BERT, "embedding_size": 16, "num_hidden_layers": 5, "num_hidden_groups": 2},
    "Electra": {**BERT, "embedding_size": 16},
    "ModernBert": {**BERT, "num_hidden_layers": 4, "local_attention": 8, "max_position_embeddings": 64, "pad_token_id": 0,
                   "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3},
}  # fmt: skip
TASK_SUFFIXES = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
CLASSES = [family + suffix for family in SIZES for suffix in ("Model", "ForMaskedLM", *TASK_SUFFIXES)]
CLASSES += ["BertForPreTraining", "BertForNextSentencePrediction", "AlbertForPreTraining", "ElectraForPreTraining"]


def save_random_model(name, folder, **settings):
    """Save a small random model of a transformers class, with a vocab.txt; returns the model."""
    torch.manual_seed(0)
    model_class, family = getattr(transformers, name), next(family for family in SIZES if name.startswith(family))
    model = model_class(model_class.config_class(**{**SIZES[family], **settings}))
    for weight in model.parameters():  # so that biases, norms and padding rows matter too
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return model.eval()


def run_stage(name, **recipe):
    """Run a stage of the command line."""
    module = load_stage(name)
    return module.run(from_dict(module.Recipe, {key: str(v) if key != "check" else v for key, v in recipe.items()}), True)


def import_folder(source, out, **more):
    """Import a folder; returns the result of the stage, the model and the tokenizer."""
    return run_stage("import", source=source, out=out, **more), *checkpoint.load(out)[:2]


def rewrite_weights(folder, change):
    """Rewrite model.safetensors as `change(tensors)`."""
    path = folder / "model.safetensors"
    weights = change(load_file(path))
    save_file(weights, path)
    return weights
