"""Pages of `bertsmith show` that need torch: masks, word senses, attention weights and spans, LSH buckets, a whole run; and its
recipe."""

from pathlib import Path
from typing import Annotated, Any

import torch

from ..artifacts import read_object
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
from ..objectives import NextSentenceMLM, ObjectiveConfig, require_network
from ..reports.attention import render_attention
from ..reports.corpus import render_corpus
from ..reports.finetuning import render_filled_masks
from ..reports.html import Section
from ..reports.masking import render_masks
from ..reports.mixer_stats import BucketLayer, SpanLayer, render_buckets, render_spans
from ..reports.training_curves import render_curves, render_results
from .show import Kind, model_folder, open_corpus

BATCH_TOKENS = 16_384  # of the batches that samples are taken from
MAX_BUCKET_TOKENS = 2048  # bucket statistics compare all pairs of tokens


class Recipe(Config, frozen=True):
    """The kind of page, its inputs and the HTML file to write."""

    kind: Annotated[Kind, "kind of page; also as `bertsmith show masks ...`"]
    out: Annotated[str, "output HTML file; a page of `show` that exists is replaced"]
    overwrite: Annotated[bool, "replace a file that is no page of `show`; default: refuse"] = False
    corpus: Annotated[
        str | None, "corpus folder (masks, corpus, run, buckets; curves: for the baseline of an unfinished run)"
    ] = None
    model: Annotated[
        str | None, "checkpoint folder (curves, run, senses, attention, spans, buckets; curves: also while training)"
    ] = None
    objective: Annotated[ObjectiveConfig, "masks: objective, as in `pretrain`"] = NextSentenceMLM()
    max_length: Annotated[MaxLength, "masks: maximum sequence length, in tokens"] = 128
    samples: Annotated[PosInt, "masks, run: number of samples"] = 12
    seed: Annotated[int, "masks: random seed, as in `pretrain`"] = 0
    epoch: Annotated[NonNegInt, "masks, run: epoch of the samples, from 0"] = 0
    validation_split: Annotated[Probability, "masks: as in `pretrain`, to show the samples it reads"] = 0.01
    texts: Annotated[tuple[str, ...], "run: texts with [MASK] to fill; attention: texts to show"] = ()
    models: Annotated[tuple[str, ...], "senses: several checkpoints or word vectors, side by side"] = ()
    data: Annotated[str | None, "senses: table of sentences (text, position or [[word]], sense) or CoarseWSD-20 folder"] = None
    word: Annotated[str | None, "senses: the word; default: all words of the folder, as tables only"] = None
    points: Annotated[PosInt, "senses: number of occurrences to plot, sampled evenly"] = 150
    skip_bad: Annotated[bool, "senses: skip invalid rows and rows without the word, and count them"] = False


def masking_page(recipe: Recipe) -> tuple[str, list[Section]]:
    if not recipe.objective.can_fill_mask:
        raise UserError(f"objective={recipe.objective.__struct_config__.tag} does not mask tokens; set an MLM objective, "
                        "or use `bertsmith show corpus`")  # fmt: skip
    corpus = open_corpus(recipe)
    return "Masked training samples", [render_masks(corpus, _build_loader(recipe, corpus), recipe.samples, recipe.epoch)]


def senses_page(recipe: Recipe, console: Console) -> tuple[str, list[Section], dict[str, Any]]:
    """(title, sections, result): scores of every layer of the models."""
    models = [*([recipe.model] if recipe.model else []), *recipe.models]
    return render_senses(models, str(recipe.data), recipe.word, recipe.points, recipe.skip_bad, console)


def attention_page(recipe: Recipe) -> tuple[str, list[Section]]:
    attentions = load(model_folder(recipe)).attentions(list(recipe.texts))
    return "Attention weights", [
        render_attention(text, text_attentions.tokens, text_attentions.weights)
        for text, text_attentions in zip(recipe.texts, attentions, strict=True)
    ]


def spans_page(recipe: Recipe) -> tuple[str, list[Section], dict[str, Any]]:
    """(title, sections, result): the learned span of every head, by layer."""
    model, _, _ = checkpoint.load(model_folder(recipe))
    mixers = [mixer for mixer in model.encoder.stack.mixers if isinstance(mixer, AdaptiveSpanAttention)]
    if not mixers:
        raise UserError(f"{recipe.model} has no learned attention spans; models with mixer=adaptive-span have them")
    for mixer in mixers:
        mixer.trim()
    config = mixers[0].config
    layers = [SpanLayer(mixer.current_spans.tolist(), mixer.trimmed_span) for mixer in mixers]
    section = render_spans(layers, config.max_span, config.span_ramp, config.causal)
    return "Attention spans", [section], {"max_span": config.max_span, "layers": [layer._asdict() for layer in layers]}


def buckets_page(recipe: Recipe) -> tuple[str, list[Section], dict[str, Any]]:
    """(title, sections, result): LSH statistics of every head, by layer."""
    model, _, _ = checkpoint.load(model_folder(recipe))
    ids = open_corpus(recipe).tokens[: min(MAX_BUCKET_TOKENS, model.config.encoder.max_position_embeddings)]
    tokens = torch.from_numpy(ids.astype("int64"))
    layers = compute_bucket_stats(model, Inputs(tokens, Layout.from_lengths([len(tokens)])))
    if not layers:
        raise UserError(f"{recipe.model} has no LSH buckets; models with mixer=reformer have them")
    bucket_layers = [BucketLayer(*layer) for layer in layers]
    section = render_buckets(bucket_layers, len(tokens))
    return "LSH buckets", [section], {"tokens": len(tokens), "layers": [layer._asdict() for layer in bucket_layers]}


def run_page(recipe: Recipe) -> tuple[str, list[Section]]:
    """Results, filled masks, training curves, masked samples (with the model's own objective and seed) and corpus."""
    folder, corpus = model_folder(recipe), open_corpus(recipe)
    predictor = load(folder)
    filled = [(text, predictor.fill(text)) for text in recipe.texts]
    sections = [render_results(folder), *([render_filled_masks(filled)] if filled else []), render_curves(folder)]
    train_recipe = _training_recipe(recipe, folder)
    if train_recipe.objective.can_fill_mask:
        sections.append(render_masks(corpus, _build_loader(train_recipe, corpus), recipe.samples, recipe.epoch))
    return "Pre-training report", [*sections, render_corpus(corpus)]


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
