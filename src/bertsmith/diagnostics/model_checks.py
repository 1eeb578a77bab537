"""Hidden states that have collapsed: every text has the same vector."""

from collections.abc import Iterator

from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ..model.model import Model, build_model
from ..model.packing import segment_means
from .finding import Finding, format_number
from .probe import Probe
from .run_log import RunSettings, TrainingLog

# 1 - cosine, on average over pairs of texts, and of tokens. Trained models have 0.1 and more; untrained ones, whose texts are
# means of what was never told apart, 0.0005 and 0.05.
MIN_TEXT_DISTANCE, MIN_TOKEN_DISTANCE = 1e-4, 0.005
MIN_TEXTS = 4  # texts


def check_collapse(probe: Probe, run: RunSettings) -> Iterator[Finding]:
    texts, tokens = compute_cosine_distances(probe)
    if probe.layout.num_sequences < MIN_TEXTS or texts >= MIN_TEXT_DISTANCE or tokens >= MIN_TOKEN_DISTANCE:
        return
    rate = run.train_setting("rate")
    yield Finding(
        "collapsed hidden states", "problem",
        f"the vectors of {probe.layout.num_sequences} different texts lie {texts:.1g} apart (1 - cosine, on average), and those of "
        f"their tokens {tokens:.1g}",
        "whatever the text, the model answers the same: it knows how frequent words are, and forgot what it reads",
        "begin again at a lower rate with a longer warm-up; deep models with norms after each part want model.norm=before",
        f"train.rate={format_number(rate / 10)}" if rate else None,
    )  # fmt: skip


def compute_cosine_distances(probe: Probe) -> tuple[float, float]:
    """The mean of 1 - cosine over pairs of texts, each the mean of its tokens, and over pairs of tokens."""
    rows, owner = probe.forward_outputs[0][probe.text_mask].double(), probe.layout.seq_id[probe.text_mask]
    return _mean_cosine_distance(segment_means(rows, owner)), _mean_cosine_distance(rows)


def _mean_cosine_distance(vectors: Tensor) -> float:
    """A vector is no pair with itself."""
    count = len(vectors)
    together = float(normalize(vectors, dim=-1).sum(0).square().sum() - count) / max(1, count * (count - 1))
    return max(0.0, 1 - together)


MAX_UNIFORM_DISTANCE = 0.02  # distance from looking at all tokens alike
SINGLE_TOKEN_SHARE = 0.98  # of the attention; trained heads rest on [SEP] too, with less
MIN_OUTPUT_NORM_RATIO = 1e-3  # of the length of what the head's output is added to
DEAD_HEADS_PROBLEM = 1 / 3  # of all heads: fewer are usual in a trained model


def check_dead_heads(probe: Probe) -> Iterator[Finding]:
    even, single, silent, total = find_dead_heads(probe)
    dead = {*even, *single, *silent}
    if not dead:
        return
    kinds = ((even, "look at all tokens alike"), (single, "look at one token only"), (silent, "give nothing back"))
    told = ", ".join(f"{len(some)} {what}" for some, what in kinds if some)
    where = ", ".join(f"{layer}.{head}" for layer, head in sorted(dead)[:8])
    many = len(dead) > DEAD_HEADS_PROBLEM * total
    yield Finding(
        "dead heads", "problem" if many else "note",
        f"{len(dead)} of {total} heads do nothing on {probe.layout.num_sequences} texts: {told} (layer.head {where})",
        "tokens hardly learn from one another: attention has not begun to work, or has collapsed" if many else
        "some heads rest, as in most trained models; they could be pruned",
        "if the run was short, train longer; begin with larger weights, which wakes attention sooner; if the rate was high, "
        "lower it" if many else "nothing needs to be done",
        f"model.deviation={max(0.04, 2 * probe.model.config.encoder.deviation):.2g}" if many else None,
    )  # fmt: skip


