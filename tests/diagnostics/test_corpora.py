"""`bertsmith doctor` on corpora: each defect of the text or tokenizer has its finding."""

import json

import pytest

from bertsmith.artifacts import write_manifest
from bertsmith.config import from_dict
from bertsmith.corpus.build import Prepare, build_corpus
from bertsmith.corpus.store import Corpus
from bertsmith.diagnostics.corpus_checks import compute_fertility
from bertsmith.errors import UserError
from tests.support.diagnostics import WORDS, doctor_findings, doctor_problems, generate_text, prepare_corpus, write_vocab
from tests.support.texts import CHINESE_CHARS, LETTERS, make_chinese_text


def test_healthy_corpus_has_no_findings(corpus_folder):
    assert doctor_findings(corpus_folder) == {}


def test_duplicate_lines_are_found(tmp_path):
    many = doctor_findings(prepare_corpus(tmp_path / "often", 3 * generate_text(60)))
    assert list(many) == ["duplicate text"] and many["duplicate text"]["severity"] == "problem"
    assert "(67%)" in many["duplicate text"]["observation"] and "drop=" in many["duplicate text"]["setting"]
    assert doctor_findings(prepare_corpus(tmp_path / "dropped", 3 * generate_text(60), drop=["lines"])) == {}
    few = doctor_findings(prepare_corpus(tmp_path / "some", generate_text(60) + "\n" + generate_text(8)))
    assert {name: finding["severity"] for name, finding in few.items()} == {"duplicate text": "note"}


@pytest.mark.parametrize(
    ("text", "name", "observation"),
    [
        (generate_text(60).replace("\n\n", "\n"), "no document boundaries", "one document of"),
        (generate_text(60).replace("\n\n", "\n").replace("\n", "\n\n"), "no sentence pairs", "documents is one sentence"),
    ],
)
def test_corpus_without_documents_is_a_problem(tmp_path, text, name, observation):
    findings = doctor_findings(prepare_corpus(tmp_path, text))
    assert list(findings) == [name] and observation in findings[name]["observation"]
    assert findings[name]["setting"] == "objective=mlm" and findings[name]["severity"] == "problem"


def test_short_or_few_documents_are_noted(tmp_path):
    single_sentences = "\n\n".join(generate_text(30, seed=1).replace("\n\n", "\n").splitlines())
    short = doctor_findings(prepare_corpus(tmp_path / "short", generate_text(40) + "\n" + single_sentences))
    assert {name: finding["severity"] for name, finding in short.items()} == {"short documents": "note"}
    few = doctor_findings(prepare_corpus(tmp_path / "few", generate_text(60).replace("\n\n", "\n", 55)))
    assert {name: finding["severity"] for name, finding in few.items()} == {"few documents": "note"}


def test_high_unk_rate_is_a_problem(tmp_path):
    finding = doctor_findings(prepare_corpus(tmp_path, generate_text(60), [".", *WORDS[:40]]))["tokenizer: unknown tokens"]
    assert finding["severity"] == "problem" and "of the tokens are [UNK]" in finding["observation"]


def test_high_fertility_is_a_problem(tmp_path):
    subwords = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *(word + "x" for word in WORDS)]
    folder = prepare_corpus(tmp_path, generate_text(60), [".", *subwords])
    assert compute_fertility(Corpus.open(folder)) == pytest.approx(4)
    assert "4.00 tokens per word" in doctor_findings(folder)["tokenizer: high fertility"]["observation"]
    assert doctor_problems(folder) == ["tokenizer: high fertility"]


def test_fertility_is_none_for_character_vocabularies(tmp_path):
    assert (
        compute_fertility(Corpus.open(prepare_corpus(tmp_path / "han", make_chinese_text(40), [*CHINESE_CHARS, "。", "word"])))
        is None
    )
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    assert compute_fertility(Corpus.open(prepare_corpus(tmp_path / "letters", generate_text(20), [".", *letters]))) is None


def test_unused_subwords_are_noted(tmp_path):
    findings = doctor_findings(
        prepare_corpus(
            tmp_path, generate_text(300), [".", *WORDS, *(f"{word}x" for word in WORDS), *(f"{word}y" for word in WORDS)]
        )
    )
    assert {name: finding["severity"] for name, finding in findings.items()} == {"tokenizer: unused tokens": "note"}
    assert "96 of the 145 tokens of the vocabulary never occur" in findings["tokenizer: unused tokens"]["observation"]


def test_too_few_tokens_per_subword_is_a_problem(tmp_path):
    unused = [f"{word}{letter}" for word in WORDS for letter in LETTERS]
    assert (
        doctor_findings(prepare_corpus(tmp_path, generate_text(12), [".", *WORDS, *unused]))["too little text"]["severity"]
        == "problem"
    )


def test_mismatched_corpus_tokenizer_is_a_problem(tmp_path):
    folder = prepare_corpus(tmp_path, generate_text(60))
    other = prepare_corpus(tmp_path / "other", generate_text(60), [".", *reversed(WORDS)])
    (folder / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes())
    assert "tokenizer.json is damaged" in doctor_findings(folder)["damaged folder"]["observation"]
    write_manifest(folder)
    assert doctor_problems(folder) == ["tokenizer: mismatch"]
    assert "was prepared with tokenizer" in doctor_findings(folder)["tokenizer: mismatch"]["observation"]


def test_vocabulary_without_mask_token_is_a_problem(tmp_path):
    folder = prepare_corpus(tmp_path, generate_text(60))
    state = json.loads((folder / "tokenizer.json").read_text())
    del state["model"]["vocab"]["[MASK]"]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "[MASK]"]
    (folder / "tokenizer.json").write_text(json.dumps(state))
    write_manifest(folder)
    findings = doctor_findings(folder)
    assert list(findings) == ["no masked tokens"] and "has no [MASK]" in findings["no masked tokens"]["observation"]


def test_interrupted_prepare_is_a_problem(tmp_path):
    (tmp_path / "text.txt").write_text(generate_text(60))
    vocab = write_vocab(tmp_path, [".", *WORDS])
    values = {"texts": [str(tmp_path / "text.txt")], "tokenizer": str(vocab), "out": str(tmp_path / "corpus"), "workers": 1}

    def interrupt(num_read: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_corpus(from_dict(Prepare, values), interrupt)
    assert doctor_problems(tmp_path / "corpus") == ["interrupted"]
    build_corpus(from_dict(Prepare, values))
    assert doctor_findings(tmp_path / "corpus") == {}


def test_doctor_rejects_other_folders(tmp_path, corpus_folder):
    with pytest.raises(UserError, match="there is no folder"):
        doctor_findings(tmp_path / "absent")
    with pytest.raises(UserError, match="is not a corpus, checkpoint or run folder"):
        doctor_findings(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(UserError, match="bertsmith import"):
        doctor_findings(tmp_path)
    with pytest.raises(UserError, match="is a corpus; leave out corpus="):
        doctor_findings(corpus_folder, corpus_folder)
