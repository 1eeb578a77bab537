"""A run of `compress`: train students and pruned models, export each in several precisions, measure, choose the smallest."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from ...artifacts import MANIFEST, atomic_folder, content_hash, fingerprint, read_finished_run, read_json, resolve_path
from ...config import from_dict, to_dict
from ...console import Console
from ...convert.onnx.folder import export_graphs
from ...errors import UserError
from ...evaluation.evaluate import Evaluation, evaluate_model
from ...inference.predictor import load
from ...metrics.intervals import ConfidenceInterval
from ...reports.html import write_page
from ...writing import check_writable, lock_output, resolve_output, write_json
from ..distillation.layers import map_layers
from ..distillation.recipe import DistillRecipe, DistillTrain, Losses, Shape
from ..distillation.run import distill
from ..pruning.recipe import PruneRecipe
from ..pruning.run import prune
from ..quantization.recipe import QuantizeRecipe
from ..quantization.run import quantize
from ..recovery.report import share_kept
from ..recovery.run import Setup, load_source, read_setup
from .candidates import REFERENCE, Candidate, Trained, list_candidates, list_trained
from .front import Artifact, Front, Omitted
from .measure import measure_all
from .page import render_page
from .recipe import CompressRecipe, check_recipe, compress_identity

ROUNDS = 3  # of measurements, in which every artifact has its turn
MAX_GATE = 0.999  # of quantize, which takes a share below 1
MODEL, SEARCH, FRONT, PAGE = "model", "search", "front.json", "front.html"  # in the output folder


def compress(recipe: CompressRecipe, quiet: bool = False) -> dict[str, Any]:
    """Search, resume an interrupted search, or return the result of a finished one.

    Raises a UserError if no smaller artifact passes the gate; the front is written all the same.
    """
    check_recipe(recipe)
    console, out, identity = Console(quiet), resolve_output(recipe.out), compress_identity(recipe)
    with lock_output(out):
        if (out / MODEL / MANIFEST).is_file():
            if (finished := read_finished_run(out / MODEL, identity)) is None:
                raise UserError(f"{out} contains a model of another recipe; choose another out, or remove the folder")
            console.info(f"{out} already exists, created by the same recipe")
            return {"out": str(out / MODEL), "created": False, **finished}
        check_writable(out, SEARCH, FRONT)
        return _Search(recipe, out, identity, console, quiet).run()


class _Scored(NamedTuple):
    """An exported candidate and its score."""

    candidate: Candidate
    score: ConfidenceInterval
    kept: float


class _Search:
    """Trains, exports, scores and measures the candidates of a recipe."""

    def __init__(self, recipe: CompressRecipe, out: Path, identity: str, console: Console, quiet: bool) -> None:
        self.recipe, self.out, self.identity, self.console, self.quiet = recipe, out, identity, console, quiet
        self.source = load_source(self._prune_recipe(Trained(), 0.5))
        self.setup = self._read_setup()
        self.omitted = list[Omitted]()

    def run(self) -> dict[str, Any]:
        trained = list_trained(self.recipe, self.source.model.config.encoder.num_hidden_layers)
        self._export(REFERENCE)
        original = self._evaluate(REFERENCE)
        self.console.info(f"{self.recipe.model}: {self.metric} {original.intervals[self.metric].value:.4f}")
        self._check_original(original)
        scored = list[_Scored]()
        for model in trained:
            if self._train(model, scored):
                scored += [
                    one for candidate in list_candidates(self.recipe, model) if (one := self._score(candidate, original))
                ]
        folders = [self._artifact_folder(one.candidate) for one in scored]
        self.console.info(f"measuring {len(folders)} artifacts")
        costs = measure_all(folders, self.recipe.format, self.setup.examples.dev, ROUNDS)
        front = Front(
            self.metric, self.recipe.gate,
            [Artifact(*one, cost) for one, cost in zip(scored, costs, strict=True)], tuple(self.omitted),
        )  # fmt: skip
        return self._publish(front)

    @property
    def metric(self) -> str:
        return self.setup.metric

    # -- training

    def _train(self, model: Trained, scored: list[_Scored]) -> bool:
        """Whether the model exists: trained now or before, unless its parent is below the gate."""
        if model.is_original:
            return True
        assert model.parent is not None
        kept = [one.kept for one in scored if one.candidate.trained == model.parent]
        if model.amount and kept and max(kept) < self.recipe.gate:
            self.omitted.append(Omitted(model.describe(), f"{model.parent.describe()} is below the gate before it is pruned"))
            return False
        self.console.info(f"{model.describe()}: {'prune' if model.amount else 'distill'}")
        if model.amount:
            prune(self._prune_recipe(model, model.amount), self.quiet)
        else:
            distill(self._distill_recipe(model), self.quiet)
        return True

    def _prune_recipe(self, model: Trained, amount: float) -> PruneRecipe:
        recipe = self.recipe
        parent = self._model_folder(model.parent or model)
        return PruneRecipe(
            model=parent, out=str(self.out / SEARCH / model.folder), data=recipe.data, unit=recipe.unit, amount=amount,
            max_length=recipe.max_length, train=recipe.train, seed=recipe.seed,
        )  # fmt: skip

    def _distill_recipe(self, model: Trained) -> DistillRecipe:
        recipe = self.recipe
        names = {*DistillTrain.__struct_fields__}
        encoder = self.source.model.config.encoder
        loss = recipe.loss or (Losses(cosine=1.0) if encoder.norm == "pre" else Losses(hidden_states=1.0))
        assert model.num_hidden_layers is not None
        layers = map_layers("uniform", model.num_hidden_layers, encoder.num_hidden_layers)  # those that teach it
        train = {name: value for name, value in to_dict(recipe.train).items() if name in names}
        return DistillRecipe(
            teacher=recipe.model, out=str(self.out / SEARCH / model.folder), data=recipe.data, loss=loss,
            student=Shape(num_hidden_layers=model.num_hidden_layers, init_layers=tuple(layers)), max_length=recipe.max_length,
            train=from_dict(DistillTrain, train, "train"), seed=recipe.seed,
        )  # fmt: skip

    def _model_folder(self, model: Trained) -> str:
        return self.recipe.model if model.is_original else str(self.out / SEARCH / model.folder)

    # -- artifacts

    def _read_setup(self) -> Setup:
        setup = read_setup(self._prune_recipe(Trained(), 0.5), self.source, self.console)
        assert setup is not None
        if not setup.examples.dev:
            raise UserError("compress compares scores on dev examples; set data.dev=FILE, or data.validation_split=0.1")
        return setup

    def _check_original(self, original: Evaluation) -> None:
        """Raises a UserError if the share of the original's score means nothing."""
        result = original.metrics[self.metric]
        if not result.lower_is_better and not result.score > 0:
            raise UserError(
                f"{self.recipe.model} has a {self.metric} of {result.score:.4f} on the dev examples, and nothing can keep a "
                "share of it; fine-tune it first, or check data.dev"
            )

    def _artifact_folder(self, candidate: Candidate) -> Path:
        return self.out / SEARCH / candidate.folder

    def _export(self, candidate: Candidate) -> None:
        """Write the folder of an artifact, unless it exists; int8 with the tables of the embeddings, by `quantize`."""
        source, folder = resolve_path(self._model_folder(candidate.trained), "model"), self._artifact_folder(candidate)
        if candidate.precision == "int8" and self.recipe.format == "onnx":
            quantize(self._quantize_recipe(candidate), quiet=True)
            return
        identity = fingerprint([content_hash(source), self.recipe.format, candidate.precision])
        export_graphs(source, folder, self.recipe.format, Console(True), identity, candidate.precision)

    def _quantize_recipe(self, candidate: Candidate) -> QuantizeRecipe:
        recipe = self.recipe
        return QuantizeRecipe(
            model=self._model_folder(candidate.trained), out=str(self._artifact_folder(candidate)), data=recipe.data,
            gate=min(recipe.gate, MAX_GATE), max_length=recipe.max_length, seed=recipe.seed,
        )  # fmt: skip

    def _evaluate(self, candidate: Candidate) -> Evaluation:
        predictor = load(str(self._artifact_folder(candidate)), self.recipe.format, "fp32")
        predictor.max_length = self.setup.max_length
        return evaluate_model(predictor, self.setup.examples.dev)

    def _score(self, candidate: Candidate, original: Evaluation) -> _Scored | None:
        """Export and evaluate a candidate; None if the export is refused, such as by the check of int8."""
        try:
            self._export(candidate)
        except UserError as error:
            self.omitted.append(Omitted(candidate.describe(), str(error)))
            self.console.warn(f"{candidate.describe()}: {error}")
            return None
        evaluation = original if candidate == REFERENCE else self._evaluate(candidate)
        result, interval = original.metrics[self.metric], evaluation.intervals[self.metric]
        kept = share_kept(interval.value, result.score, result.lower_is_better)
        self.console.info(f"{candidate.describe()}: {self.metric} {interval.value:.4f}, {kept:.1%} of the original")
        return _Scored(candidate, interval, kept)

    # -- results

    def _publish(self, front: Front) -> dict[str, Any]:
        self.console.print_table(str(self.out / PAGE), [front.header(), *map(front.row, front.artifacts)])
        write_json(self.out / FRONT, front.to_dict())
        write_page(self.out / PAGE, render_page(front, self.recipe.model))
        chosen = front.chosen
        if chosen is None:
            best = front.best_smaller
            found = f"; {best.name} keeps {best.kept:.1%}" if best else ""
            raise UserError(
                f"no smaller model keeps {front.gate:.1%} of the {front.metric}{found}, so none was written ({self.out / PAGE} "
                "has all of them); lower the gate, train longer (train.epochs), or try other num_hidden_layers and amount"
            )
        result = front.to_dict()
        run: dict[str, Any] = {"identity": self.identity, "result": result}
        source = self._artifact_folder(chosen.candidate)
        with atomic_folder(self.out / MODEL, run) as staging:
            for path in source.iterdir():
                if path.name != MANIFEST:
                    (shutil.copytree if path.is_dir() else shutil.copyfile)(path, staging / path.name)
            card = {**read_json(source / "card.json"), "compression": {"original": self.recipe.model, **front.describe(chosen)}}
            write_json(staging / "card.json", card)
        self.console.info(f"{self.out / MODEL}: {chosen.name}")
        return {"out": str(self.out / MODEL), "created": True, **result}
