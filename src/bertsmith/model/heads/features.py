"""Feature-based head (Devlin et al. 2018, section 5.3): a classifier on several layers, of a frozen or fine-tuned encoder."""

from typing import TYPE_CHECKING, Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import Config, NonNegInt, PosInt, Probability, Variant
from ...errors import UserError
from ..batch import Inputs
from ..linear import Linear
from ..packing import Layout

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class FeaturesConfig(Config, frozen=True):
    """How the hidden states of the layers are combined for each token, and the task model that reads them.

    The task model may have token embeddings and BiLSTM layers of its own; a text is the mean of its tokens.
    """

    layers: Annotated[
        Literal["last", "sum", "concat", "mix"],
        "last layer; sum or concatenation of the last few; mix: learned weighted mean (ELMo)",
    ] = "concat"
    last: Annotated[PosInt, "sum, concat: number of layers, counted from the last (4 in BERT)"] = 4
    layer_norm: Annotated[
        bool | None,
        "LayerNorm without parameters on each layer before they are combined (ELMo's do_layer_norm); none: for sum and concat",
    ] = None
    lstm: Annotated[NonNegInt, "layers of a BiLSTM between features and classifier (2 in Devlin et al. 2018, 5.3)"] = 0
    embedding_size: Annotated[
        PosInt | None, "size of token embeddings of the head's own, concatenated to the features (ELMo, TagLM); none: none"
    ] = None
    at: Annotated[
        Literal["input", "hidden", "output", "both"],
        "where features are concatenated: input of the BiLSTM, output of its first layer (hidden, TagLM), its output, or "
        "input and output with weights of their own (both, ELMo)",
    ] = "input"

    @property
    def norms_layers(self) -> bool:
        """Whether layers are normalized: by default where they have no learned weights, since their lengths differ."""
        return self.layers in ("sum", "concat") if self.layer_norm is None else self.layer_norm

    def check(self) -> None:
        """Raises a UserError for a place that the task model does not have."""
        min_layers = {"input": 0, "hidden": 2, "output": 1, "both": 1}[self.at]
        if self.lstm < min_layers:
            raise UserError(
                f"features.at={self.at} needs a BiLSTM of at least {min_layers} layer{'s' if min_layers > 1 else ''}; set "
                f"features.lstm={min_layers}"
            )
        if self.at in ("hidden", "output") and self.embedding_size is None:
            raise UserError(
                f"features.at={self.at} leaves the BiLSTM without an input; set features.embedding_size, such as 100"
            )


class FeatureHeadConfig(Variant, frozen=True, tag="features"):
    """Logits of each token, or of each text, from combined layers."""

    outputs: Annotated[PosInt, "number of logits for each token or sequence"]
    features: Annotated[FeaturesConfig, "hidden states used as features"]
    dropout: Annotated[Probability, "dropout before the classifier"] = 0.1

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "FeatureClassifier":
        return FeatureClassifier(self, encoder, vocab_size)


