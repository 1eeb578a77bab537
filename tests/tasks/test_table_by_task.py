"""Tables by task type: a task that derives from another has its entries."""

import pytest

from bertsmith.tasks import TextClassification, TextRegression
from bertsmith.tasks.base import TableByTask


class Rating(TextRegression, frozen=True, tag="rate"):
    """A task that a user adds."""


def test_a_derived_task_has_the_entry_of_its_base():
    table = TableByTask[str]({TextRegression: "pearson"})
    assert table[Rating] == table[TextRegression] == "pearson"


def test_a_task_without_entry_is_an_error():
    with pytest.raises(KeyError):
        TableByTask[str]({TextRegression: "pearson"})[TextClassification]
