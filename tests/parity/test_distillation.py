"""Distillation losses equal the formulas of the papers, written again in numpy or with torch's own losses on padded batches."""

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from bertsmith.compression.distillation.losses import cosine_loss, hidden_state_loss, relation_loss
from bertsmith.compression.distillation.objective import CorpusDistillation, StateLosses, TaskDistillation, add_projections
from bertsmith.compression.distillation.recipe import Losses
from bertsmith.compression.distillation.replacing import ModuleReplacing, divide_modules
from bertsmith.compression.distillation.states import run_model
from bertsmith.model.batch import Inputs
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.objectives import MaskedLM
from bertsmith.objectives.supervised import Supervised
from bertsmith.objectives.task_losses import soft_label_loss
from bertsmith.train.objective import Batch
from tests.support.huggingface_models import VOCAB_SIZE, import_folder, save_random_model
from tests.support.models import BERT_ENCODER, TASKS

LENGTHS = (9, 4, 7)
EQUAL = (6, 6, 6)


def random_inputs(lengths=LENGTHS, seed=0):
    ids = torch.randint(5, VOCAB_SIZE, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    return Inputs(ids, Layout.from_lengths(lengths))


def random_tensors(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def numpy_softmax(x):
    exp = np.exp(x - x.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


@pytest.fixture
def models(tmp_path):
    """A teacher of transformers (2 layers, 4 heads of 8) as reference and as ours, and a student of 16 dimensions."""
    reference = save_random_model("BertModel", tmp_path / "hf")
    reference.set_attn_implementation("eager")
    _, teacher, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    return reference, teacher


def build_student(hidden_size=32, heads=2, seed=5, layers=2, **heads_config):
    mixer = Attention(num_attention_heads=heads)
    encoder = msgspec.structs.replace(
        BERT_ENCODER, hidden_size=hidden_size, mixer=mixer, num_hidden_layers=layers, hidden_dropout_prob=0.0
    )
    return build_model(ModelConfig(encoder=encoder, vocab_size=VOCAB_SIZE, heads=heads_config), seed)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 7.5])
def test_soft_labels_match_kl_div(temperature):
    logits, teacher_logits = random_tensors((6, 5), (6, 5))
    expected = F.kl_div(
        (logits / temperature).log_softmax(-1), (teacher_logits / temperature).softmax(-1), reduction="batchmean"
    )
    assert_close(soft_label_loss(logits, teacher_logits, temperature).mean(), expected * temperature**2)


def test_soft_label_gradient_does_not_depend_on_temperature_for_large_ones():
    """Hinton et al. 2015, section 2.1: in the limit the gradient is (z - v) / N of zero-mean logits."""
    logits, teacher_logits = (x - x.mean(-1, keepdim=True) for x in random_tensors((3, 4), (3, 4)))
    logits.requires_grad_()
    soft_label_loss(logits, teacher_logits, 1000.0).sum().backward()
    assert_close(logits.grad, (logits.detach() - teacher_logits) / 4, atol=1e-3, rtol=1e-2)


def test_impossible_choices_contribute_nothing():
    logits, teacher_logits = random_tensors((3, 4), (3, 4))
    padded = [F.pad(x, (0, 2), value=float("-inf")).requires_grad_() for x in (logits, teacher_logits)]
    loss = soft_label_loss(*padded, 2.0)
    assert_close(loss, soft_label_loss(logits, teacher_logits, 2.0))
    loss.sum().backward()
    assert torch.isfinite(padded[0].grad).all()


def test_hidden_and_cosine_losses_match_torch():
    a, b = random_tensors((7, 8), (7, 8))
    assert_close(hidden_state_loss(a, b).mean(), F.mse_loss(a, b))
    assert_close(cosine_loss(a, b).mean(), nn.CosineEmbeddingLoss()(a, b, torch.ones(7)))


@pytest.mark.parametrize(("dims", "heads"), [((16, 16), 4), ((16, 24), 8), ((16, 24), 1)])
def test_relations_match_the_formula_of_minilm(dims, heads):
    """MiniLMv2, section 3.1: KL of softmax(A_T A_T^T / sqrt(d_r)) and softmax(A_S A_S^T / sqrt(d_r)), per relation head."""
    x, teacher_x = random_tensors((sum(LENGTHS), dims[0]), (sum(LENGTHS), dims[1]))
    ours, start = relation_loss(x, teacher_x, heads, Layout.from_lengths(LENGTHS)), 0
    for length in LENGTHS:
        relations = []
        for states in (x, teacher_x):
            vectors = states[start : start + length].numpy().astype(np.float64).reshape(length, heads, -1).transpose(1, 0, 2)
            relations.append(numpy_softmax(vectors @ vectors.transpose(0, 2, 1) / np.sqrt(vectors.shape[-1])))
        q, p = relations
        expected = (p * np.log(p / q)).sum(-1).mean(0)
        np.testing.assert_allclose(ours[start : start + length].numpy(), expected, atol=1e-5)
        start += length


def test_teacher_states_match_transformers(models):
    """Hidden states of every layer; attention distributions are the softmax of the recorded scores."""
    reference, teacher = models
    inputs = random_inputs()
    with torch.no_grad():
        states = run_model(teacher, inputs, {1, 2})
    start = 0
    for number, length in enumerate(LENGTHS):
        with torch.no_grad():
            theirs = reference(
                inputs.input_ids[start : start + length][None], output_hidden_states=True, output_attentions=True
            )
        for ours, expected in zip(states.layer_states, theirs.hidden_states, strict=True):
            assert_close(ours[start : start + length], expected[0], atol=1e-5, rtol=1e-4)
        for layer, expected in enumerate(theirs.attentions, start=1):
            scores = states.attention[layer].scores(inputs.layout)[0][number, :, :length, :length]
            assert_close(scores.softmax(-1), expected[0], atol=1e-5, rtol=1e-4)
        start += length


def test_tinybert_losses_match_the_paper(models):
    """Equations 7 to 9 on a batch of equal lengths: MSE of scores, of projected hidden states, and of projected embeddings."""
    reference, teacher = models
    heads = teacher.config.encoder.mixer.num_attention_heads
    student, inputs = build_student(hidden_size=16, heads=heads, layers=1), random_inputs(EQUAL)
    states = StateLosses.build(Losses.presets()["tinybert"], student, teacher)
    add_projections(student, teacher, states, seed=0)
    assert states.layer_map == (2,)
    with torch.no_grad():
        ours = states.compute(student, run_model(student, inputs, {1}), run_model(teacher, inputs, {2}), inputs)
        ids = inputs.input_ids.unflatten(0, (3, -1))
        theirs = reference(ids, output_hidden_states=True)
        layer_states = []
        last = student(inputs, layer_states)
        assert_close(last, layer_states[-1])
        project = student.distillation
        shape = theirs.hidden_states[0].shape
        expected = {
            "hidden_states": F.mse_loss(project["hidden_states"](layer_states[1]).view(shape), theirs.hidden_states[2]),
            "embeddings": F.mse_loss(project["embeddings"](layer_states[0]).view(shape), theirs.hidden_states[0]),
        }

        def scores(x, query, key):
            q, k = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in (query, key))
            return q @ k.mT / q.shape[-1] ** 0.5

        attention = reference.encoder.layer[1].attention.self
        weight, bias = (
            student.encoder.stack.layers[0].mixer.projections.qkv.weight,
            student.encoder.stack.layers[0].mixer.projections.qkv.bias,
        )
        parts = [lambda x, w=w, b=b: F.linear(x, w, b) for w, b in zip(weight.chunk(3), bias.chunk(3), strict=True)]
        student_scores = scores(layer_states[0].unflatten(0, (3, -1)), *parts[:2])
        expected["attentions"] = F.mse_loss(student_scores, scores(theirs.hidden_states[1], attention.query, attention.key))
    for name, value in expected.items():
        assert_close(ours[name] / inputs.num_tokens, value, atol=1e-5, rtol=1e-4)