class FeatureClassifier(nn.Module):
    """Task model on combined layers h: an optional BiLSTM over [token embedding; h], dropout and a linear layer.

    With `at=both` its input is [token embedding; h] and the classifier reads [BiLSTM output; h'], where h' has weights of its
    own (Peters et al. 2018, section 3.3); with `at=hidden` h joins between two BiLSTM layers (Peters et al. 2017, section 3.4).
    """

    def __init__(self, config: FeatureHeadConfig, encoder: "EncoderConfig", vocab_size: int) -> None:
        super().__init__()
        features, hidden_size = config.features, encoder.hidden_size
        features.check()
        self.at, self.vocab_size = features.at, vocab_size
        self.input_layers = LayerCombination(features, encoder) if features.at != "output" else None
        self.output_layers = LayerCombination(features, encoder) if features.at in ("output", "both") else None
        # The last row is for words that only character embeddings know, with ids behind the vocabulary.
        self.embeddings = nn.Embedding(vocab_size + 1, features.embedding_size) if features.embedding_size else None
        size = features.embedding_size or 0
        self.lstm = self.upper_lstm = None
        if features.at == "hidden":
            self.lstm, size = _build_bilstm(size, hidden_size, 1), 2 * hidden_size
        if features.at != "output":
            size += LayerCombination.size(features, encoder)
        if features.at == "hidden":
            self.upper_lstm, size = _build_bilstm(size, hidden_size, features.lstm - 1), 2 * hidden_size
        elif features.lstm:
            self.lstm, size = _build_bilstm(size, hidden_size, features.lstm), 2 * hidden_size
        if self.output_layers is not None:
            size += LayerCombination.size(features, encoder)
        self.drop, self.classifier = nn.Dropout(config.dropout), Linear(size, config.outputs)

    def combine_layers(self, all_hidden_states: list[Tensor], inputs: Inputs) -> Tensor:
        """(tokens, feature size), input of the classifier, from (tokens, hidden_size) of the embeddings and of every layer."""
        combined = None if self.input_layers is None else self.input_layers(all_hidden_states)
        own = None if self.embeddings is None else self.embeddings(inputs.input_ids.clamp(max=self.vocab_size))
        x = _concat(own) if self.at == "hidden" else _concat(own, combined)
        if self.lstm is not None:
            x = self._run_lstm(self.lstm, x, inputs.layout)
        if self.upper_lstm is not None:
            x = self._run_lstm(self.upper_lstm, _concat(x, combined), inputs.layout)
        return x if self.output_layers is None else _concat(x, self.output_layers(all_hidden_states))

    def forward(self, features: Tensor, encoder: "Encoder") -> Tensor:
        return self.classifier(self.drop(features))

    def _run_lstm(self, lstm: nn.LSTM, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, 2 * hidden_size): both directions over each sequence."""
        with torch.autocast(x.device.type, enabled=False):  # a float16 LSTM would lose small gradients
            padded = layout.pad(x.to(self.classifier.weight.dtype))
            packed = nn.utils.rnn.pack_padded_sequence(padded, layout.lengths, batch_first=True, enforce_sorted=False)
            padded, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        return layout.unpad(padded).to(x.dtype)


class LayerCombination(nn.Module):
    """The last layer, the sum or the concatenation of the last few, or ELMo's scalar mix gamma * sum_j softmax(s)_j h_j."""

    def __init__(self, config: FeaturesConfig, encoder: "EncoderConfig") -> None:
        super().__init__()
        self.config, num_layers = config, encoder.num_hidden_layers
        if config.layers in ("sum", "concat") and config.last > num_layers + 1:
            raise UserError(f"features.last={config.last} is more than the model's {num_layers} layers and its embeddings")
        if config.layers == "mix":
            self.layer_weights, self.gamma = nn.Parameter(torch.zeros(num_layers + 1)), nn.Parameter(torch.ones(()))

    @staticmethod
    def size(config: FeaturesConfig, encoder: "EncoderConfig") -> int:
        """Dimension of the combined vectors."""
        return encoder.hidden_size * (config.last if config.layers == "concat" else 1)

    def forward(self, all_hidden_states: list[Tensor]) -> Tensor:
        """(tokens, size) from (tokens, hidden_size) of the embeddings and of every layer."""
        # Of a pre-norm model only the last layer is normed: the vectors of the others are many times as long.
        if self.config.norms_layers:
            all_hidden_states = [F.layer_norm(states, states.shape[-1:]) for states in all_hidden_states]
        match self.config.layers:
            case "last":
                return all_hidden_states[-1]
            case "sum":
                return torch.stack(all_hidden_states[-self.config.last :]).sum(0)
            case "concat":
                return torch.cat(all_hidden_states[-self.config.last :], -1)
        weights = self.layer_weights.softmax(0).to(all_hidden_states[0].dtype)
        return self.gamma * torch.stack(all_hidden_states, -1) @ weights


def _build_bilstm(input_size: int, hidden_size: int, num_layers: int) -> nn.LSTM:
    return nn.LSTM(input_size, hidden_size, num_layers, bidirectional=True, batch_first=True)


def _concat(*parts: Tensor | None) -> Tensor:
    """Concatenation of the parts that there are, in the dtype of the first."""
    tensors = [part for part in parts if part is not None]
    return torch.cat([tensor.to(tensors[0].dtype) for tensor in tensors], -1)
