"""bertsmith's Transformer encoders for transformers: pre- or post-norm, RoPE or a position bias, GLU, local attention.

`bertsmith export format=hf` copies this file into a folder whose shape no class of transformers has, and names it in the
`auto_map` of config.json:

    AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)

It needs torch and transformers alone; tested with 4.57 and 5.22. Inputs are padded batches, on the right or on the left, as
transformers' tokenizers give them. `config.bertsmith["model"]` is the `model` section of a bertsmith checkpoint, and
parameters have the names that they have there, so `bertsmith import` reads such a folder back, bit for bit.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    CausalLMOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

DEFAULT_ENCODER = {  # BERT-base; keys that config.json leaves out have these values
    "num_hidden_layers": 12,
    "num_hidden_groups": None,  # distinct layers, shared by the others (ALBERT); None: one each
    "hidden_size": 768,
    "embedding_size": None,  # projected to hidden_size; None: hidden_size
    "mixer": {},  # of every layer, see DEFAULT_MIXER
    "layer_types": None,  # {"every": n, "mixer": ...}: the mixer of layers i with i % n != 0 (ModernBERT)
    "feedforward": {},  # see DEFAULT_FEEDFORWARD
    "layer_sizes": None,  # {"num_attention_heads": [...], "intermediate_size": [...]}: of each layer, where pruning left them
    "norm": "post",  # LayerNorm after each sublayer (BERT), or before it (pre)
    "norm_bias": True,
    "embedding_norm": True,
    "first_attention_norm": True,  # pre-norm: LayerNorm before the first attention
    "max_position_embeddings": 512,
    "position_embedding_type": "absolute",  # learned; or sinusoidal, or none
    "scale_embeddings": False,  # by sqrt(embedding_size)
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pooling": "cls",  # vector of a text: its first token (last if causal), mean, max, or concat of the three
    "pooler_act": "tanh",  # activation(W h + b) of that vector; none: as it is
    "head_transform": False,  # LayerNorm(act(W h + b)) before every classifier, as the language-model head has it
}
DEFAULT_MIXER = {
    "kind": "attention",  # or longformer: a sliding window, here without global tokens
    "num_attention_heads": 12,
    "attention_head_size": None,  # None: hidden_size / num_attention_heads
    "causal": False,
    "attention_dropout": 0.0,
    "bias": True,
    "rope_theta": None,
    "position_bias": None,  # {"kind": "alibi"}, or t5 or shaw with their settings
    "attention_window": [512],  # longformer: both sides together
    "dilation": [],  # longformer: of the last heads
}
DEFAULT_FEEDFORWARD = {"intermediate_size": 3072, "hidden_act": "gelu", "glu": False, "bias": True}
DEFAULT_LM_HEAD = {"transform": True, "tied": True, "bias": True}
DEFAULT_HEAD_DROPOUT = 0.1
IGNORE_INDEX = -100  # label of tokens without a loss

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class BertsmithConfig(PretrainedConfig):
    """`bertsmith["model"]["encoder"]` describes the encoder, `["heads"]` its heads; the other keys are transformers' own."""

    model_type = "bertsmith"

    def __init__(self, bertsmith=None, vocab_size=30522, **kwargs):
        self.bertsmith = bertsmith or {}
        encoder = self.encoder
        self.vocab_size = vocab_size
        self.hidden_size, self.num_hidden_layers = encoder.hidden_size, encoder.num_hidden_layers
        self.num_attention_heads = encoder.mixer.num_attention_heads
        self.max_position_embeddings, self.type_vocab_size = encoder.max_position_embeddings, encoder.type_vocab_size
        self.initializer_range = encoder.initializer_range
        derived = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "type_vocab_size")
        kwargs = {name: value for name, value in kwargs.items() if name not in (*derived, "initializer_range")}
        super().__init__(**kwargs)

    @property
    def encoder(self):
        """The encoder's settings as attributes, those of layers that differ under `layer_types`."""
        values = {**DEFAULT_ENCODER, **self.bertsmith.get("model", {}).get("encoder", {})}
        values["mixer"] = _settings(DEFAULT_MIXER, values["mixer"])
        if values["feedforward"] is not None:
            values["feedforward"] = _settings(DEFAULT_FEEDFORWARD, values["feedforward"])
        if values["layer_types"] is not None:
            other = _settings(DEFAULT_MIXER, values["layer_types"]["mixer"])
            values["layer_types"] = SimpleNamespace(every=values["layer_types"]["every"], mixer=other)
        return SimpleNamespace(**values)

    def head(self, name):
        """Settings of a head; empty if this model had none when it was exported."""
        return self.bertsmith.get("model", {}).get("heads", {}).get(name, {})