def find_dead_heads(probe: Probe) -> tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]], int]:
    """(layer, head) of those that look at all alike, at one token, or give nothing; and how many heads there are."""
    _, kept, seen = probe.forward_outputs
    even, single, silent, total = [], [], [], 0
    for layer, (call, before) in enumerate(zip(seen, kept, strict=False)):
        added = _head_output_norms(probe, layer, call.attention_output) / before.float().norm(dim=-1).mean()
        for head in range(len(call.uniform_distance)):
            total += 1
            if added[head] < MIN_OUTPUT_NORM_RATIO:
                silent.append((layer, head))
            elif call.uniform_distance[head] < MAX_UNIFORM_DISTANCE:
                even.append((layer, head))
            elif call.single_token_share[head] > SINGLE_TOKEN_SHARE:
                single.append((layer, head))
    return even, single, silent, total


def _head_output_norms(probe: Probe, layer: int, attention_output: Tensor) -> Tensor:
    """(heads,): the mean length of what each adds to a token."""
    stack = probe.model.encoder.stack
    out = getattr(getattr(stack.blocks[stack.block_indices[layer]].mixer, "project", None), "out", None)
    if out is None or out.weight.shape[1] != attention_output[0].numel():
        return attention_output.norm(dim=-1).mean(0)
    by_head = out.weight.detach().float().unflatten(1, attention_output.shape[1:])  # (width, heads, width of a head)
    lengths = [
        (attention_output[:, head] @ by_head[:, head].T).norm(dim=-1).mean() for head in range(attention_output.shape[1])
    ]
    return attention_output.new_tensor(lengths)


POSITIONS_UNUSED = "positions unused"
MIN_HIDDEN_CHANGE = 0.001  # of its length: what a hidden state changes by when the words around it change places
MIN_LOSS_INCREASE = 0.01  # of the loss: what another order must cost a model that learnt from order
UNMOVED_COSINE = 0.9999  # cosine of a row with its beginning; weight decay alone only shortens it
MAX_UNTRAINED_FRACTION = 0.25  # of the table


def check_word_order(probe: Probe, unigram_loss: float | None) -> Iterator[Finding]:
    """`baseline` is what the same words cost by frequency alone; a model that is no better cannot show what it uses."""
    if not probe.model.config.encoder.layers:
        return  # a table of words is a bag of words, and means to be
    (hidden, _, _), other = probe.forward_outputs, probe.shuffled_hidden_states
    apart = (other - hidden)[probe.text_mask].norm(dim=-1) / hidden[probe.text_mask].norm(dim=-1).clamp(min=1e-9)
    changed = float(apart.mean())
    told = f"with their words in another order, hidden states of {probe.layout.num_sequences} texts change by {changed:.2%}"
    same = changed < MIN_HIDDEN_CHANGE
    if probe.has_mlm:
        before, after = probe.compute_mlm_loss(hidden), probe.compute_mlm_loss(other)
        told += f"; hidden words cost {before:.3f} nats in order, {after:.3f} in disorder"
        learnt = unigram_loss is not None and before < 0.95 * unigram_loss
        same = same or (learnt and after < (1 + MIN_LOSS_INCREASE) * before)
    if same:
        table = probe.model.encoder.positions is not None
        yield Finding(
            POSITIONS_UNUSED, "problem", told, "the model reads a text as a bag of words: it cannot tell who did what to whom",
            "see that positions are trained, not frozen, and not lost on the way (zeros in an imported checkpoint); text whose "
            "order means nothing gives this too" if table else "give it a table of positions, or rotary ones",
            "model.deviation=0.04" if table else "model.table=true",
        )  # fmt: skip