def test_minilm_loss_is_the_sum_of_attention_and_value_relations(models):
    reference, teacher = models
    student, inputs = build_student(heads=4, layers=1), random_inputs((8,))
    states = StateLosses.build(Losses.presets()["minilm"], student, teacher)
    with torch.no_grad():
        student_states = run_model(student, inputs, {1})
        ours = states.compute(student, student_states, run_model(teacher, inputs, {2}), inputs)["relations"] / 8
        theirs = reference(inputs.input_ids[None], output_attentions=True, output_hidden_states=True)
        values = reference.encoder.layer[1].attention.self.value(theirs.hidden_states[1])[0]
        own = student_states.attention[1]
        p, q = theirs.attentions[1][0], own.scores(inputs.layout)[0][0].softmax(-1)
        expected = (p * (p / q).log()).sum(-1).mean()
        relations = []
        for x in (values, own.vectors("v")):
            heads = x.unflatten(-1, (4, -1)).transpose(0, 1)
            relations.append((heads @ heads.mT / heads.shape[-1] ** 0.5).softmax(-1))
        p, q = relations
        expected = expected + (p * (p / q).log()).sum(-1).mean()
    assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_distilbert_loss_matches_its_training_script():
    """5 KL(T=2) T^2 over all tokens + 2 MLM + 1 cosine of the last hidden states (Sanh et al. 2019)."""
    teacher, student = build_student(seed=3, lm=LMHeadConfig()).eval(), build_student(seed=4, layers=1, lm=LMHeadConfig())
    loss = Losses.presets()["distilbert"]
    objective = CorpusDistillation(teacher, StateLosses.build(loss, student, teacher), MaskedLM())
    inputs, indices = random_inputs(), torch.tensor([1, 2, 10, 15])
    targets = {"output_indices": indices, "target_ids": torch.tensor([7, 8, 9, 6])}
    batch = objective.add_targets(Batch(inputs, targets, {"mlm": 4}), objective.states.names, all_tokens=True)
    ours = objective.compute_loss(student.train(), batch)
    mean = sum(part / batch.target_counts[name] for name, part in ours.parts.items())
    with torch.no_grad():
        hidden, teacher_hidden = student(inputs), teacher(inputs)
        logits, teacher_logits = student.compute_logits("lm", hidden), teacher.compute_logits("lm", teacher_hidden)
        kl = nn.KLDivLoss(reduction="batchmean")((logits / 2).log_softmax(-1), (teacher_logits / 2).softmax(-1)) * 2**2
        mlm = nn.CrossEntropyLoss()(logits[indices], targets["target_ids"])
        cosine = nn.CosineEmbeddingLoss()(hidden, teacher_hidden, torch.ones(len(hidden)))
    assert_close(mean, 5 * kl + 2 * mlm + cosine, atol=1e-5, rtol=1e-4)


