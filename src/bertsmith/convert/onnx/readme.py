"""README.md of an exported folder: how to get answers from it, and the inputs and outputs of its graphs."""

from ...model.model import Model
from ...tasks import Task
from .outputs import (
    EMBEDDING,
    END_LOGITS,
    HIDDEN_STATES,
    LOGITS,
    PAIR_LOGITS,
    POOLED,
    START_LOGITS,
    TASK_HEAD,
    GraphModule,
    averages_sequences,
    head_graphs,
)

OUTPUTS = {
    HIDDEN_STATES: "`[batch, sequence, {hidden}]`: hidden states of the last layer",
    EMBEDDING: "`[batch, {hidden}]`: sentence embeddings",
    POOLED: "`[batch, {pooled}]`: input of `task_head`, for texts of several windows and pairs in both orders",
    START_LOGITS: "`[batch, sequence]`: start of the answer",
    END_LOGITS: "`[batch, sequence]`: end of the answer",
    PAIR_LOGITS: "`[batch, 2]`: next-sentence prediction or sentence order",
}
HEAD_LOGITS = {"text": "`[batch, {outputs}]`", "token": "`[batch, sequence, {outputs}]`"}


def render_readme(name: str, model: Model, task: Task | None, kind: str, command: str = "") -> str:
    """The model card, with the metadata that the Hugging Face hub reads."""
    kind_of_task = "none" if task is None else task.__struct_config__.tag
    library = {"onnx": "onnx", "openvino": "openvino"}[kind]
    lines = ["---", f"library_name: {library}", "tags:", "- bertsmith", f"- {kind}", "---", "", f"# {name}", ""]
    command = command or f"export format={kind}"
    lines += [f"Written by `bertsmith {command}`; task: {kind_of_task}.", "", "```python"]
    lines += ["import bertsmith  # needs no torch", "", f'model = bertsmith.load("FOLDER", backend="{kind}")', "```", ""]
    if model.config.encoder.num_hidden_layers:
        lines += ["```python", "from sentence_transformers import SentenceTransformer", ""]
        lines += [f'model = SentenceTransformer("FOLDER", backend="{kind}")', "```", ""]
    lines += [
        f'The weights are for `backend="{kind}"` and for bertsmith. transformers\' classes for PyTorch do not read them:',
        "`bertsmith export format=hf` writes a folder for these.",
        "",
    ]
    names = ", ".join(f"`{name}`" for name in GraphModule(model, task).input_names)
    lines += [f"Inputs, int64 `[batch, sequence]`, texts right-padded: {names}.", "", "| output | |", "|---|---|"]
    lines += [f"| `{output}` | {text} |" for output, text in _describe_outputs(model, task).items()]
    for head in head_graphs(model, task):
        source = POOLED if head == TASK_HEAD else f"{HIDDEN_STATES} at the positions asked for"
        lines += ["", f"`{head}_head` computes `{LOGITS}` of rows of {source}."]
    notes = [] if task is None else task.export_notes()
    return "\n".join([*lines, *(["", "## Notes", "", *(f"- {note}" for note in notes)] if notes else [])]) + "\n"


def _describe_outputs(model: Model, task: Task | None) -> dict[str, str]:
    names = [HIDDEN_STATES, EMBEDDING]
    heads = {type(head).__name__ for head in model.heads.values()}
    logits = None
    if task is not None and TASK_HEAD in model.heads:
        names += [START_LOGITS, END_LOGITS] if task.head_type == "span" else []
        names += [POOLED] if averages_sequences(task) else []
        logits = HEAD_LOGITS.get(task.head_type)
    elif "PooledClassifier" in heads:
        names.append(PAIR_LOGITS)
    sizes = {"hidden": model.config.encoder.hidden_size, "pooled": model.config.encoder.pooled_size}
    described = {name: OUTPUTS[name].format(**sizes) for name in names}
    if logits is not None and task is not None:
        described[LOGITS] = logits.format(outputs=task.num_outputs) + ", before softmax or sigmoid"
    elif "DiscriminatorHead" in heads:
        described[LOGITS] = "`[batch, sequence]`: above 0 for replaced tokens"
    return described