def _settings(defaults, values):
    return SimpleNamespace(**{**defaults, **values})


# Attention


class RotaryTable:
    """Cosines and sines of RoPE (Su et al. 2021), (positions, head_dim / 2) each, computed in float64 on first use.

    Not a module: transformers 5 builds models on the meta device, where buffers that are not in the file get no values.
    """

    def __init__(self, head_dim, theta):
        self.head_dim, self.theta, self.cos_sin = head_dim, theta, None

    def __call__(self, position_ids, num_positions):
        if self.cos_sin is None or self.cos_sin.shape[1] < num_positions or self.cos_sin.device != position_ids.device:
            with torch.inference_mode(False), torch.no_grad():  # training may use it after inference
                size = 1 << (num_positions - 1).bit_length()
                frequencies = self.theta ** -(torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
                angles = torch.arange(size, dtype=torch.float64)[:, None] * frequencies
                self.cos_sin = torch.stack([angles.cos(), angles.sin()]).float().to(position_ids.device)
        cos, sin = self.cos_sin[:, position_ids]
        return cos[:, None], sin[:, None]  # (batch, 1, length, head_dim / 2)


def rotate(x, cos_sin):
    """x (batch, heads, length, head_dim): element i of the first half is rotated with element i of the second."""
    cos, sin = (part.to(x.dtype) for part in cos_sin)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class T5Bias(nn.Module):
    """Relative position bias (Raffel et al. 2020): a learned scalar for each head and each bucket of distances."""

    def __init__(self, settings, num_heads, causal):
        super().__init__()
        self.causal, self.max_distance = causal, settings["max_distance"]
        self.max_exact = settings["num_buckets"] // (1 if causal else 2) // 2
        self.relative_attention_bias = nn.Embedding(settings["num_buckets"], num_heads)

    def forward(self, offset):
        """(heads, queries, keys), of key position - query position."""
        distance = (-offset).clamp(min=0) if self.causal else offset.abs()
        steps = (distance.clamp(min=1) / self.max_exact).log() / math.log(self.max_distance / self.max_exact) * self.max_exact
        bucket = (self.max_exact + steps.long()).clamp(max=2 * self.max_exact - 1)
        bucket = torch.where(distance < self.max_exact, distance, bucket)
        bucket = bucket if self.causal else bucket + 2 * self.max_exact * (offset > 0)
        return self.relative_attention_bias(bucket).movedim(-1, 0)


class AlibiBias(nn.Module):
    """ALiBi (Press et al. 2022): -slope * |distance|, a fixed slope for each head."""

    def __init__(self, num_heads):
        super().__init__()
        power = 1 << (num_heads.bit_length() - 1)
        self.slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
        self.slopes += [2.0 ** (-4 * i / power) for i in range(1, 2 * (num_heads - power), 2)]

    def forward(self, offset):
        """(heads, queries, keys), of key position - query position."""
        return -torch.tensor(self.slopes, device=offset.device).view(-1, 1, 1) * offset.abs()


class ShawEmbeddings(nn.Module):
    """Relative position representations (Shaw et al. 2018): vectors added to keys and values, by clipped distance."""

    def __init__(self, clip, head_dim):
        super().__init__()
        self.clip = clip
        self.keys, self.values = nn.Embedding(2 * clip + 1, head_dim), nn.Embedding(2 * clip + 1, head_dim)

    def distance_ids(self, offset):
        return offset.clamp(-self.clip, self.clip) + self.clip


class QKVProjection(nn.Module):
    """Queries, keys and values in one matrix, and the output projection."""

    def __init__(self, hidden_size, inner_size, bias):
        super().__init__()
        self.qkv = nn.Linear(hidden_size, 3 * inner_size, bias=bias)
        self.output = nn.Linear(inner_size, hidden_size, bias=bias)


class SelfAttention(nn.Module):
    """softmax(QK^T / sqrt(head_dim) + bias) V over the whole text or over a sliding window."""

    def __init__(self, mixer, hidden_size, layer, num_layers):
        super().__init__()
        self.num_heads, self.causal, self.dropout = mixer.num_attention_heads, mixer.causal, mixer.attention_dropout
        head_dim = mixer.attention_head_size or hidden_size // mixer.num_attention_heads
        self.projections = QKVProjection(hidden_size, self.num_heads * head_dim, mixer.bias)
        self.rotary = RotaryTable(head_dim, mixer.rope_theta) if mixer.rope_theta else None
        self.window = None  # (tokens on each side, dilation of each head)
        if mixer.kind == "longformer":
            sizes, dilation = mixer.attention_window, _layer_dilation(mixer, layer, num_layers)
            half_window = sizes[layer if len(sizes) > 1 else 0] // 2
            self.window = half_window, [1] * (self.num_heads - len(dilation)) + dilation
        self.position_bias = self.shaw = None
        settings = mixer.position_bias or {"kind": None}
        if settings["kind"] == "t5" and not (settings["shared"] and layer):  # shared: the first layer's
            self.position_bias = T5Bias(settings, self.num_heads, self.causal)
        elif settings["kind"] == "alibi":
            self.position_bias = AlibiBias(self.num_heads)
        elif settings["kind"] == "shaw":
            self.shaw = ShawEmbeddings(settings["clip"], head_dim)

    def forward(self, hidden_states, batch, position_bias, need_weights):
        """(batch, length, hidden_size), and the weights (batch, heads, length, length) if they are needed."""
        qkv = self.projections.qkv(hidden_states).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = (part.squeeze(2).transpose(1, 2) for part in qkv.split(1, 2))
        if self.rotary is not None:
            cos_sin = self.rotary(batch.position_ids, batch.num_positions)
            q, k = rotate(q, cos_sin), rotate(k, cos_sin)
        mask = batch.mask(self.causal, self.window)
        bias = None if position_bias is None else position_bias(batch.offset)[None].to(q.dtype)
        dropout = self.dropout if self.training else 0.0
        if self.shaw is None and not need_weights:
            if bias is not None:
                mask = bias if mask is None else bias.masked_fill(~mask, torch.finfo(q.dtype).min)
            out, weights = F.scaled_dot_product_attention(q, k, v, mask, dropout), None
        else:
            out, weights = self.attend(q, k, v, mask, bias, batch.offset, dropout)
        return self.projections.output(out.transpose(1, 2).flatten(2)), weights

    def attend(self, q, k, v, mask, bias, offset, dropout):
        """The same as a product and a softmax: for Shaw's relative positions, and for callers who want the weights."""
        scores = q @ k.mT
        if self.shaw is not None:
            ids = self.shaw.distance_ids(offset).expand(*q.shape[:-1], -1)
            scores = scores + (q @ self.shaw.keys.weight.to(q.dtype).mT).gather(-1, ids)
        scores = (scores * q.shape[-1] ** -0.5 if bias is None else scores * q.shape[-1] ** -0.5 + bias).float()
        weights = (scores if mask is None else scores.masked_fill(~mask, float("-inf"))).softmax(-1)
        probs = F.dropout(weights, dropout).to(v.dtype)
        out = probs @ v
        if self.shaw is not None:
            by_distance = probs.new_zeros(*probs.shape[:-1], 2 * self.shaw.clip + 1).scatter_add(-1, ids, probs)
            out = out + by_distance @ self.shaw.values.weight.to(v.dtype)
        return out, weights


def _layer_dilation(mixer, layer, num_layers):
    """Dilations of the last heads of a layer; only the top `dilated_layers` have any."""
    dilated_layers = getattr(mixer, "dilated_layers", None)
    return list(mixer.dilation) if dilated_layers is None or layer >= num_layers - dilated_layers else []


class PaddedBatch:
    """Which tokens of a padded batch are text, their positions, and the attention masks that follow, each computed once."""

    def __init__(self, attention_mask, position_ids, shape, device):
        self.length, self.masks = shape[1], {}
        self.is_text = None
        if attention_mask is not None:
            is_text = attention_mask.to(device).bool()
            self.is_text = is_text | ~is_text.any(-1, keepdim=True)  # a row of padding alone attends to itself
        self.num_positions = self.length
        if position_ids is not None:
            self.num_positions = int(position_ids.max()) + 1
            self.position_ids = position_ids.to(device).expand(shape)
        elif self.is_text is not None:  # padding on the left does not count
            self.position_ids = (self.is_text.long().cumsum(-1) - 1).clamp(min=0)
        else:
            self.position_ids = torch.arange(self.length, device=device).expand(shape)
        index = torch.arange(self.length, device=device)
        self.offset = index - index[:, None]  # key - query

    def mask(self, causal, window):
        """True where a query (row) may attend to a key (column), to broadcast to (batch, heads, length, length); None: all."""
        key = causal, None if window is None else (window[0], *window[1])
        if key not in self.masks:
            self.masks[key] = self.build_mask(causal, window)
        return self.masks[key]

    def build_mask(self, causal, window):
        keys = None if self.is_text is None else self.is_text[:, None, None]
        if not causal and window is None:
            return keys
        allowed = self.offset <= 0 if causal else torch.ones_like(self.offset, dtype=torch.bool)
        allowed = allowed[None, None]
        if window is not None:
            half_window, dilations = window
            distance, dilation = self.offset.abs(), torch.tensor(dilations, device=self.offset.device)[:, None, None]
            allowed = allowed & ((distance <= half_window * dilation) & (distance % dilation == 0))[None]
        # A padding token attends to itself, since a softmax over nothing is not a number.
        return allowed if keys is None else (allowed & keys) | (self.offset == 0)[None, None]

    def pool(self, hidden_states, pooling, causal):
        """(batch, hidden_size), three times that with concat: the vector of each text."""
        is_text = torch.ones_like(self.position_ids, dtype=torch.bool) if self.is_text is None else self.is_text
        index = torch.arange(self.length, device=hidden_states.device)
        token = torch.where(is_text, index, -1).argmax(-1) if causal else is_text.long().argmax(-1)
        token_states = hidden_states[torch.arange(len(hidden_states), device=hidden_states.device), token]
        if pooling == "cls":
            return token_states
        text = is_text[..., None]
        mean = (hidden_states * text).sum(1) / text.sum(1)
        if pooling == "mean":
            return mean
        largest = hidden_states.masked_fill(~text, float("-inf")).amax(1)
        return largest if pooling == "max" else torch.cat([token_states, largest, mean], -1)


# Encoder


class FeedForward(nn.Module):
    """W2 act(W1 x), or with glu W2 (act(gate) * value)."""

    def __init__(self, settings, hidden_size):
        super().__init__()
        self.is_gated, self.activation = settings.glu, ACTIVATIONS[settings.hidden_act]
        self.intermediate = nn.Linear(hidden_size, settings.intermediate_size * (1 + settings.glu), bias=settings.bias)
        self.output = nn.Linear(settings.intermediate_size, hidden_size, bias=settings.bias)

    def forward(self, hidden_states):
        x = self.intermediate(hidden_states)
        if self.is_gated:
            gate, value = x.chunk(2, -1)
            return self.output(self.activation(gate) * value)
        return self.output(self.activation(x))


def build_norm(encoder, size=None):
    return nn.LayerNorm(size or encoder.hidden_size, eps=encoder.layer_norm_eps, bias=encoder.norm_bias)


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection; LayerNorm before (pre-norm) or after the sum (post-norm)."""

    def __init__(self, encoder, layer, num_layers):
        super().__init__()
        types = encoder.layer_types
        mixer = types.mixer if types is not None and layer % types.every else encoder.mixer
        self.norm_first, self.drop = encoder.norm == "pre", nn.Dropout(encoder.hidden_dropout_prob)
        sizes, feedforward = encoder.layer_sizes or {}, encoder.feedforward
        if sizes.get("num_attention_heads"):
            head_dim = mixer.attention_head_size or encoder.hidden_size // mixer.num_attention_heads
            heads = {"num_attention_heads": sizes["num_attention_heads"][layer], "attention_head_size": head_dim}
            mixer = _settings(vars(mixer), heads)
        if sizes.get("intermediate_size"):
            feedforward = _settings(vars(feedforward), {"intermediate_size": sizes["intermediate_size"][layer]})
        self.mixer = SelfAttention(mixer, encoder.hidden_size, layer, num_layers)
        has_norm = encoder.first_attention_norm or layer > 0
        self.mixer_norm = build_norm(encoder) if has_norm else nn.Identity()
        self.feedforward = self.feedforward_norm = None
        if feedforward is not None:
            self.feedforward = FeedForward(feedforward, encoder.hidden_size)
            self.feedforward_norm = build_norm(encoder)

    def forward(self, x, batch, position_bias, need_weights):
        mixed, weights = self.mixer(self.mixer_norm(x) if self.norm_first else x, batch, position_bias, need_weights)
        x = x + self.drop(mixed) if self.norm_first else self.mixer_norm(x + self.drop(mixed))
        if self.feedforward is None:
            return x, weights
        if self.norm_first:
            return x + self.drop(self.feedforward(self.feedforward_norm(x))), weights
        return self.feedforward_norm(x + self.drop(self.feedforward(x))), weights


class Stack(nn.Module):
    """The blocks, where layers share them each several times, and the final LayerNorm of pre-norm."""

    def __init__(self, encoder):
        super().__init__()
        num_layers = encoder.num_hidden_layers
        num_groups = encoder.num_hidden_groups or num_layers
        self.layers = nn.ModuleList(Block(encoder, number, num_groups) for number in range(num_groups))
        self.group_indices = [int(layer / (num_layers / num_groups)) for layer in range(num_layers)]
        self.final_norm = build_norm(encoder) if encoder.norm == "pre" else nn.Identity()

    def forward(self, x, batch, need_states, need_weights):
        """The last hidden states, those of the embeddings and every layer (the last normalized), and attention weights."""
        states, all_weights = [x], []
        for index in self.group_indices:
            mixer = self.layers[index].mixer
            shared = self.layers[0].mixer if mixer.position_bias is None else mixer
            bias = shared.position_bias if isinstance(shared.position_bias, T5Bias) else mixer.position_bias
            x, weights = self.layers[index](x, batch, bias, need_weights)
            states.append(x)
            all_weights.append(weights)
        x = states[-1] = self.final_norm(x)
        return x, tuple(states) if need_states else None, tuple(all_weights) if need_weights else None


class BertsmithPreTrainedModel(PreTrainedModel):
    """What transformers asks of every model: its config, and how new weights are initialized."""

    config_class = BertsmithConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012

    def _init_weights(self, module):
        """Truncated normal, cut at two standard deviations; biases zero. Weights that were loaded stay as they are."""
        std = self.config.initializer_range or 0.02
        if isinstance(module, (nn.Linear, nn.Embedding)) and not getattr(module.weight, "_is_hf_initialized", False):
            nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
        bias = getattr(module, "bias", None)
        if isinstance(module, nn.Linear) and bias is not None and not getattr(bias, "_is_hf_initialized", False):
            nn.init.zeros_(bias)


class BertsmithModel(BertsmithPreTrainedModel):
    """The encoder: token ids to hidden states, and the vector of each text (`pooler_output`)."""

    _keys_to_ignore_on_load_unexpected = [r"^heads\."]  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        encoder = self.settings = config.encoder
        size = encoder.embedding_size or encoder.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        is_learned = encoder.position_embedding_type == "absolute"
        self.position_embeddings = nn.Embedding(encoder.max_position_embeddings, size) if is_learned else None
        self.token_type_embeddings = nn.Embedding(encoder.type_vocab_size, size) if encoder.type_vocab_size else None
        self.embedding_norm = build_norm(encoder, size) if encoder.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(encoder.hidden_dropout_prob)
        is_projected = encoder.embedding_size is not None
        self.embedding_projection = nn.Linear(size, encoder.hidden_size) if is_projected else nn.Identity()
        self.stack = Stack(encoder)
        pooled_size = encoder.hidden_size * (3 if encoder.pooling == "concat" else 1)
        self.pooler = nn.Linear(pooled_size, encoder.hidden_size) if encoder.pooler_act != "none" else None
        self.text_size = pooled_size if self.pooler is None else encoder.hidden_size
        self.post_init()

    def get_input_embeddings(self):
        return self.word_embeddings

    def set_input_embeddings(self, value):
        self.word_embeddings = value

    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, inputs_embeds=None,
        output_hidden_states=None, output_attentions=None, return_dict=None, **kwargs,
    ):  # fmt: skip
        """input_ids, attention_mask, token_type_ids, position_ids: (batch, length)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        batch = PaddedBatch(attention_mask, position_ids, x.shape[:2], x.device)
        if batch.num_positions > self.settings.max_position_embeddings:
            raise ValueError(f"a text of {batch.num_positions} tokens is longer than the model's "
                             f"{self.settings.max_position_embeddings} positions; truncate it")  # fmt: skip
        x = self.embedding_projection(self.add_embeddings(x, batch, token_type_ids))
        need_states = (
            getattr(self.config, "output_hidden_states", False) if output_hidden_states is None else output_hidden_states
        )
        need_weights = getattr(self.config, "output_attentions", False) if output_attentions is None else output_attentions
        hidden, states, weights = self.stack(x, batch, need_states, need_weights)
        pooled = None if self.pooler is None else self.pool(hidden, batch)
        outputs = BaseModelOutputWithPooling(hidden, pooled, states, weights)
        return outputs if _wants_dict(self.config, return_dict) else outputs.to_tuple()

    def add_embeddings(self, x, batch, token_type_ids):
        """Sum of token, segment and position embeddings, LayerNorm and dropout."""
        x = x * x.shape[-1] ** 0.5 if self.settings.scale_embeddings else x
        if self.token_type_embeddings is not None:
            use_ids = token_type_ids is not None and self.settings.type_vocab_size > 1
            x = x + self.token_type_embeddings(token_type_ids if use_ids else torch.zeros_like(batch.position_ids))
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(batch.position_ids)
        elif self.settings.position_embedding_type == "sinusoidal":
            x = x + sinusoidal_positions(batch.num_positions, x.shape[-1]).to(x.device, x.dtype)[batch.position_ids]
        return self.drop(self.embedding_norm(x))

    def pool(self, hidden_states, batch):
        """(batch, text_size): the pooled vector of each text, through the pooler if there is one."""
        pooled = batch.pool(hidden_states, self.settings.pooling, self.settings.mixer.causal)
        return pooled if self.pooler is None else ACTIVATIONS[self.settings.pooler_act](self.pooler(pooled))

    def encode(self, **inputs):
        """Hidden states and the rest of the outputs, and the batch."""
        outputs = self(**{**inputs, "return_dict": True})
        hidden = outputs.last_hidden_state
        return outputs, PaddedBatch(inputs["attention_mask"], inputs["position_ids"], hidden.shape[:2], hidden.device)


def sinusoidal_positions(num_positions, size):
    """(positions, size): sin(p / 10000^(2i / size)) in column 2i, cos of the same in column 2i + 1 (Vaswani et al. 2017)."""
    columns = torch.arange(0, size, 2, dtype=torch.float64)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] / 10000.0 ** (columns / size)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :size].float()


