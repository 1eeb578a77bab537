"""Checks of a trained model by a forward pass over its corpus (`Probe`).

- collapse: hidden states that are the same for all texts.
- dead heads: attention heads that are uniform, attend to a single token, or have no output.
- positions: hidden states that do not depend on word order; position embeddings that were never trained.
- masking: too few masked tokens, or targets that were visible in training.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ..model.model import Model, build_model
from ..model.packing import segment_means
from .finding import Finding, format_number
from .probe import Probe
from .run_log import RunSettings, TrainingLog

# Mean of 1 - cosine over pairs of texts, and over pairs of tokens. Trained models have 0.1 and more; untrained ones, whose
# text vectors are means of nearly equal token vectors, 0.0005 and 0.05.
MIN_TEXT_DISTANCE, MIN_TOKEN_DISTANCE = 1e-4, 0.005
MIN_TEXTS = 4  # with fewer texts collapse is not checked
MAX_UNIFORM_DISTANCE = 0.02  # total variation distance from uniform attention
SINGLE_TOKEN_SHARE = 0.98  # of the attention; trained heads attend to [SEP], too, but less
MIN_OUTPUT_NORM_RATIO = 1e-3  # of the norm of the residual stream that the head's output is added to
DEAD_HEADS_PROBLEM = 1 / 3  # of all heads: a smaller fraction is common in trained models
MIN_HIDDEN_CHANGE = 0.001  # relative change of a hidden state when the words of its text are shuffled
MIN_LOSS_INCREASE = 0.01  # relative increase of the MLM loss on shuffled words, of a model that uses word order
UNMOVED_COSINE = 0.9999  # cosine of an embedding and its initial value; weight decay alone only scales it
MAX_UNTRAINED_FRACTION = 0.25  # of the position embeddings
MIN_MASKED_FRACTION, LOW_MLM_PROBABILITY = 0.01, 0.05  # fractions of tokens that are targets
COPY_LOSS_RATIO = 0.4  # of the loss on [MASK] tokens: 80% of targets are masked, so a lower loss means they were visible
WORD_ORDER_IGNORED = "word order ignored"
NO_MASKED_TOKENS = "no masked tokens"


def check_collapse(probe: Probe, run: RunSettings) -> Iterator[Finding]:
    """Hidden states that are nearly equal for all texts and tokens."""
    text_distance, token_distance = compute_cosine_distances(probe)
    if probe.layout.num_sequences < MIN_TEXTS or text_distance >= MIN_TEXT_DISTANCE or token_distance >= MIN_TOKEN_DISTANCE:
        return
    learning_rate = run.train_setting("learning_rate")
    yield Finding(
        "collapsed hidden states", "problem",
        f"mean distance (1 - cosine) of {probe.layout.num_sequences} different texts is {text_distance:.1g}, "
        f"of their tokens {token_distance:.1g}",
        "the hidden states hardly depend on the input: the model predicts token frequencies only",
        "train again with a lower learning rate and a longer warmup; deep models are more stable with model.norm=pre",
        f"train.learning_rate={format_number(learning_rate / 10)}" if learning_rate else None,
    )  # fmt: skip


def check_dead_heads(probe: Probe) -> Iterator[Finding]:
    """Heads with uniform attention, attention to a single token, or negligible output."""
    uniform, single, no_output, total = find_dead_heads(probe)
    dead = {*uniform, *single, *no_output}
    if not dead:
        return
    kinds = ((uniform, "uniform"), (single, "on a single token"), (no_output, "without output"))
    counts = ", ".join(f"{len(heads)} {behavior}" for heads, behavior in kinds if heads)
    locations = ", ".join(f"{layer}.{head}" for layer, head in sorted(dead)[:8])
    is_problem = len(dead) > DEAD_HEADS_PROBLEM * total
    yield Finding(
        "dead heads", "problem" if is_problem else "note",
        f"{len(dead)} of {total} attention heads are inactive on {probe.layout.num_sequences} texts: {counts} "
        f"(layer.head {locations})",
        "hardly any information passes between tokens: attention is not trained yet, or has collapsed" if is_problem else
        "some inactive heads are common in trained models; they could be pruned",
        "train longer if the run was short, use a larger initializer_range, so that attention learns earlier, or lower a high "
        "learning rate" if is_problem else "nothing needs to be done",
        f"model.initializer_range={max(0.04, 2 * probe.model.config.encoder.init_std):.2g}" if is_problem else None,
    )  # fmt: skip


def check_word_order(probe: Probe, unigram_loss: float | None) -> Iterator[Finding]:
    """Hidden states and MLM loss that do not depend on word order.

    `unigram_loss` is the unigram baseline on the same targets: the loss is compared only for a model that beats it.
    """
    if not probe.model.config.encoder.num_hidden_layers:
        return  # without layers it is a bag of words by design
    (hidden, _, _), shuffled = probe.forward_outputs, probe.shuffled_hidden_states
    relative_change = (shuffled - hidden)[probe.text_mask].norm(dim=-1) / hidden[probe.text_mask].norm(dim=-1).clamp(min=1e-9)
    mean_change = float(relative_change.mean())
    observation = f"shuffling the words of {probe.layout.num_sequences} texts changes their hidden states by {mean_change:.2%}"
    ignores_order = mean_change < MIN_HIDDEN_CHANGE
    if probe.has_mlm:
        loss, shuffled_loss = probe.compute_mlm_loss(hidden), probe.compute_mlm_loss(shuffled)
        observation += f"; the MLM loss is {loss:.3f}, {shuffled_loss:.3f} after shuffling"
        beats_unigram = unigram_loss is not None and loss < 0.95 * unigram_loss
        ignores_order = ignores_order or (beats_unigram and shuffled_loss < (1 + MIN_LOSS_INCREASE) * loss)
    if ignores_order:
        has_table = probe.model.encoder.position_embeddings is not None
        yield Finding(
            WORD_ORDER_IGNORED, "problem", observation,
            "the model treats a text as a bag of words",
            "check that the position embeddings are trained, not frozen, and not zero (in an imported checkpoint); text "
            "without meaningful order causes this, too" if has_table else
            "use position embeddings, or rotary ones (model.mixer.rope_theta)",
            "model.initializer_range=0.04" if has_table else "model.position_embedding_type=absolute",
        )  # fmt: skip


def check_position_embeddings(model: Model, run: RunSettings) -> Iterator[Finding]:
    """Position embeddings that are still at their initial values, which the seed reproduces exactly."""
    table = model.encoder.position_embeddings
    if run.stage != "pretrain" or not run.is_random_init or run.recipe is None or table is None:
        return
    initial = build_model(model.config, run.recipe["seed"]).encoder.position_embeddings
    assert initial is not None, "the same config builds the same parts"
    num_untrained = int((cosine_similarity(table.weight, initial.weight) > UNMOVED_COSINE).sum())
    count, max_length = table.num_embeddings, max(run.recipe["max_length"])
    if num_untrained == count:
        yield Finding(
            "positions untrained", "problem", f"all {count} position embeddings have their initial values",
            "they are frozen, or nothing was learned at all",
            "fix the other findings first; without any, raise the learning rate",
            f"train.learning_rate={10 * run.train_setting('learning_rate'):.2g}",
        )  # fmt: skip
    elif num_untrained > MAX_UNTRAINED_FRACTION * count:
        yield Finding(
            "positions untrained", "note",
            f"{num_untrained} of {count} position embeddings have their initial values; max_length was {max_length}",
            "the model cannot process texts longer than those it was trained on",
            "keep texts as short as in training, or train the last part of the run on longer sequences",
            f"max_length='[{max_length}, {count}]'" if max_length < count else
            f"model.max_position_embeddings={count - num_untrained}",
        )  # fmt: skip


def check_masking(log: TrainingLog | None, run: RunSettings, probe: Probe | None) -> Iterator[Finding]:
    """Too few targets, or targets that were visible in the input."""
    mlm_probability = (run.recipe or {}).get("objective", {}).get("mlm_probability", 0.15)
    if run.is_pretraining and (observation := _describe_missing_masks(log, probe)):
        yield Finding(
            NO_MASKED_TOKENS, "problem", f"{observation}, with objective.mlm_probability={mlm_probability:g}",
            "the model has hardly anything to learn from",
            "mask 15 to 40 % of the tokens; [UNK] and special tokens are never masked",
            "objective.mlm_probability=0.15",
        )  # fmt: skip
    elif run.is_pretraining and mlm_probability < LOW_MLM_PROBABILITY:
        yield Finding(
            "few masks", "note", f"objective.mlm_probability={mlm_probability:g}",
            "each step has few targets; BERT masks 15 % of the tokens",
            "mask more tokens", "objective.mlm_probability=0.15",
        )  # fmt: skip
    if losses := _detect_copying(log, probe):
        logged_loss, masked_loss, name = losses
        yield Finding(
            NO_MASKED_TOKENS, "problem",
            f"{name} is {logged_loss:.3f}, but the loss of tokens replaced by [MASK] is {masked_loss:.3f}",
            "in training the targets were visible in the input: the model learned to copy them",
            "check that the objective masks tokens (`bertsmith show masks` shows batches), then train again",
            "objective.masking=token",
        )  # fmt: skip


def compute_cosine_distances(probe: Probe) -> tuple[float, float]:
    """Mean of 1 - cosine over pairs of texts (each the mean of its hidden states), and over pairs of tokens."""
    hidden_states, seq_id = probe.forward_outputs[0][probe.text_mask].double(), probe.layout.seq_id[probe.text_mask]
    return _mean_cosine_distance(segment_means(hidden_states, seq_id)), _mean_cosine_distance(hidden_states)


def find_dead_heads(probe: Probe) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]], int]:
    """(layer, head) of uniform heads, of single-token heads and of heads without output; and the number of all heads."""
    _, block_inputs, records = probe.forward_outputs
    uniform, single, no_output, total = [], [], [], 0
    for layer, (record, block_input) in enumerate(zip(records, block_inputs, strict=False)):
        relative_norms = _head_output_norms(probe, layer, record.attention_output) / block_input.float().norm(dim=-1).mean()
        for head in range(len(record.uniform_distance)):
            total += 1
            if relative_norms[head] < MIN_OUTPUT_NORM_RATIO:
                no_output.append((layer, head))
            elif record.uniform_distance[head] < MAX_UNIFORM_DISTANCE:
                uniform.append((layer, head))
            elif record.single_token_share[head] > SINGLE_TOKEN_SHARE:
                single.append((layer, head))
    return uniform, single, no_output, total


def _mean_cosine_distance(vectors: Tensor) -> float:
    """Over the n (n - 1) pairs of different vectors of (n, hidden size): |sum of unit vectors|² = n + sum of cosines."""
    count = len(vectors)
    mean_cosine = float(normalize(vectors, dim=-1).sum(0).square().sum() - count) / max(1, count * (count - 1))
    return max(0.0, 1 - mean_cosine)


def _head_output_norms(probe: Probe, layer: int, attention_output: Tensor) -> Tensor:
    """(heads,): mean L2 norm of what each head adds to the residual stream; attention_output: (tokens, heads, head_dim)."""
    stack = probe.model.encoder.stack
    out = getattr(getattr(stack.layers[stack.group_indices[layer]].mixer, "projections", None), "output", None)
    if out is None or out.weight.shape[1] != attention_output[0].numel():
        return attention_output.norm(dim=-1).mean(0)
    weight_by_head = out.weight.detach().float().unflatten(1, attention_output.shape[1:])  # (hidden_size, heads, head_dim)
    norms = [
        (attention_output[:, head] @ weight_by_head[:, head].T).norm(dim=-1).mean() for head in range(attention_output.shape[1])
    ]
    return attention_output.new_tensor(norms)


def _describe_missing_masks(log: TrainingLog | None, probe: Probe | None) -> str | None:
    if probe is not None and (fraction := len(probe.batch.output_indices) / len(probe.batch.input_ids)) < MIN_MASKED_FRACTION:
        return f"{len(probe.batch.output_indices)} of {len(probe.batch.input_ids):,} tokens are masked ({fraction:.2%})"
    if log is not None and log.train_rows and not len(log.losses):
        return f"no row of the log has an MLM loss, over {log.steps:,} steps"
    return None


def _detect_copying(log: TrainingLog | None, probe: Probe | None) -> tuple[float, float, str] | None:
    """(logged loss, loss on [MASK] tokens, name of the former) where the former is far lower.

    Without a probe, the validation loss is compared with the pseudo-log-likelihood per token.
    """
    if log is None or not len(log.losses):
        return None
    if probe is not None and probe.has_mlm:
        losses = log.final_loss, probe.compute_mlm_loss(probe.forward_outputs[0]), "the training loss"
    else:
        _, eval_losses, _ = log.eval_losses()
        if (pseudo_nll := log.pseudo_nll()) is None or not len(eval_losses):
            return None
        losses = float(eval_losses[-1]), pseudo_nll, "the validation loss"
    return losses if losses[0] < COPY_LOSS_RATIO * losses[1] and losses[1] > 0.1 else None
