"""Kinds of `bertsmith show` that need torch: masks, a whole run, word senses, attention weights and spans, attributions, LSH
buckets, positions and head importance; and the recipe."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch

from ..artifacts import read_object, resolve_path
from ..compression.pruning.head_importance import compute_head_importance
from ..config import Config, MaxLength, NonNegInt, PosInt, Probability, from_dict, to_dict
from ..console import Console
from ..corpus.loader import BatchLoader
from ..corpus.store import Corpus
from ..errors import UserError
from ..evaluation.word_senses.page import render_page as render_senses
from ..inference.predictor import load
from ..model import checkpoint
from ..model.batch import Inputs
from ..model.mixers.adaptive_span import AdaptiveSpanAttention
from ..model.mixers.reformer.bucket_stats import compute_bucket_stats
from ..model.packing import Layout
from ..model.position_encodings import DistanceBias, cosine_similarity, find_position_encodings
from ..objectives import NextSentenceMLM, ObjectiveConfig, require_network
from ..reports.attention import render_attention
from ..reports.attribution import render_attribution
from ..reports.corpus import render_corpus
from ..reports.finetuning import render_filled_masks
from ..reports.head_importance import render_head_importance
from ..reports.html import Section
from ..reports.masking import render_masks
from ..reports.mixer_stats import BucketLayer, SpanLayer, render_buckets, render_spans
from ..reports.positions import render_distance_bias, render_position_vectors
from ..reports.training_curves import render_curves, render_results
from .show import Kind, Page, model_folder, open_corpus

BATCH_TOKENS = 16_384  # of the batches that samples are taken from
MAX_BUCKET_TOKENS = 2048  # bucket statistics compare all pairs of tokens
MAX_EXAMPLES = 1000  # that head importance is a mean over


class Recipe(Config, frozen=True):
    """The kind of page, its inputs and the HTML file to write."""

    kind: Annotated[Kind, "kind of page; also as `bertsmith show masks ...`"]
    out: Annotated[
        str | None, "output file: .html, or the charts as .svg or .png; a page of `show` that exists is replaced. In Python, "
        "without it the result shows the page in a notebook"
    ] = None  # fmt: skip
    overwrite: Annotated[bool, "replace a file that is no page of `show`; default: refuse"] = False
    corpus: Annotated[
        str | None, "corpus folder (masks, corpus, run, buckets; curves: for the baseline of an unfinished run)"
    ] = None
    model: Annotated[
        str | None,
        "checkpoint folder (all kinds but masks, corpus and tokenization; curves: also while training)",
    ] = None
    objective: Annotated[ObjectiveConfig, "masks: objective, as in `pretrain`"] = NextSentenceMLM()
    max_length: Annotated[MaxLength, "masks: maximum sequence length, in tokens"] = 128
    samples: Annotated[PosInt, "masks, run: number of samples"] = 12
    seed: Annotated[int, "masks: random seed, as in `pretrain`"] = 0
    epoch: Annotated[NonNegInt, "masks, run: epoch of the samples, from 0"] = 0
    validation_split: Annotated[Probability, "masks: as in `pretrain`, to show the samples it reads"] = 0.01
    texts: Annotated[
        tuple[str, ...], "attention, attribution, tokenization: texts to show; run: texts with [MASK] to fill"
    ] = ()
    target: Annotated[
        str | None,
        "attribution: the label, or the token at [MASK], whose probability is explained; default: the model's answer",
    ] = None
    tokenizer: Annotated[str | None, "tokenization: folder with a tokenizer (also a model or corpus), or a vocab.txt"] = None
    models: Annotated[tuple[str, ...], "senses: several checkpoints or word vectors, side by side"] = ()
    data: Annotated[
        str | None, "senses: table of sentences (text, position or [[word]], sense) or CoarseWSD-20 folder; head-importance: "
        "labelled examples of the model's task"
    ] = None  # fmt: skip
    word: Annotated[str | None, "senses: the word; default: all words of the folder, as tables only"] = None
    points: Annotated[PosInt, "senses: number of occurrences to plot, sampled evenly"] = 150
    skip_bad: Annotated[bool, "senses: skip invalid rows and rows without the word, and count them"] = False


def masking_page(recipe: Recipe, console: Console) -> Page:
    if not recipe.objective.can_fill_mask:
        raise UserError(f"objective={recipe.objective.__struct_config__.tag} does not mask tokens; set an MLM objective, "
                        "or use `bertsmith show corpus`")  # fmt: skip
    corpus = open_corpus(recipe)
    return Page("Masked training samples", [render_masks(corpus, _build_loader(recipe, corpus), recipe.samples, recipe.epoch)])


def senses_page(recipe: Recipe, console: Console) -> Page:
    """With the scores of every layer of the models."""
    models = [*([recipe.model] if recipe.model else []), *recipe.models]
    return Page(*render_senses(models, str(recipe.data), recipe.word, recipe.points, recipe.skip_bad, console))


def attention_page(recipe: Recipe, console: Console) -> Page:
    attentions = load(model_folder(recipe)).attentions(list(recipe.texts))
    return Page("Attention weights", [
        render_attention(text, text_attentions.tokens, text_attentions.weights, text_attentions.rollout)
        for text, text_attentions in zip(recipe.texts, attentions, strict=True)
    ])  # fmt: skip


def attribution_page(recipe: Recipe, console: Console) -> Page:
    """With the attributions of every token."""
    attributions = load(model_folder(recipe)).attributions(list(recipe.texts), target=recipe.target)
    sections = [
        render_attribution(text, result.tokens, result.values, *result[3:])
        for text, result in zip(recipe.texts, attributions, strict=True)
    ]
    numbers = [{"text": text, "target": result.target, "output": result.output, "baseline_output": result.baseline_output,
                "tokens": result.tokens, "values": result.values.tolist(), "completeness_error": result.completeness_error}
               for text, result in zip(recipe.texts, attributions, strict=True)]  # fmt: skip
    return Page("Integrated gradients", sections, {"attributions": numbers})


def spans_page(recipe: Recipe, console: Console) -> Page:
    """With the learned span of every head, by layer."""
    model, _, _ = checkpoint.load(model_folder(recipe))
    mixers = [mixer for mixer in model.encoder.stack.mixers if isinstance(mixer, AdaptiveSpanAttention)]
    if not mixers:
        raise UserError(f"{recipe.model} has no learned attention spans; models with mixer=adaptive-span have them")
    for mixer in mixers:
        mixer.trim()
    config = mixers[0].config
    layers = [SpanLayer(mixer.current_spans.tolist(), mixer.trimmed_span) for mixer in mixers]
    section = render_spans(layers, config.max_span, config.span_ramp, config.causal)
    numbers = {"max_span": config.max_span, "layers": [layer._asdict() for layer in layers]}
    return Page("Attention spans", [section], numbers)


def buckets_page(recipe: Recipe, console: Console) -> Page:
    """With LSH statistics of every head, by layer."""
    model, _, _ = checkpoint.load(model_folder(recipe))
    ids = open_corpus(recipe).tokens[: min(MAX_BUCKET_TOKENS, model.config.encoder.max_position_embeddings)]
    tokens = torch.from_numpy(ids.astype("int64"))
    layers = compute_bucket_stats(model, Inputs(tokens, Layout.from_lengths([len(tokens)])))
    if not layers:
        raise UserError(f"{recipe.model} has no LSH buckets; models with mixer=reformer have them")
    bucket_layers = [BucketLayer(*layer) for layer in layers]
    numbers = {"tokens": len(tokens), "layers": [layer._asdict() for layer in bucket_layers]}
    return Page("LSH buckets", [render_buckets(bucket_layers, len(tokens))], numbers)


def positions_page(recipe: Recipe, console: Console) -> Page:
    model, _, _ = checkpoint.load(model_folder(recipe))
    sections = [
        render_distance_bias(*encoding)
        if isinstance(encoding, DistanceBias)
        else render_position_vectors(*encoding, cosine_similarity(encoding.vectors))
        for encoding in find_position_encodings(model)
    ]
    if not sections:
        raise UserError(f"{recipe.model} has no position encodings: its layers read the order of the tokens themselves")
    return Page("Position encodings", sections)


def head_importance_page(recipe: Recipe, console: Console) -> Page:
    """With the importance of every head, by layer."""
    predictor = load(model_folder(recipe))
    task = predictor.require_task()
    examples = [example for example in task.read(resolve_path(recipe.data or "", "data")) if task.is_labeled(example)]
    if len(examples) > MAX_EXAMPLES:
        console.info(f"{recipe.data}: the first {MAX_EXAMPLES:,} of {len(examples):,} examples")
    importance = compute_head_importance(predictor, examples[:MAX_EXAMPLES])
    section = render_head_importance(importance, min(len(examples), MAX_EXAMPLES), str(recipe.data))
    return Page("Head importance", [section], {"importance": [layer.tolist() for layer in importance]})


def run_page(recipe: Recipe, console: Console) -> Page:
    """Results, filled masks, training curves, masked samples (with the model's own objective and seed) and corpus."""
    folder, corpus = model_folder(recipe), open_corpus(recipe)
    predictor = load(folder)
    filled = [(text, predictor.fill(text)) for text in recipe.texts]
    sections: list[Section] = [
        render_results(folder),
        *([render_filled_masks(filled)] if filled else []),
        render_curves(folder),
    ]
    train_recipe = _training_recipe(recipe, folder)
    if train_recipe.objective.can_fill_mask:
        sections.append(render_masks(corpus, _build_loader(train_recipe, corpus), recipe.samples, recipe.epoch))
    return Page("Pre-training report", [*sections, render_corpus(corpus)])


def _training_recipe(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the objective, max_length, seed and validation_split of the model's pre-training (from config.json)."""
    pretrain_settings = read_object(folder / "config.json").get("recipe", {})
    settings = {
        name: pretrain_settings[name] for name in ("objective", "seed", "validation_split") if name in pretrain_settings
    }
    if pretrain_settings.get("valid"):
        settings["validation_split"] = 0.0  # there is a separate validation corpus
    if pretrain_settings.get("max_length"):
        settings["max_length"] = pretrain_settings["max_length"][0]
    return from_dict(Recipe, {**to_dict(recipe), **settings}, str(folder / "config.json"))


def _build_loader(recipe: Recipe, corpus: Corpus) -> BatchLoader:
    documents, _ = corpus.split(recipe.validation_split, recipe.seed, recipe.objective.min_sentences)  # the split of `pretrain`
    return require_network(recipe.objective).build_batches(
        corpus, documents, recipe.max_length, max(BATCH_TOKENS, recipe.max_length), recipe.seed
    )


BUILDERS: dict[str, Callable[[Recipe, Console], Page]] = {
    "masks": masking_page, "run": run_page, "senses": senses_page, "attention": attention_page,
    "attribution": attribution_page, "spans": spans_page, "buckets": buckets_page, "positions": positions_page,
    "head-importance": head_importance_page,
}  # fmt: skip