def _wants_dict(config, return_dict):
    return getattr(config, "return_dict", True) if return_dict is None else return_dict


# Heads


class LMHead(nn.Module):
    """W LayerNorm(act(A h)) + b, or W h + b; W are the token embeddings if tied."""

    def __init__(self, config):
        super().__init__()
        encoder, settings = config.encoder, _settings(DEFAULT_LM_HEAD, config.head("lm"))
        size = encoder.hidden_size
        self.transform = self.norm = None
        if settings.transform:
            size = encoder.embedding_size or size
            self.transform, self.norm = nn.Linear(encoder.hidden_size, size), build_norm(encoder, size)
            self.activation = ACTIVATIONS[_head_activation(encoder)]
        self.output_embeddings = nn.Linear(size, config.vocab_size, bias=settings.bias)

    def forward(self, hidden_states):
        if self.transform is not None:
            hidden_states = self.norm(self.activation(self.transform(hidden_states)))
        return self.output_embeddings(hidden_states)


class TaskHead(nn.Module):
    """Dropout and a linear layer, after LayerNorm(act(A h)) where `head_transform` is set."""

    def __init__(self, config, size, num_outputs):
        super().__init__()
        encoder = config.encoder
        self.transform = self.norm = None
        if encoder.head_transform:
            self.transform, self.norm = nn.Linear(size, size), build_norm(encoder, size)
            self.activation = ACTIVATIONS[_head_activation(encoder)]
        self.drop = nn.Dropout(config.head("task").get("dropout", DEFAULT_HEAD_DROPOUT))
        self.classifier = nn.Linear(size, num_outputs)

    def forward(self, hidden_states):
        if self.transform is not None:
            hidden_states = self.norm(self.activation(self.transform(hidden_states)))
        return self.classifier(self.drop(hidden_states))


