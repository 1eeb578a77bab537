"""Feature-based head (Devlin et al. 2018, section 5.3): a classifier on several layers, of a frozen or fine-tuned encoder."""

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor, nn

from ...config import Config, NonNegInt, PosInt, Probability, Variant
from ...errors import UserError
from ..linear import Linear
from ..packing import Layout

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class FeaturesConfig(Config, frozen=True):
    """How the hidden states of the layers are combined for each token; a text is the mean of its tokens."""

    layers: Annotated[
        Literal["last", "sum", "concat", "mix"],
        "last layer; sum or concatenation of the last few; mix: learned weighted mean (ELMo)",
    ] = "concat"
    last: Annotated[PosInt, "sum, concat: number of layers, counted from the last (4 in BERT)"] = 4
    lstm: Annotated[NonNegInt, "layers of a BiLSTM between features and classifier (2 in Devlin et al. 2018, 5.3)"] = 0


class FeatureHeadConfig(Variant, frozen=True, tag="features"):
    """Logits of each token, or of each text, from combined layers."""

    outputs: Annotated[PosInt, "number of logits for each token or sequence"]
    features: Annotated[FeaturesConfig, "hidden states used as features"]
    dropout: Annotated[Probability, "dropout before the classifier"] = 0.1

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "FeatureClassifier":
        return FeatureClassifier(self, encoder)


class FeatureClassifier(nn.Module):
    """Layer combination, an optional BiLSTM, dropout and a linear layer."""

    def __init__(self, config: FeatureHeadConfig, encoder: "EncoderConfig") -> None:
        super().__init__()
        self.config, features = config.features, config.features
        if features.layers in ("sum", "concat") and features.last > encoder.num_hidden_layers + 1:
            raise UserError(
                f"features.last={features.last} is more than the model's {encoder.num_hidden_layers} layers and its embeddings"
            )
        feature_size = encoder.hidden_size * (features.last if features.layers == "concat" else 1)
        if features.layers == "mix":  # ELMo's scalar mix: gamma * sum_l softmax(layer_weights)_l h_l
            self.layer_weights, self.gamma = (
                nn.Parameter(torch.zeros(encoder.num_hidden_layers + 1)),
                nn.Parameter(torch.ones(())),
            )
        self.lstm = None
        if features.lstm:
            self.lstm = nn.LSTM(feature_size, encoder.hidden_size, features.lstm, bidirectional=True, batch_first=True)
            feature_size = 2 * encoder.hidden_size
        self.drop, self.classifier = nn.Dropout(config.dropout), Linear(feature_size, config.outputs)

    def combine_layers(self, all_hidden_states: list[Tensor], layout: Layout) -> Tensor:
        """(tokens, feature size) from (tokens, hidden_size) of the embeddings and of every layer."""
        x = self._combine(all_hidden_states)
        if self.lstm is None:
            return x
        with torch.autocast(x.device.type, enabled=False):  # a float16 LSTM would lose small gradients
            padded = layout.pad(x.to(self.classifier.weight.dtype))
            packed = nn.utils.rnn.pack_padded_sequence(padded, layout.lengths, batch_first=True, enforce_sorted=False)
            padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return layout.unpad(padded).to(x.dtype)

    def forward(self, features: Tensor, encoder: "Encoder") -> Tensor:
        return self.classifier(self.drop(features))

    def _combine(self, all_hidden_states: list[Tensor]) -> Tensor:
        match self.config.layers:
            case "last":
                return all_hidden_states[-1]
            case "sum":
                return torch.stack(all_hidden_states[-self.config.last :]).sum(0)
            case "concat":
                return torch.cat(all_hidden_states[-self.config.last :], -1)
        weights = self.layer_weights.softmax(0).to(all_hidden_states[0].dtype)
        return self.gamma * torch.stack(all_hidden_states, -1) @ weights
