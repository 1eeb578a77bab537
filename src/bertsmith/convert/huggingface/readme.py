"""README.md of an exported Hugging Face folder: what it is, how to load it, and what config.json cannot express."""

from ...tasks import TaskConfig
from .names import Architecture

PIPELINE_TAGS = {
    "ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering", "ForMultipleChoice": "multiple-choice", "ForMaskedLM": "fill-mask",
    "LMHeadModel": "text-generation",
}  # fmt: skip


def render_readme(name: str, architecture: Architecture, task: TaskConfig | None) -> str:
    """The model card, with the metadata that the Hugging Face hub reads."""
    is_similar, class_name = task is not None and task.head_type == "embedding", architecture.name
    library = "sentence-transformers" if is_similar else "transformers"
    tag = "sentence-similarity" if is_similar else next(
        (tag for suffix, tag in PIPELINE_TAGS.items() if class_name.endswith(suffix)), "feature-extraction"
    )  # fmt: skip
    load = (
        ["from sentence_transformers import SentenceTransformer", "", 'model = SentenceTransformer("FOLDER")']
        if is_similar
        else [f"from transformers import AutoTokenizer, {class_name}", "", f'model = {class_name}.from_pretrained("FOLDER")',
              'tokenizer = AutoTokenizer.from_pretrained("FOLDER")']
    )  # fmt: skip
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {tag}", "tags:", "- bertsmith", "---", "", f"# {name}", ""]
    lines += [f"`{class_name}`, exported by `bertsmith export`.", "", "```python", *load, "```"]
    if notes := [] if task is None else task.export_notes():
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"