def _head_activation(encoder):
    return encoder.feedforward.hidden_act if encoder.feedforward is not None else "gelu"


class BertsmithHeadModel(BertsmithPreTrainedModel):
    """An encoder with one head, a key of `heads`."""

    def __init__(self, config):
        super().__init__(config)
        self.encoder = BertsmithModel(config)
        self.heads = nn.ModuleDict(self.build_heads(config))
        self.post_init()

    def encode(self, input_ids, attention_mask, token_type_ids, position_ids, kwargs):
        return self.encoder.encode(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, position_ids=position_ids,
            **{name: value for name, value in kwargs.items() if name != "return_dict"},
        )  # fmt: skip

    def finish(self, output, kwargs):
        return output if _wants_dict(self.config, kwargs.get("return_dict")) else output.to_tuple()


class BertsmithForMaskedLM(BertsmithHeadModel):
    """A logit for every token of the vocabulary, at every position; labels of -100 have no loss."""

    _tied_weights_keys = {"heads.lm.output_embeddings.weight": "encoder.word_embeddings.weight"}  # noqa: RUF012

    def build_heads(self, config):
        return {"lm": LMHead(config)}

    def get_output_embeddings(self):
        return self.heads["lm"].output_embeddings

    def set_output_embeddings(self, value):
        self.heads["lm"].output_embeddings = value

    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, labels=None, **kwargs,
    ):  # fmt: skip
        outputs, _ = self.encode(input_ids, attention_mask, token_type_ids, position_ids, kwargs)
        logits = self.heads["lm"](outputs.last_hidden_state)
        loss = None if labels is None else token_loss(logits, labels)
        return self.finish(MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions), kwargs)


