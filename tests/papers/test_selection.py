"""What ID@EPOCHS/EVERY:KEY=VALUE asks for."""

import pytest

from ncollapse.papers.selection import select_runs


def read(word, **options):
    selection = select_runs(word, **options)
    return {(point.recipe.optim.epochs, point.recipe.measure_every) for point in selection.points}, selection.measured


def test_an_id_may_say_how_long_to_train_and_how_often_to_measure():
    word = "bce-vs-ce/table-6{}:model=resnet18:optimizer=adamw"
    plain, measured = read(word.format(""))
    assert not measured
    ((epochs, every),) = plain
    assert read(word.format("@40")) == ({(40, every)}, False)
    assert read(word.format("@40/5")) == ({(40, 5)}, True)
    assert read(word.format("@/7")) == ({(epochs, 7)}, True)
    assert read(word.format("@40/5"), epochs=20, measure_every=3) == ({(40, 5)}, True)
    assert read(word.format(""), epochs=20, measure_every=3) == ({(20, 3)}, True)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("bce-vs-ce/table-6@", "'' after @ must be a number of epochs"),
        ("bce-vs-ce/table-6@ten", "'ten' after @ must be a number of epochs"),
        ("bce-vs-ce/table-6@-1/5", "'-1' after @ must be a number of epochs"),
        ("bce-vs-ce/table-6@40/", "'' after / must be a number of epochs to measure after"),
        ("bce-vs-ce/table-6@40/0", "'0' after / must be"),
        ("bce-vs-ce/table-6@40/5/5", "'5/5' after / must be"),
    ],
)
def test_what_cannot_be_read_is_refused(word, message):
    with pytest.raises(ValueError, match=message):
        select_runs(word)
