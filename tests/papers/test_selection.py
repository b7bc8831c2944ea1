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
        ("bce-vs-ce/table-6@", "a number of epochs after @, as in bce-vs-ce/table-6@40, got 'bce-vs-ce/table-6@'"),
        ("bce-vs-ce/table-6@ten", "after @, as in bce-vs-ce/table-6@40, got 'bce-vs-ce/table-6@ten'"),
        ("bce-vs-ce/table-6@-1/5", "after @, as in bce-vs-ce/table-6@40, got 'bce-vs-ce/table-6@-1/5'"),
        ("bce-vs-ce/table-6@40/", "from 1 on after /, as in bce-vs-ce/table-6@40/5, got 'bce-vs-ce/table-6@40/'"),
        ("bce-vs-ce/table-6@40/0", "from 1 on after /, as in bce-vs-ce/table-6@40/5, got 'bce-vs-ce/table-6@40/0'"),
        ("bce-vs-ce/table-6@40/5/5", "from 1 on after /, as in bce-vs-ce/table-6@40/5, got 'bce-vs-ce/table-6@40/5/5'"),
    ],
)
def test_what_cannot_be_read_is_refused(word, message):
    with pytest.raises(ValueError, match=message):
        select_runs(word)
