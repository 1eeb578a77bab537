"""Guide tokens enter a model: its tokenizer, and its table, where they begin as the mean of the tokens that stand for text."""

from torch import Tensor

from ..model.grow import grown
from ..model.model import Model
from ..tasks import TaskConfig
from ..text.tokenizer import Tokenizer


def guided(task: TaskConfig, model: Model, tokenizer: Tokenizer) -> tuple[Tokenizer, dict[str, Tensor]]:
    """The tokenizer and the encoder's weights with the task's guide tokens; those they have already stay as they are."""
    longer, weights = tokenizer.with_specials(getattr(task, "guides", ())), model.state_dict()
    if new := len(longer) - len(tokenizer):
        weights = grown(weights, len(tokenizer), [tokenizer.ordinary.tolist()] * new)
    return longer, {name.removeprefix("encoder."): one for name, one in weights.items() if name.startswith("encoder.")}
