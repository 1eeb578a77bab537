"""README.md of an exported Hugging Face folder: what it is, how to load it, and what config.json cannot express."""

from ...tasks import TaskConfig
from .custom_code import AUTO_CLASSES, CAUSAL_CLASSES, MODELING_FILE
from .family import Architecture

PIPELINE_TAGS = {
    "ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering", "ForMultipleChoice": "multiple-choice", "ForMaskedLM": "fill-mask",
    "LMHeadModel": "text-generation", "ForCausalLM": "text-generation",
}  # fmt: skip


def render_readme(name: str, architecture: Architecture, task: TaskConfig | None) -> str:
    """The model card, with the metadata that the Hugging Face hub reads."""
    is_similar, class_name = task is not None and task.head_type == "embedding", architecture.name
    library = "sentence-transformers" if is_similar else "transformers"
    tag = "sentence-similarity" if is_similar else next(
        (tag for suffix, tag in PIPELINE_TAGS.items() if class_name.endswith(suffix)), "feature-extraction"
    )  # fmt: skip
    auto_classes = {name: auto_class for auto_class, name in (AUTO_CLASSES | CAUSAL_CLASSES).items()}
    loader, option = auto_classes.get(class_name, class_name), ", trust_remote_code=True" if class_name in auto_classes else ""
    load = (
        ["from sentence_transformers import SentenceTransformer", "", f'model = SentenceTransformer("FOLDER"{option})']
        if is_similar
        else [f"from transformers import AutoTokenizer, {loader}", "", f'model = {loader}.from_pretrained("FOLDER"{option})',
              f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{option})']
    )  # fmt: skip
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {tag}", "tags:", "- bertsmith", "---", "", f"# {name}", ""]
    lines += [f"`{class_name}`, exported by `bertsmith export`.", "", "```python", *load, "```"]
    if option:
        lines += ["", f"transformers has no class of this shape: `{MODELING_FILE}` beside the weights is the model's code, "
                  "which `trust_remote_code=True` lets it run."]  # fmt: skip
    if notes := [] if task is None else task.export_notes():
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"
