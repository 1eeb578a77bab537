"""Names of models on the Hugging Face hub: what to run when a recipe gives one where a folder is expected."""

import re

# name on the hub, its owner where the name stands alone, and the nearest preset
FAMILIES: tuple[tuple[str, str, str], ...] = (
    (r"bert-(base|large)-.+", "google-bert", r"bert-\1"),
    (r"(?:xlm-)?roberta-(base|large)(?:-.+)?", "FacebookAI", r"roberta-\1"),
    (r"distilroberta-base", "distilbert", "distilbert"),
    (r"distilbert-base-.+", "distilbert", "distilbert"),
    (r"albert-(base|large|xlarge|xxlarge)-v[12]", "albert", r"albert-\1"),
    (r"electra-(small|base|large)-.+", "google", r"electra-\1"),
    (r"longformer-(base|large)-4096", "allenai", r"longformer-\1"),
    (r"modernbert-(base|large)", "answerdotai", r"modernbert-\1"),
    (r"(gpt2(?:-medium|-large|-xl)?)", "openai-community", r"\1"),
    (r"openai-gpt", "openai-community", "gpt"),
    (r"distilgpt2", "distilbert", "gpt2"),
)
REPO_ID = re.compile(r"(?!\.+/)[\w.-]+/(?!\.+$)[\w.-]+")
LOCAL_FOLDERS = ("out", "output", "outputs", "runs", "models", "checkpoints", "data", "tmp")  # not owners: paths


def find_repo_id(name: str) -> str | None:
    """The repository of a hub name: `owner/name` itself, or a well-known name with its owner; None for other names."""
    if REPO_ID.fullmatch(name) and name.partition("/")[0] not in LOCAL_FOLDERS:
        return name
    owner = next((owner for pattern, owner, _ in FAMILIES if re.fullmatch(pattern, name, re.IGNORECASE)), None)
    return owner and f"{owner}/{name}"


def find_preset(name: str) -> str:
    """The preset with the architecture nearest to that of a hub model."""
    name = name.rpartition("/")[2].lower()
    for pattern, _, preset in FAMILIES:
        if match := re.fullmatch(pattern, name):
            return match.expand(preset)
    return "bert-base"


def import_hint(name: str, key: str) -> str:
    """How to import a hub model and give it as `key`, as the end of an error message."""
    repo_id = find_repo_id(name) or name
    folder = f"out/{repo_id.rpartition('/')[2]}"
    return (
        f"it looks like a name on the Hugging Face hub: run `bertsmith import source={repo_id} out={folder}` "
        f"(offline: source=DOWNLOADED_FOLDER), then give {key}={folder}"
    )