class BertsmithForCausalLM(BertsmithForMaskedLM, GenerationMixin):
    """The logits of the next token; labels are the input ids, shifted here. `generate` reads the whole text for each token."""

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, labels=None, **kwargs,
    ):  # fmt: skip
        outputs, _ = self.encode(input_ids, attention_mask, token_type_ids, position_ids, kwargs)
        logits = self.heads["lm"](outputs.last_hidden_state)
        loss = None if labels is None else token_loss(logits[:, :-1], labels[:, 1:])
        return self.finish(CausalLMOutput(loss, logits, outputs.hidden_states, outputs.attentions), kwargs)


class BertsmithForSequenceClassification(BertsmithHeadModel):
    """Logits of each text; the loss follows `config.problem_type`, as in transformers."""

    def build_heads(self, config):
        return {"task": TaskHead(config, self.encoder.text_size, config.num_labels)}

    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, labels=None, **kwargs,
    ):  # fmt: skip
        outputs, batch = self.encode(input_ids, attention_mask, token_type_ids, position_ids, kwargs)
        logits = self.heads["task"](self.encoder.pool(outputs.last_hidden_state, batch))
        loss = None if labels is None else self.compute_loss(logits, labels)
        return self.finish(SequenceClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions), kwargs)

    def compute_loss(self, logits, labels):
        problem_type = self.config.problem_type
        if problem_type is None:
            is_class = labels.dtype in (torch.int64, torch.int32)
            problem_type = "single_label_classification" if is_class else "multi_label_classification"
            problem_type = "regression" if self.config.num_labels == 1 else problem_type
        if problem_type == "regression":
            return F.mse_loss(logits.squeeze(), labels.squeeze().to(logits.dtype))
        if problem_type == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        return F.cross_entropy(logits, labels.view(-1))


