"""Streamed text: its pieces concatenate to the text that is generated at once, whatever a token is; output of a terminal."""

import io
import sys

import msgspec
import pytest
import torch

import bertsmith
from bertsmith.console import escape_controls
from bertsmith.errors import UserError
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.text_generation import stream_text
from bertsmith.model import checkpoint
from bertsmith.model.decoders import TransformerDecoderConfig
from bertsmith.model.generation.config import Greedy
from bertsmith.model.generation.search import GeneratedSequence
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tasks import Seq2Seq
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.cli import run_cli
from tests.support.models import BERT_ENCODER, CAUSAL_ENCODER

KINDS = ("wordpiece", "bpe", "byte-bpe", "unigram", "char", "byte", "word")
TEXT = "the people don't say 'now' , do they ?\nwater is wet . ein Ärger\n漢字 and 漢字 again 🎈\n" * 20


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    (folder / "text.txt").write_text(TEXT)
    for kind in KINDS:
        bertsmith.train_tokenizer(
            texts=folder / "text.txt", kind=kind, vocab_size=300, lowercase=False, out=folder / kind, quiet=True
        )
    return {kind: Tokenizer.load(folder / kind) for kind in KINDS}


def build_gpt(tokenizer, **changes):
    config = ModelConfig(
        encoder=msgspec.structs.replace(CAUSAL_ENCODER, initializer_range=0.2, **changes), vocab_size=len(tokenizer),
        heads={"lm": LMHeadConfig()},
    )  # fmt: skip
    return Predictor(TorchEngine(build_model(config, 1)), tokenizer, {})


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_the_generated_text(tokenizers, kind):
    model = build_gpt(tokenizers[kind])
    searches = [{"kind": "sample", "temperature": t, "seed": seed} for t in (1.0, 0.5) for seed in range(8)]
    num_pieces = 0
    for search in [{}, {"no_repeat_ngram_size": 1}, *searches]:
        for prompt in ("", "the people", "don't", "漢"):
            pieces = list(model.stream(prompt, max_new_tokens=30, **search))
            assert "".join(pieces) == model.generate(prompt, max_new_tokens=30, **search)["generated_text"]
            assert all(pieces)
            num_pieces = max(num_pieces, len(pieces))
    assert num_pieces > 10


def test_a_character_of_several_tokens_comes_whole(tokenizers):
    tokenizer = tokenizers["byte"]
    ids = tokenizer.backend_tokenizer.encode("a漢🎈\ufffdb", add_special_tokens=False).ids
    assert len(ids) > 10
    sequences = (GeneratedSequence(ids[:end], 0.0, False) for end in range(1, len(ids) + 1))
    pieces = list(stream_text(build_gpt(tokenizer).engine, sequences, tokenizer.decode))
    assert pieces == ["a", "漢", "🎈", "\ufffdb"]
    cut = (GeneratedSequence(ids[:end], 0.0, False) for end in range(1, 4))  # ended within a character
    assert list(stream_text(build_gpt(tokenizer).engine, cut, tokenizer.decode)) == ["a", "\ufffd"]


def test_text_comes_token_by_token_and_leaves_no_inference_mode_behind(tokenizers):
    model = build_gpt(tokenizers["wordpiece"])
    steps = []
    forward = model.model.forward
    model.model.forward = lambda *args: steps.append(1) or forward(*args)
    pieces = model.stream("the people", max_new_tokens=10)
    next(pieces)
    assert len(steps) <= 2 and not torch.is_inference_mode_enabled()
    pieces.close()
    assert len(steps) <= 2


def test_stream_refuses_what_it_cannot_do(tokenizers):
    model = build_gpt(tokenizers["wordpiece"])
    with pytest.raises(UserError, match="beam search knows its text only at the end"):
        model.stream("the people", kind="beam")  # before the first piece is asked for
    with pytest.raises(UserError, match="takes one text"):
        model.stream(["the people", "now"])
    with pytest.raises(UserError, match="stream: unknown key"):
        model.stream("the people", tokens=3)
    long_text = "the " * 100
    with pytest.raises(UserError, match="there is no room for new tokens"):
        model.stream(long_text)
    bert = ModelConfig(encoder=BERT_ENCODER, vocab_size=len(model.tokenizer), heads={"lm": LMHeadConfig()})
    with pytest.raises(UserError, match="is not causal"):
        Predictor(TorchEngine(build_model(bert, 0)), model.tokenizer, {}).stream("the people")


@pytest.mark.parametrize("decoder", [None, TransformerDecoderConfig()])
@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe"])
def test_pieces_of_a_target_are_the_generated_target(tokenizers, kind, decoder):
    mixer = msgspec.structs.replace(BERT_ENCODER.mixer, causal=decoder is None)  # a prefix LM (UniLM)
    encoder = msgspec.structs.replace(BERT_ENCODER, mixer=mixer)
    config = ModelConfig(encoder=encoder, vocab_size=len(tokenizers[kind]), heads={"lm": LMHeadConfig()}, decoder=decoder)
    model = Predictor(TorchEngine(build_model(config, 2)), tokenizers[kind], {}, Seq2Seq(max_target_length=20), 48)
    for source in ("the people", "漢字 now", "water is wet ."):
        for limit in (20, 200):
            model.generation_config = Greedy(max_new_tokens=limit)
            search = {} if limit == 20 else {"max_new_tokens": limit}
            assert "".join(model.stream(source, **search)) == model(source)["generated_text"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_generated_text_and_a_pipe_json(tokenizers, tmp_path, monkeypatch):
    model = build_gpt(tokenizers["byte"])
    checkpoint.save(tmp_path / "gpt", model.model, model.tokenizer, {}, {})
    words = ["predict", f"model={tmp_path / 'gpt'}", "text=the people", "generate.max_new_tokens=20"]
    assert run_cli(*words).stdout.startswith('{"generated_text": ')
    expected = model.generate("the people", max_new_tokens=20)["generated_text"]
    for extra, is_text in (([], True), (["--json"], False), (["generate=beam"], False), (["likelihood=true"], False)):
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        assert bertsmith.cli.main([*words, *extra]) == 0
        shown = terminal.getvalue()
        assert (shown == escape_controls(expected, keep_lines=True) + "\n") if is_text else shown.startswith("{")
