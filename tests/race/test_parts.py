"""The parts of a race by themselves: jobs that fail or die, bits of unknown words, and what is usual."""

import re
from itertools import combinations

import pytest

from bertsmith.errors import Stopped
from bertsmith.evaluate.suite import Run, Table
from bertsmith.race.baseline import majority
from bertsmith.race.bits import bits_per_byte, unknown_bytes
from bertsmith.race.jobs import Job, carried_out
from bertsmith.race.table import Entry, Race, scientific
from bertsmith.show.dots import Dot, dots
from bertsmith.stages.suite import merged
from bertsmith.tasks import Answering, Tag
from bertsmith.tasks.tag import Sentence
from bertsmith.text.tokenizer import Tokenizer
from tests.conftest import PIECES
from tests.race.work import dies, fault, noted, stops, wrong


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_that_fails_is_told_of_and_the_others_go_on(tmp_path, count):
    told = {}

    def ended(job, said):
        told[job.name] = said
        return [Job("after", noted, (tmp_path / "after", "b"))] if job.name == "first" else []

    jobs = [Job("wrong", wrong, ()), Job("first", noted, (tmp_path / "first", "a")), Job("fault", fault, ())]
    carried_out(jobs, count, ended)
    assert told.pop("fault").startswith("ZeroDivisionError: a programmer's (work.py:")
    assert told == {"wrong": "a person's mistake", "first": None, "after": None}
    assert (tmp_path / "after").read_text() == "b"


def test_a_process_that_dies_is_told_of():
    told = {}
    carried_out([Job("dies", dies, ())], 2, lambda job, said: told.setdefault(job.name, said) and [])
    assert "its process died (SIGKILL" in told["dies"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_that_was_asked_to_stop_stops_all(count):
    with pytest.raises(Stopped):
        carried_out([Job("stops", stops, ())], count, lambda job, said: pytest.fail("it did not end"))


def test_bits_of_a_text_count_unknown_words_as_they_would_be_sent(tmp_path):
    assert bits_per_byte(0.6931471805599453 * 3, tokens=10, size=60) == pytest.approx(0.5)
    assert bits_per_byte(0.0, 10, 60, unknown=15) == pytest.approx(2.0)
    tokenizer = Tokenizer.google(PIECES)
    (tmp_path / "t.txt").write_text("the 中 people\n\nto 文中 be\n", encoding="utf-8")
    assert tokenizer.encode("中").ids == [tokenizer.unk]
    assert unknown_bytes(tokenizer, [str(tmp_path / "t.txt")]) == 3 * (3 + 1)


def test_usual_tags_are_judged_like_any_answers():
    tokenizer, tag = Tokenizer.google(PIECES), Tag(labels=("NN", "VB"))
    learn, dev = [sentence("NN NN VB")], [sentence("NN VB VB NN NN")]
    assert majority(tag, learn, dev, tokenizer, 16)["accuracy"] == pytest.approx(0.6)
    assert majority(Answering(), [], [], tokenizer, 16) == {}


def sentence(tags):
    return Sentence(tokens=["the"] * len(tags.split()), tags=tags.split())


def test_a_table_aligns_tasks_and_ways():
    runs = [Run("a", "t", seed, {"accuracy": value}, ("accuracy",)) for seed, value in ((0, 0.5), (1, 0.7))]
    ways = {"frozen": Table(("a", "b"), ("t",), runs), "tuned": Table(("a", "b"), ("t",), [])}
    facts = {"parameters": 12_000, "flops": 1.5e15, "steps": 3}
    race = Race([Entry("a", facts), Entry("b", faults=("no",))], ways, ("t",), {"t": ("accuracy",)}, 2e15)
    assert race.rows() == [
        ("", "params", "FLOPs", "t frozen", "t tuned", "average frozen", "average tuned"),
        ("a", "12k", "1.5e15", "60.0 ± 14.1", "–", "60.0 ± 14.1", "–"),
        ("b", "–", "–", "–", "–", "–", "–"),
    ]
    assert race.plain()["members"][1]["faults"] == ["no"]
    assert [scientific(value) for value in (0, 1, 999, 1.234e18)] == ["0", "1e0", "9.99e2", "1.23e18"]


def test_named_dots_do_not_write_over_one_another():
    given = [Dot("one", 1e5, 50.0), Dot("two", 1e5, 50.0), Dot("three", 1e5, 50.0), Dot("<four>", 1e7, 50.1, apart=2.0)]
    figure = dots("<t>", given, "parameters", ("usual", 40.0))
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="value">([^<]+)<', figure)
    boxes = [(float(x), float(y), len(name)) for x, y, name in found]
    assert len(boxes) == 4 and "&lt;four&gt;" in figure and "usual" in figure
    for (x, y, size), (other, height, length) in combinations(boxes, 2):
        assert abs(y - height) >= 12 or x + 6 * size <= other or other + 6 * length <= x


def test_a_table_of_another_kind_takes_nothing_from_the_one_below():
    below = {"model": {"width": 8, "mixer": {"kind": "dense", "heads": 4}}}
    assert merged(below, {"model": {"mixer": {"heads": 2}}})["model"] == {"width": 8, "mixer": {"kind": "dense", "heads": 2}}
    assert merged(below, {"model": {"mixer": {"kind": "lstm"}}})["model"] == {"width": 8, "mixer": {"kind": "lstm"}}
    assert merged(below, {"model": "bert-tiny"}) == {"model": "bert-tiny"}