def build_task_batch(kind, num_tokens):
    labels = {
        "classify": {"label": torch.tensor([0, 1, 1])},
        "regress": {"label": torch.tensor([0.5, 1.0, 0.0])},
        "tag": {"label": torch.arange(num_tokens) % 3},
        "answer": {"start": torch.tensor([0, 1, 2]), "end": torch.tensor([3, 1, 4])},
    }[kind]
    return Batch(random_inputs(), labels, {"task": num_tokens if kind == "tag" else 3})


@pytest.mark.parametrize("kind", ["classify", "regress", "tag", "answer"])
def test_soft_labels_of_tasks(kind):
    task = Supervised(TASKS[kind])
    teacher, student = (build_student(seed=seed, **task.heads()).eval() for seed in (3, 4))
    for module in student.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # of the head
    objective = TaskDistillation(teacher, StateLosses.build(Losses(temperature=3.0), student, teacher), task)
    batch = objective.add_targets(build_task_batch(kind, sum(LENGTHS)), [])
    ours = objective.compute_loss(student.train(), batch).parts["soft_labels"] / batch.target_counts["soft_labels"]
    with torch.no_grad():
        logits, teacher_logits = (task.compute_outputs(model.eval(), batch) for model in (student, teacher))

    def kl(x, y):
        return F.kl_div((x / 3).log_softmax(-1), (y / 3).softmax(-1), reduction="batchmean") * 9

    if kind == "regress":
        expected = F.mse_loss(logits[:, 0], teacher_logits[:, 0])
    elif kind == "answer":
        pairs = zip(logits.split(LENGTHS), teacher_logits.split(LENGTHS), strict=True)
        expected = torch.stack([(kl(x.T, y.T)) for x, y in pairs]).mean()
    else:
        expected = kl(logits, teacher_logits)
    assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_a_copy_of_the_teacher_has_no_loss(models):
    _, teacher = models
    loss = Losses(hidden_states=1, embeddings=1, attentions=1, relations=1, relation_types=("qk", "qq", "kk", "vv"), cosine=1)
    states, inputs = StateLosses.build(loss, teacher, teacher), random_inputs()
    with torch.no_grad():
        forward = run_model(teacher, inputs, {1, 2})
        parts = states.compute(teacher, forward, forward, inputs)
    assert set(parts) == {"hidden_states", "embeddings", "attentions", "relations", "cosine"}
    for value in parts.values():
        assert float(value) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("replaced", [(True, True), (True, False), (False, True), (False, False)])
def test_module_replacing_matches_a_model_of_transformers_with_swapped_layers(tmp_path, replaced):
    """BERT-of-Theseus: the successor's embeddings, of each module its layer or the predecessor's; only its own layers learn."""
    reference, folders = [], []
    for number in range(2):
        model = save_random_model(
            "BertModel", tmp_path / f"hf-{number}", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + number / 2)
        model.save_pretrained(tmp_path / f"hf-{number}")
        reference.append(model)
        folders.append(import_folder(tmp_path / f"hf-{number}", tmp_path / f"ours-{number}")[1])
    (predecessor, successor), (teacher, student) = reference, folders
    for index, is_replaced in enumerate(replaced):
        if not is_replaced:
            successor.encoder.layer[index] = predecessor.encoder.layer[index]
    inputs = random_inputs(EQUAL)
    objective = ModuleReplacing(teacher.requires_grad_(False), Supervised(TASKS["classify"]), divide_modules(2, 2))
    hidden_states = objective.forward(student.train(), inputs, replaced)
    expected = successor(inputs.input_ids.view(3, 6)).last_hidden_state.flatten(0, 1)
    assert_close(hidden_states, expected, atol=1e-5, rtol=1e-5)
    hidden_states.square().sum().backward()
    expected.square().sum().backward()
    for index, is_replaced in enumerate(replaced):
        grad = student.encoder.stack.layers[index].feedforward.output.weight.grad
        assert (grad is not None) == is_replaced
        if grad is not None:
            assert_close(grad, successor.encoder.layer[index].output.dense.weight.grad, atol=1e-3, rtol=1e-4)