class BertsmithForTokenClassification(BertsmithHeadModel):
    """Logits of each token; labels of -100 have no loss."""

    def build_heads(self, config):
        return {"task": TaskHead(config, config.hidden_size, config.num_labels)}

    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, labels=None, **kwargs,
    ):  # fmt: skip
        outputs, _ = self.encode(input_ids, attention_mask, token_type_ids, position_ids, kwargs)
        logits = self.heads["task"](outputs.last_hidden_state)
        loss = None if labels is None else token_loss(logits, labels)
        return self.finish(TokenClassifierOutput(loss, logits, outputs.hidden_states, outputs.attentions), kwargs)


class BertsmithForQuestionAnswering(BertsmithHeadModel):
    """Logits of each token as the start and as the end of the answer."""

    def build_heads(self, config):
        return {"task": TaskHead(config, config.hidden_size, 2)}

    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, start_positions=None,
        end_positions=None, **kwargs,
    ):  # fmt: skip
        outputs, _ = self.encode(input_ids, attention_mask, token_type_ids, position_ids, kwargs)
        start, end = (part.squeeze(-1) for part in self.heads["task"](outputs.last_hidden_state).split(1, -1))
        loss = None
        if start_positions is not None and end_positions is not None:
            outside = start.shape[1]  # an answer beyond the text has no loss
            losses = [F.cross_entropy(logits, positions.view(-1).clamp(0, outside), ignore_index=outside)
                      for logits, positions in ((start, start_positions), (end, end_positions))]  # fmt: skip
            loss = sum(losses) / 2
        output = QuestionAnsweringModelOutput(loss, start, end, outputs.hidden_states, outputs.attentions)
        return self.finish(output, kwargs)


class BertsmithForMultipleChoice(BertsmithHeadModel):
    """A logit for each choice; inputs are (batch, choices, length)."""

    def build_heads(self, config):
        return {"task": TaskHead(config, self.encoder.text_size, 1)}

    def forward(
        self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, labels=None, **kwargs,
    ):  # fmt: skip
        num_choices = input_ids.shape[1]
        rows = (
            None if part is None else part.flatten(0, 1) for part in (input_ids, attention_mask, token_type_ids, position_ids)
        )
        outputs, batch = self.encode(*rows, kwargs)
        logits = self.heads["task"](self.encoder.pool(outputs.last_hidden_state, batch)).view(-1, num_choices)
        loss = None if labels is None else F.cross_entropy(logits, labels.view(-1))
        return self.finish(MultipleChoiceModelOutput(loss, logits, outputs.hidden_states, outputs.attentions), kwargs)


def token_loss(logits, labels):
    """Mean cross-entropy over the tokens whose label is not -100."""
    return F.cross_entropy(logits.flatten(0, 1), labels.to(logits.device).flatten(), ignore_index=IGNORE_INDEX)
