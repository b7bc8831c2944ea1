"""The embedded digits: scikit-learn's own, read without importing it."""

import subprocess
import sys

import numpy as np
from sklearn.datasets import load_digits

from ncollapse.data.digits import read_table


def test_the_table_is_scikit_learn_s():
    bunch = load_digits()
    table = read_table()
    assert np.array_equal(table[:, :64], bunch.data)
    assert np.array_equal(table[:, 64], bunch.target)


def test_scikit_learn_is_not_imported():
    code = "import sys, ncollapse.data as d; d.load('digits'); print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