def check_position_embeddings(model: Model, run: RunSettings) -> Iterator[Finding]:
    """Rows of the table that no text has reached: exact, since the first weights follow from the seed."""
    table = model.encoder.positions
    if run.stage != "pretrain" or not run.is_random_init or run.recipe is None or table is None:
        return
    first = build_model(model.config, run.recipe["seed"]).encoder.positions
    assert first is not None, "the same config builds the same parts"
    still = int((cosine_similarity(table.weight, first.weight) > UNMOVED_COSINE).sum())
    count, length = table.num_embeddings, max(run.recipe["length"])
    if still == count:
        yield Finding(
            "positions untrained", "problem", f"all {count} positions are where they began",
            "training has not moved them: they are frozen, or nothing was learnt at all",
            "mend first what else was found; if there is nothing, raise the rate", f"train.rate={10 * run.train_setting('rate'):.2g}",
        )  # fmt: skip
    elif still > MAX_UNTRAINED_FRACTION * count:
        yield Finding(
            "positions untrained", "note", f"{still} of {count} positions are where they began; the longest text was {length}",
            "longer texts than it was trained on would be read at places that mean nothing to it",
            "keep texts as short as in training, or train the last part of the run on longer ones",
            f"length='[{length}, {count}]'" if length < count else f"model.positions={count - still}",
        )  # fmt: skip


MASKS_MISSING = "masks missing"
MIN_MASKED_FRACTION, LOW_MLM_PROBABILITY = 0.01, 0.05  # of the tokens asked for
COPY_LOSS_RATIO = (
    0.4  # of what hidden words cost: a loss that low was not made on hidden words, of which there are eight in ten
)


def check_masking(log: TrainingLog | None, run: RunSettings, probe: Probe | None) -> Iterator[Finding]:
    asked = (run.recipe or {}).get("objective", {}).get("rate", 0.15)
    if run.is_pretraining and (seen := _describe_missing_masks(log, probe)):
        yield Finding(
            MASKS_MISSING, "problem", f"{seen}, with objective.rate={asked:g}",
            "hardly a word is hidden, so there is hardly anything to learn from",
            "ask for 15 to 40 % of the tokens; text that is all unknown words or specials has nothing to hide",
            "objective.rate=0.15",
        )  # fmt: skip
    elif run.is_pretraining and asked < LOW_MLM_PROBABILITY:
        yield Finding(
            "few masks", "note", f"objective.rate={asked:g}", "each step teaches little: BERT asks for 15 % of the tokens",
            "hide more", "objective.rate=0.15",
        )  # fmt: skip
    if found := _detect_copying(log, probe):
        shown, hidden, where = found
        yield Finding(
            MASKS_MISSING, "problem", f"{where} is {shown:.3f}, but words that are truly hidden cost {hidden:.3f} nats",
            "in training the words stood in plain sight: it learnt to copy them, and never met a [MASK]",
            "see that the objective hides words (`bertsmith show masks` draws what the model is shown), then train again",
            "objective.masks=pieces",
        )  # fmt: skip


def _describe_missing_masks(log: TrainingLog | None, probe: Probe | None) -> str | None:
    if probe is not None and (share := len(probe.batch.output_indices) / len(probe.batch.input_ids)) < MIN_MASKED_FRACTION:
        return f"{len(probe.batch.output_indices)} of {len(probe.batch.input_ids):,} tokens are asked for ({share:.2%})"
    if log is not None and log.train_rows and not len(log.losses):
        return f"no row of the log has a loss on words, over {log.steps:,} steps"
    return None


def _detect_copying(log: TrainingLog | None, probe: Probe | None) -> tuple[float, float, str] | None:
    """A loss in the log that is far below that of hidden words, and what both are; held-out with held-out, if not probed."""
    if log is None or not len(log.losses):
        return None
    if probe is not None and probe.has_mlm:
        found = log.final_loss, probe.compute_mlm_loss(probe.forward_outputs[0]), "the loss in training"
    else:
        _, held, _ = log.eval_losses()
        if (alone := log.pseudo_nll()) is None or not len(held):
            return None
        found = float(held[-1]), alone, "the loss on held-out text"
    return found if found[0] < COPY_LOSS_RATIO * found[1] and found[1] > 0.1 else None
